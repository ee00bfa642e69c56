"""A whole ladder with its control, as a user runs it: files, output, and a second run."""

import json
import math
import re
import shutil
import sqlite3

import pytest

from growctl.ledger.ledger import Ledger
from model.policy import EXACT_GROWTH
from stages.checkpoint.manifest import manifest_hash, read_manifest, verify_checkpoint
from stages.checkpoint.pretrained import load_pretrained
from stages.metrics import read_metrics
from tests.growctl.ledger.records import RUN
from tests.growctl.runs import CONTROL, SCHEDULE, TEXT, losses, run, run_here, write_schedule
from tests.growctl.text.schemas import assert_follows_schema


@pytest.fixture(scope="module")
def finished_ladder(training, tmp_path_factory):
    """(runs directory, schedule file, stdout of the run, stderr) of a finished ladder with its controls."""
    folder = tmp_path_factory.mktemp("ladder")
    schedule = write_schedule(folder, SCHEDULE + CONTROL + "samples: {prompts: ['def '], max_new_tokens: 5}\n")
    out, err = run("run", schedule, "training.precision=bf16", "--runs-dir", folder / "runs")
    return folder / "runs", schedule, out, err


@pytest.fixture(scope="module")
def stages(finished_ladder):
    """The folder with the stages of the ladder."""
    return finished_ladder[0] / "tiny/stages"


def test_a_run_leaves_the_documented_files(finished_ladder, stages):
    runs, _, _, _ = finished_ladder
    for name in ("../schedule.yaml", "../ledger.db", "0-small/metrics.jsonl", "0-small/log.txt"):
        assert (stages / name).is_file(), name
    for name in ("0-small/final", "1-large/initial", "1-large/final"):
        assert verify_checkpoint(stages / name).kind == "parameters"
        loaded = load_pretrained(stages / name)
        assert loaded.tokenizer.decode(loaded.tokenizer.encode("def f(x):\n").ids) == "def f(x):\n"
        assert loaded.text.context_length == 32
    steps = sorted(p.name for p in (stages / "1-large").glob("step_*"))
    assert steps == ["step_00000040", "step_00000043", "step_00000050"]
    assert verify_checkpoint(stages / "1-large/step_00000050").kind == "engine"
    names = ("", "-control-decoder-scratch-0.5x", "-control-tokenformer-scratch")
    assert sorted(p.name for p in runs.iterdir()) == [".datasets", *(f"tiny{name}" for name in names)]
    assert not list(runs.rglob("*incomplete*"))


def test_every_stage_and_control_writes_text_on_the_screen_and_in_the_report(finished_ladder):
    runs, _, out, _ = finished_ladder
    files = list(runs.glob("*/stages/*/samples.json"))
    for path in files:
        assert_follows_schema(json.loads(path.read_bytes()), "samples")
    assert len(files) == len(re.findall(r" writes:\n    def", out)) == 4
    documents = json.loads(run_here("report", "tiny", "--runs-dir", runs, "--json")[0])["runs"]
    written = [(stage["name"], stage["samples"]) for document in documents for stage in document["stages"]]
    assert [(name, [sample["prompt"] for sample in samples]) for name, samples in written] == [
        (name, ["def "]) for name in ("small", "large", "large", "large")
    ]


def test_a_first_attempt_has_the_number_1_and_waits_for_data_no_longer_than_it_lasts(stages):
    paths = list(stages.glob("*/metrics.jsonl"))
    assert len(paths) == 2
    for path in paths:
        records = list(read_metrics(path))
        assert {record["attempt"] for record in records} == {1}
        assert sum(record.get("data_wait_seconds", 0.0) for record in records) <= records[-1]["seconds"]


def test_evaluations_come_at_intervals_and_growth_keeps_the_validation_loss(stages):
    found = losses(stages.parent)
    assert [key[:2] for key in found if key[2] == "interval"] == [("0-small", 25), ("1-large", 25), ("1-large", 50)]
    before, after = found["0-small", 30, "final"], found["1-large", 0, "after_growth"]
    assert after == pytest.approx(before, abs=EXACT_GROWTH)
    assert read_manifest(stages / "1-large/final").lineage.training.validation_loss == found["1-large", 60, "final"]


def test_lineage_steps_data_position_and_old_parameters_continue_across_stages(stages):
    names = ("0-small/final", "1-large/initial", "1-large/final")
    small, grown, large = (read_manifest(stages / name) for name in names)
    assert grown.lineage.operation == "expand"
    assert grown.lineage.parent == manifest_hash(stages / "0-small/final")
    assert large.lineage.parent == manifest_hash(stages / "1-large/initial")
    assert (small.samples_seen, grown.samples_seen, large.samples_seen) == (240, 240, 720)
    assert large.group_steps == {"generation-0-decay": 90, "generation-0-no-decay": 90, "generation-1-decay": 60}
    assert {g.key_ramp for g in grown.model.blocks[0].query.generations} == {1.0, 0.0}
    assert {g.key_ramp for g in large.model.blocks[0].query.generations} == {1.0}
    assert large.model.blocks[0].query.tau == math.sqrt(16)
    assert large.dataset_fingerprint == small.dataset_fingerprint
    for name in small.files:
        assert (stages / "1-large/initial" / name).samefile(stages / "0-small/final" / name), name


