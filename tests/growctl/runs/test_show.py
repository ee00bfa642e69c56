"""`growctl show`: lineage, sizes by generation, cost and shared files, as text and as JSON."""

import json
from pathlib import Path

import pytest

from growctl.runs.show import read_facts
from model.flops import Flops
from model.shapes import num_parameters
from stages.checkpoint.lineage import TrainingCost, TrainingRecord, extended
from stages.checkpoint.manifest import read_manifest
from stages.grow.expand import expand, shrink
from tests.growctl.bases import change_manifest
from tests.growctl.runs import run_here
from tests.stages.checkpoints import small_config, write_checkpoint

COST = TrainingCost(steps=11, tokens=2816, flops=Flops(3e9, 2e9, 1e9), device_seconds=75.5)
SIZE = num_parameters(small_config())
DRAWN = extended((), "init", {"seed": 7}, num_parameters=SIZE)
TRAINED = extended(DRAWN, "train", {"steps": 11}, num_parameters=SIZE, cost=COST, made_in="quick/small")


def rewrite_lineage(directory: Path, **changes: object) -> None:
    """Gives the checkpoint's lineage other values."""
    change_manifest(directory, lineage=read_manifest(directory).lineage.model_copy(update=changes))


@pytest.fixture
def final(tmp_path: Path) -> Path:
    """The `final/` of the only stage of the run `quick`, with a history."""
    directory = tmp_path / "runs/quick/stages/0-small/final"
    write_checkpoint(directory)
    rewrite_lineage(directory, history=TRAINED, training=TrainingRecord(validation_loss=2.0))
    return directory


def show(checkpoint: Path | str, *more: str) -> str:
    return run_here("show", checkpoint, *more, columns=80)[0]


def words(checkpoint: Path) -> str:
    return " ".join(show(checkpoint).split())


def test_the_lineage_has_every_operation_with_its_size_cost_and_place(final, tmp_path):
    expand(final, tmp_path / "grown", attention_tokens=3)
    shrink(tmp_path / "grown", tmp_path / "back")
    told = words(tmp_path / "back")
    for line in [
        "init 2.45k parameters, 0 FLOPs so far",
        "train 2.45k parameters, 6.00e09 FLOPs so far, in quick/small",
        "expand 3.6k parameters, 6.00e09 FLOPs so far",
        "shrink 2.45k parameters, 6.00e09 FLOPs so far",
    ]:
        assert line in told


def test_a_run_is_shown_by_its_name_with_its_cost_and_loss_and_its_whole_history_in_json(final):
    told = " ".join(run_here("show", "quick", cwd=final.parents[4])[0].split())
    assert "cost 6.00e09 FLOPs, 2.82k tokens in 11 steps, 1m 16s of device time" in told
    assert "validation 2 nats per token" in told
    document = json.loads(run_here("show", "quick", "--json", cwd=final.parents[4])[0])
    assert document["path"] == "runs/quick/stages/0-small/final"
    history = [(entry["operation"], entry["made_in"], entry["hash"]) for entry in document["lineage"]["history"]]
    assert history == [("init", None, DRAWN[0].hash), ("train", "quick/small", TRAINED[1].hash)]
    assert document["cost"]["flops"] == {"parameters": 3e9, "attention": 2e9, "head": 1e9}
    assert (document["validation_loss"], document["generations"][0]["key_ramp"]) == (2.0, 1.0)


def test_a_cost_that_is_incomplete_or_unknown_says_so(final):
    rewrite_lineage(
        final, history=extended((), "train", {}, num_parameters=SIZE, cost=COST.model_copy(update={"complete": False}))
    )
    assert "incomplete: the cost of an imported ancestor is not known and not included" in words(final)
    rewrite_lineage(final, history=(), parent="f" * 64)
    assert "cost unknown: the checkpoint has no history" in words(final)
    assert "train what came before is not recorded" in words(final)
    assert json.loads(show(final, "--json"))["cost"] is None


def test_sizes_are_shown_by_generation_and_sum_to_the_model(final, tmp_path):
    expand(final, tmp_path / "grown", attention_tokens=[3, 0], ffn_tokens=[0, 4])
    facts = read_facts(tmp_path / "grown")
    base, grown = facts.generations
    assert (base.number, base.tokens["query"], base.tokens["ffn"]) == (0, 5, 10)
    assert (grown.number, grown.tokens["query"], grown.tokens["ffn"]) == (1, [3, 0], [0, 4])
    by_part = base.num_parameters + grown.num_parameters + facts.other_parameters
    assert by_part == facts.num_parameters
    assert "1 0 to 3 0 to 4 512 0" in words(tmp_path / "grown"), "the last is the ramp"
