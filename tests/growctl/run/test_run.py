"""A whole ladder with its control, as a user runs it: files, output, and a second run."""

import json
import math
import re
import sqlite3

import pytest
import torch

from model.config import num_parameters
from model.policy import EXACT_GROWTH
from stages.checkpoint.manifest import manifest_hash, read_manifest, verify_checkpoint
from stages.checkpoint.parameters import load_model
from stages.checkpoint.pretrained import load_pretrained
from stages.generate.text_samples import read_samples
from tests.growctl.runs import CONTROL, SCHEDULE, losses, run, run_here, write_schedule
from tests.growctl.text.schemas import assert_follows_schema


@pytest.fixture(scope="module")
def finished_ladder(training, tmp_path_factory):
    """(runs directory, schedule file, stdout of the run) of a finished ladder and control."""
    folder = tmp_path_factory.mktemp("ladder")
    schedule = write_schedule(folder, SCHEDULE + CONTROL + "samples: {prompts: ['def '], max_new_tokens: 5}\n")
    out, err = run("run", schedule, "training.precision=bf16", "--runs-dir", folder / "runs")
    return folder / "runs", schedule, out, err


def test_a_run_leaves_the_documented_files(finished_ladder):
    runs, _, _, _ = finished_ladder
    tiny = runs / "tiny"
    for name in ("schedule.yaml", "ledger.db", "stages/0-small/metrics.jsonl", "stages/0-small/log.txt"):
        assert (tiny / name).is_file(), name
    for name in ("0-small/final", "1-large/initial", "1-large/final"):
        assert verify_checkpoint(tiny / "stages" / name).kind == "parameters"
        loaded = load_pretrained(tiny / "stages" / name)
        assert loaded.tokenizer.decode(loaded.tokenizer.encode("def f(x):\n").ids) == "def f(x):\n"
        assert loaded.text.context_length == 32
    steps = sorted(p.name for p in (tiny / "stages/1-large").glob("step_*"))
    assert steps == ["step_00000040", "step_00000043", "step_00000050"]
    assert verify_checkpoint(tiny / "stages/1-large/step_00000050").kind == "engine"
    assert sorted(p.name for p in runs.iterdir()) == [
        ".datasets",
        "tiny",
        "tiny-control-tokenformer-scratch",
        "tiny-control-transformer-scratch-0.5x",
    ]
    assert not list(runs.rglob("*incomplete*"))


def test_every_stage_and_control_writes_text_on_the_screen_and_in_the_report(finished_ladder):
    runs, _, out, _ = finished_ladder
    found = {path.parent.name: read_samples(path) for path in runs.glob("tiny/stages/*/samples.json")}
    for path in runs.glob("*/stages/*/samples.json"):
        assert_follows_schema(json.loads(path.read_bytes()), "samples")
    assert sorted(found) == ["0-small", "1-large"]
    assert len(list(runs.glob("tiny-control-*/stages/*/samples.json"))) == 2
    assert len(re.findall(r" writes:\n    def", out)) == 4
    documents = json.loads(run_here("report", "tiny", "--runs-dir", runs, "--json")[0])["runs"]
    stages = [stage for document in documents for stage in document["stages"]]
    assert [(stage["name"], len(stage["samples"])) for stage in stages] == [
        (name, 1) for name in ("small", "large", "large", "large")
    ]
    samples = [sample for stage in stages for sample in stage["samples"]]
    assert all(sample["prompt"] == "def " for sample in samples)


def test_every_line_that_workers_write_follows_the_schema_of_metrics(finished_ladder):
    runs, _, _, _ = finished_ladder
    lines = [line for path in runs.glob("*/stages/*/metrics.jsonl") for line in path.read_bytes().splitlines()]
    assert {json.loads(line)["event"] for line in lines} >= {"start", "train", "evaluation", "checkpoint", "end"}
    for line in lines:
        assert_follows_schema(json.loads(line), "metrics")


def test_growth_keeps_the_validation_loss_and_is_recorded(finished_ladder):
    runs, _, _, _ = finished_ladder
    found = losses(runs / "tiny")
    before, after = found["0-small", 30, "final"], found["1-large", 0, "after_growth"]
    assert after == pytest.approx(before, abs=EXACT_GROWTH)
    final = read_manifest(runs / "tiny/stages/1-large/final")
    assert final.lineage.training.validation_loss == found["1-large", 60, "final"]


def test_lineage_steps_and_data_position_continue_across_stages(finished_ladder):
    runs, _, _, _ = finished_ladder
    stages = runs / "tiny" / "stages"
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


def test_old_parameters_are_shared_with_the_grown_checkpoint_not_copied(finished_ladder):
    stages = finished_ladder[0] / "tiny" / "stages"
    small = read_manifest(stages / "0-small/final")
    for name in small.files:
        old, grown = ((stages / where / name).stat() for where in ("0-small/final", "1-large/initial"))
        assert old.st_ino == grown.st_ino, name


def test_the_loaded_model_reproduces_the_recorded_loss_and_gives_logits(finished_ladder):
    final = finished_ladder[0] / "tiny/stages/1-large/final"
    model = load_model(final)
    logits = model(torch.zeros(1, 5, dtype=torch.int64))
    assert logits.shape == (1, 5, 300)
    assert logits.dtype == torch.float32
    assert sum(p.numel() for p in model.parameters()) == num_parameters(read_manifest(final).model)