def test_the_screen_shows_plain_lines_without_library_output(finished_ladder, stages):
    _, _, out, err = finished_ladder
    assert "stage large step 60: validation loss" in out.replace("\n", " ")
    assert "growctl report tiny" in out
    assert [word for word in ("deepspeed", "DeepSpeed", "warning: growing", "\x1b[") if word in out + err] == []
    assert "growctl.launch.start_ranks: starting" in (stages / "0-small/log.txt").read_text()


def test_the_report_adds_up(finished_ladder):
    runs, schedule, _, _ = finished_ladder
    out, _ = run_here("report", "tiny", "--runs-dir", runs, "--json")
    ladder, decoder, control = json.loads(out)["runs"]
    assert [run["control"] for run in (ladder, decoder, control)] == [None, "decoder-scratch", "tokenformer-scratch"]
    assert (ladder["name"], ladder["schedule"]) == ("tiny", str(schedule))
    small, large = ladder["stages"]
    assert large["cumulative_flops"] == small["flops"] + large["flops"]
    for opponent, share in ((control, 1), (decoder, 0.5)):
        assert opponent["stages"][0]["flops"] == pytest.approx(share * large["cumulative_flops"], rel=0.02)
    assert decoder["stages"][0]["num_parameters"] == pytest.approx(large["num_parameters"], rel=0.1)
    assert large["train_tokens"] == 60 * 8 * 32
    assert (small["loss_before_growth"], small["loss_after_growth"]) == (None, None)
    assert large["loss_before_growth"] == small["validation_loss"]
    assert large["loss_after_growth"] == pytest.approx(small["validation_loss"], abs=EXACT_GROWTH)
    assert large["perplexity"] == pytest.approx(math.exp(large["validation_loss"]))
    assert small["spent"]["wall_seconds"] > 0


def test_running_again_with_other_launch_settings_repeats_no_work(finished_ladder):
    runs, schedule, _, _ = finished_ladder

    def state() -> tuple[dict, int]:
        times = {path: path.stat().st_mtime_ns for path in runs.rglob("final/manifest.json")}
        return times, sqlite3.connect(runs / "tiny/ledger.db").execute("select count(*) from work").fetchone()

    before, launch = state(), ["launch.devices=2", "launch.zero_stage=2"]
    out, _ = run("run", schedule, "training.precision=bf16", *launch, "--runs-dir", runs)
    assert "tiny: done" in out
    assert "zero_stage: 2" in (runs / "tiny/schedule.yaml").read_text()
    assert state() == before


def test_a_directory_that_is_not_a_run_is_left_alone(tmp_path):
    schedule = write_schedule(tmp_path)
    (tmp_path / "runs/tiny").mkdir(parents=True)
    (tmp_path / "runs/tiny/thesis.txt").write_text("years of work")
    _, err = run_here("run", schedule, "--runs-dir", tmp_path / "runs", expect=2)
    assert "is not a growctl run" in err
    assert [p.name for p in (tmp_path / "runs/tiny").iterdir()] == ["thesis.txt"]


def test_a_control_reuses_its_ladders_data_after_the_source_changed_and_rejects_other_data(training, tmp_path):
    def fingerprint(name: str) -> str:
        with Ledger(runs / name / "ledger.db", read_only=True) as ledger:
            return ledger.run().dataset_fingerprint

    source, runs, control = tmp_path / "text", tmp_path / "runs", "tiny-control-tokenformer-scratch"
    shutil.copytree(TEXT, source, ignore=lambda _, names: [name for name in names if not name.endswith(".py")])
    text = SCHEDULE.replace(str(TEXT), str(source)).replace("train_steps: 30", "train_steps: 6")
    text = "\n".join(line for line in text.splitlines() if "name: large" not in line)
    schedule = write_schedule(tmp_path, f"{text}\ncontrols: [{{kind: tokenformer-scratch}}]")
    command = ("run", schedule, "--runs-dir", runs)
    run(*command, "--no-controls")
    (source / "new.py").write_text("print('other words than before')\n" * 500)
    trained_on = fingerprint("tiny")
    (runs / "tiny/ledger.db").unlink()
    run(*command, "--controls")
    assert fingerprint("tiny") == trained_on, "a new ledger has the data that the run was trained on"
    assert fingerprint(control) == trained_on
    assert len(list((runs / ".datasets").glob("*/manifest.json"))) == 1

    (runs / "tiny").rename(tmp_path / "kept")
    (runs / control / "ledger.db").write_bytes(b"torn")
    _, err = run_here(*command, expect=2)
    assert f"{control} was trained on other data" in err, "the ladder is new, the control's checkpoints tell"
    assert not list(runs.glob("tiny/stages/*"))
    shutil.rmtree(runs / "tiny")
    (tmp_path / "kept").rename(runs / "tiny")
    (runs / control / "ledger.db").unlink()
    with Ledger(runs / control / "ledger.db") as ledger:
        ledger.record_run(RUN, [])
    before = sorted(runs.rglob("*"))
    _, err = run_here(*command, expect=2)
    assert f"{control} was trained on other data (fingerprint f00d...) than its ladder" in " ".join(err.split())
    assert sorted(runs.rglob("*")) == before
