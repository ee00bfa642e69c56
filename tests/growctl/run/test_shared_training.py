"""Real runs that share training: what is reused is linked, booked as reused, and ends in the same bits."""

import json
import shutil
from pathlib import Path

import pytest

from growctl.ledger.ledger import Ledger
from stages.checkpoint.manifest import read_manifest
from stages.metrics import read_metrics
from tests.growctl.runs import final_hashes, growctl, losses, run, run_here
from tests.workers import HANG_SECONDS

pytestmark = pytest.mark.trains
LAUNCH = ("launch.devices=2",)
LONGER = ("stages.1.train_steps=70", "stages.1.ramp_steps=12")
HUGE = "  - {name: huge, attention_tokens: 24, ffn_tokens: 60, train_steps: 5}\ntraining:"


@pytest.fixture(scope="module")
def runs(two_ranks, tmp_path_factory):
    """The runs directory with the ladder `tiny`, its extension `extended` and, trained anew, `anew`.

    Each stage has a learning rate of its own. The extension's second stage is longer, and it has a third.
    """
    folder = tmp_path_factory.mktemp("family")
    schedule = folder / "tiny.yaml"
    schedule.write_text(two_ranks[0].read_text().replace("training:", HUGE))
    runs = folder / "runs"
    shutil.copytree(two_ranks[1], runs, copy_function=shutil.copy2)
    out, _ = run("run", schedule, *LONGER, *LAUNCH, "--name", "extended", "--runs-dir", runs)
    run("run", schedule, *LONGER, *LAUNCH, "--name", "anew", "--runs-dir", runs, "--no-reuse")
    (folder / "said").write_text(" ".join(out.split()))
    return runs


def stage_costs(runs: Path, name: str) -> dict[str, tuple[int, int, int]]:
    """(steps of the model, steps reused, steps spent) by stage, from the ledger."""
    with Ledger(runs / name / "ledger.db", read_only=True) as ledger:
        costs = {stage.name: ledger.stage_cost(stage.name) for stage in ledger.stages()}
    return {name: (cost.model.steps, cost.reused.steps, cost.spent.steps) for name, cost in costs.items()}


def evaluations(found: dict[tuple[str, int, str], float]) -> dict[tuple[str, int, str], float]:
    """The losses without those of training, which a run that reuses steps does not have."""
    return {key: loss for key, loss in found.items() if key[2] != "train"}


def test_an_extended_ladder_ends_in_the_bits_and_histories_of_one_trained_anew(runs):
    assert final_hashes(runs / "extended") == final_hashes(runs / "anew")
    extended, anew = losses(runs / "extended"), losses(runs / "anew")
    assert extended == {key: anew[key] for key in extended}
    assert evaluations(extended) == evaluations(anew)
    for stage in ("0-small", "1-large", "2-huge"):
        old, new = (read_manifest(runs / name / "stages" / stage / "final").lineage for name in ("extended", "anew"))
        assert [(link.hash, link.cost.flops) for link in old.history] == [(e.hash, e.cost.flops) for e in new.history]


def test_an_extended_ladder_trains_only_the_old_decay_and_what_is_new_and_says_so(runs):
    undecayed = 60 - 12 + 1
    assert stage_costs(runs, "extended") == {
        "small": (30, 30, 0), "large": (70, undecayed, 70 - undecayed), "huge": (5, 0, 5)
    }  # fmt: skip
    assert stage_costs(runs, "anew") == {"small": (30, 0, 30), "large": (70, 0, 70), "huge": (5, 0, 5)}
    said, tiny = (runs.parent / "said").read_text(), runs / "tiny/stages"
    assert f"stage small: reused whole from {tiny}/0-small/final; saves" in said
    assert f"stage large: reused up to step 49 of 70 from {tiny}/1-large/" in said


def test_the_report_counts_reused_flops_in_the_models_cost_and_says_who_paid(runs):
    out, _ = run_here("report", "extended", "anew", "--runs-dir", runs)
    assert "are reused from tiny" in " ".join(out.split())
    names = ("extended", "anew", "tiny")
    reported = json.loads(run_here("report", *names, "--runs-dir", runs, "--json")[0])["runs"]
    extended, anew, _ = (found["stages"] for found in reported)
    assert [s["cumulative_flops"] for s in extended] == [s["cumulative_flops"] for s in anew]
    assert [s["reused_from"] for s in extended] == [["tiny"], ["tiny"], []]
    assert extended[0]["reused_flops"] == extended[0]["flops"]
    assert extended[0]["spent"]["device_seconds"] == 0.0
    for name, found in zip(names, reported, strict=True):
        for index, stage in enumerate(found["stages"]):
            cost = read_manifest(runs / name / "stages" / f"{index}-{stage['name']}" / "final").lineage.cost
            assert cost is not None
            assert cost.flops.total == pytest.approx(stage["cumulative_flops"], rel=1e-12)


LINK = {"at": "stages.checkpoint.files:link_or_copy"}
POINTS = {
    "before the first link": LINK | {"nth": 1},
    "between two links": LINK | {"nth": 7},
    "between record and rename": {"at": "growctl.run.reuse:_record", "side": "after"},
    "after the rename": {"at": "growctl.run.reuse:take_over", "side": "after"},
}


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_a_run_killed_while_it_takes_over_a_checkpoint_ends_as_if_it_had_not_been(point, two_ranks, tmp_path):
    runs = shutil.copytree(two_ranks[1], tmp_path / "runs")
    (tmp_path / "marks").mkdir()
    fault = {"name": "killed", "process": "runner", "do": "SIGKILL"} | point
    command = ("run", two_ranks[0], *LAUNCH, "--name", "twin", "--runs-dir", runs)
    process = growctl(*command, faults=json.dumps({"folder": str(tmp_path / "marks"), "faults": [fault]}))
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == -9
    run(*command)
    assert final_hashes(runs / "twin") == final_hashes(runs / "tiny")
    assert losses(runs / "twin") == evaluations(losses(runs / "tiny"))
    assert stage_costs(runs, "twin") == {"small": (30, 30, 0), "large": (60, 60, 0)}
    assert "start" not in {record["event"] for record in read_metrics(runs / "twin/stages/0-small/metrics.jsonl")}