def test_the_screen_shows_plain_lines_without_library_output(finished_ladder):
    _, _, out, err = finished_ladder
    assert "stage large step 60: validation loss" in out.replace("\n", " ")
    assert "right after growth" in out.replace("\n", " ")
    assert "growctl report tiny" in out
    for word in ("deepspeed", "DeepSpeed", "warning: growing", "\x1b["):
        assert word not in out + err
    assert "growctl.launch.start_ranks: starting" in (finished_ladder[0] / "tiny/stages/0-small/log.txt").read_text()


def test_the_report_adds_up(finished_ladder):
    runs, schedule, _, _ = finished_ladder
    out, err = run_here("report", "tiny", "--runs-dir", runs, "--json")
    assert err == ""
    ladder_report, control, transformer = json.loads(out)["runs"]
    assert (ladder_report["name"], ladder_report["schedule"], ladder_report["control"]) == ("tiny", str(schedule), None)
    assert (control["name"], control["control"]) == ("tiny-control-tokenformer-scratch", "tokenformer-scratch")
    small, large = ladder_report["stages"]
    assert large["cumulative_flops"] == small["flops"] + large["flops"]
    assert control["stages"][0]["flops"] == pytest.approx(large["cumulative_flops"], rel=0.02)
    assert transformer["control"] == "transformer-scratch"
    assert transformer["stages"][0]["flops"] == pytest.approx(large["cumulative_flops"] / 2, rel=0.02)
    assert transformer["stages"][0]["num_parameters"] == pytest.approx(large["num_parameters"], rel=0.1)
    assert large["train_tokens"] == 60 * 8 * 32
    assert small["loss_before_growth"] is None
    assert small["loss_after_growth"] is None
    assert large["loss_before_growth"] == small["validation_loss"]
    assert large["loss_after_growth"] == pytest.approx(small["validation_loss"], abs=EXACT_GROWTH)
    assert large["perplexity"] == pytest.approx(math.exp(large["validation_loss"]))
    assert small["spent"]["wall_seconds"] > 0


def test_the_report_has_a_table_a_picture_and_a_page(finished_ladder):
    runs, _, _, _ = finished_ladder
    out, _ = run_here("report", "tiny", "--runs-dir", runs)
    assert out.startswith("Result\n  The strongest opponent is missing: the best size from scratch.\n")
    assert "\n  One run of each is a look, not a result: " in out
    assert "…" not in out
    report = runs / "tiny" / "report"
    assert (report / "compute-against-perplexity.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/svg+xml" in (report / "report.html").read_text()


def test_running_again_repeats_no_work(finished_ladder):
    runs, schedule, _, _ = finished_ladder
    before = {p: p.stat().st_mtime_ns for p in runs.rglob("final/manifest.json")}
    rows = sqlite3.connect(runs / "tiny/ledger.db").execute("select count(*) from work").fetchone()
    run("run", schedule, "training.precision=bf16", "--runs-dir", runs)
    assert {p: p.stat().st_mtime_ns for p in runs.rglob("final/manifest.json")} == before
    assert sqlite3.connect(runs / "tiny/ledger.db").execute("select count(*) from work").fetchone() == rows


def test_a_changed_schedule_stops_with_the_first_difference_and_changes_nothing(finished_ladder):
    runs, schedule, _, _ = finished_ladder
    before = (runs / "tiny/schedule.yaml").read_bytes()
    out, err = run_here(
        "run", schedule, "training.precision=bf16", "stages.1.train_steps=61", "--runs-dir", runs, expect=2
    )
    assert "stages.1.train_steps = 61" in err
    assert "was started with 60" in err
    assert "--name" in err
    assert "Traceback" not in out + err
    assert (runs / "tiny/schedule.yaml").read_bytes() == before


def test_launch_settings_may_change(finished_ladder):
    runs, schedule, _, _ = finished_ladder
    launch = ["launch.devices=2", "launch.zero_stage=2"]
    out, _ = run("run", schedule, "training.precision=bf16", *launch, "--runs-dir", runs)
    assert "tiny: done" in out
    assert "zero_stage: 2" in (runs / "tiny/schedule.yaml").read_text()


def test_a_directory_that_is_not_a_run_is_left_alone(tmp_path):
    schedule = write_schedule(tmp_path)
    (tmp_path / "runs/tiny").mkdir(parents=True)
    (tmp_path / "runs/tiny/thesis.txt").write_text("years of work")
    _, err = run_here("run", schedule, "--runs-dir", tmp_path / "runs", expect=2)
    assert "is not a growctl run" in err
    assert [p.name for p in (tmp_path / "runs/tiny").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "training.batch_size=9 launch.devices=2",
            "training.batch_size: makes 9 sequences of a step, which must be a multiple of 2, for 2 devices",
        ),
        ("training.sequence_length=1000000", "one sample of 1000000 needs 1000001; use more text, a shorter sequence"),
        ("data.source=/no/such/text", "data.source: '/no/such/text' does not exist"),
        ("launch.zero_stage=0", "launch.zero_stage = 0: "),
        ("stages.1.attention_tokens=4", "stages.1.attention_tokens = 4: "),
        ("model.vocab_size=10", "model.vocab_size = 10: "),
    ],
)
def test_bad_input_is_one_message_and_writes_nothing(tmp_path, override, message):
    schedule = write_schedule(tmp_path)
    out, err = run_here("run", schedule, *override.split(), "--runs-dir", tmp_path / "runs", expect=2)
    assert message in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "runs/tiny").exists()
    assert not (tmp_path / "runs").exists() or "sequence_length" in override  # only the prepared text shows it
