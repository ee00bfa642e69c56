"""`growctl show`: lineage, sizes by generation, cost and shared files, as text and as JSON."""

import json
import math
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from growctl.cli.app import app
from growctl.runs.show import read_facts
from model.config import TransformerConfig, num_parameters
from model.flops import Flops
from model.policy import GrowthPolicy
from stages.checkpoint.lineage import History, Lineage, TrainingCost, TrainingRecord, extended
from stages.checkpoint.manifest import read_manifest, sealed_manifest
from stages.grow.expand import expand, shrink
from tests.stages.checkpoints import small_config, write_checkpoint

COST = TrainingCost(steps=11, tokens=2816, flops=Flops(3e9, 2e9, 1e9), device_seconds=75.5)


def trained_history(cost: TrainingCost = COST) -> History:
    """The history of a model that was drawn and trained in a stage of a run."""
    size = num_parameters(small_config())
    drawn = extended((), "init", {"seed": 7}, num_parameters=size)
    return extended(drawn, "train", {"steps": 11}, num_parameters=size, cost=cost, made_in="quick/small")


def rewrite_lineage(directory: Path, **changes: object) -> None:
    """Gives the checkpoint's lineage other values."""
    manifest = read_manifest(directory)
    lineage = manifest.lineage.model_copy(update=changes)
    sealed = sealed_manifest(manifest.model_copy(update={"lineage": lineage}))
    (directory / "manifest.json").write_text(sealed.model_dump_json())


@pytest.fixture
def final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `final/` of the only stage of the run `quick`, seen from the directory that holds `runs`."""
    directory = tmp_path / "runs/quick/stages/0-small/final"
    write_checkpoint(directory)
    rewrite_lineage(directory, history=trained_history(), training=TrainingRecord(validation_loss=2.0))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GROWCTL_RUNS_DIR", raising=False)
    return Path("runs/quick/stages/0-small/final")


def show(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["show", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_lineage_has_every_operation_with_its_size_cost_and_place(final):
    expand(final, Path("grown"), attention_tokens=3)
    shrink(Path("grown"), Path("back"))
    told = words(show("back"))
    for line in [
        "init 2.45k parameters, 0 FLOPs so far",
        "train 2.45k parameters, 6.00e09 FLOPs so far, in quick/small",
        "expand 3.6k parameters, 6.00e09 FLOPs so far",
        "shrink 2.45k parameters, 6.00e09 FLOPs so far",
    ]:
        assert line in told


def test_the_cost_and_the_loss_are_shown(final):
    told = words(show("quick"))
    assert "cost 6.00e09 FLOPs, 2.82k tokens in 11 steps, 1m 16s of device time" in told
    assert "validation 2 nats per token" in told


def test_a_cost_that_is_incomplete_or_unknown_says_so(final):
    rewrite_lineage(final, history=trained_history(COST.model_copy(update={"complete": False})))
    assert "incomplete: the cost of an imported ancestor is not known and not included" in words(show(final))
    rewrite_lineage(final, history=(), parent="f" * 64)
    told = words(show(final))
    assert "cost unknown: the checkpoint has no history" in told
    assert "train what came before is not recorded" in told
    assert json.loads(show(final, "--json"))["cost"] is None


def test_sizes_are_shown_by_generation_and_sum_to_the_model(final):
    expand(final, Path("grown"), attention_tokens=[3, 0], ffn_tokens=[0, 4])
    facts = read_facts(Path("grown"))
    assert [(known.number, known.tokens["query"], known.tokens["ffn"]) for known in facts.generations] == [
        (0, 5, 10),
        (1, [3, 0], [0, 4]),
    ]
    by_part = [known.num_parameters for known in facts.generations] + [facts.other_parameters]
    assert sum(by_part) == facts.num_parameters
    assert "1 0 to 3 0 to 4 512 0" in words(show("grown")), "the last is the ramp"


def test_layers_are_counted_with_the_generation_that_added_them(final):
    expand(final, Path("deeper"), new_layers=2, layer_tokens=(3, 6), policy=GrowthPolicy(depth="interleave"))
    base, grown = read_facts(Path("deeper")).generations
    layers = small_config().num_layers
    assert sorted(base.new_layers + grown.new_layers) == list(range(layers + 2))
    assert (base.new_layers[0], len(grown.new_layers)) == (0, 2)
    told = words(show("deeper"))
    assert f"0 {layers} 5 10 " in told
    assert "1 2 0 to 3 0 to 6 " in told
    assert json.loads(show("deeper", "--json"))["generations"][1]["new_layers"] == grown.new_layers


def test_the_document_has_the_whole_history_and_nothing_else_is_printed(final):
    document = json.loads(show("quick", "--json"))
    assert document["path"] == str(final)
    assert [entry["operation"] for entry in document["lineage"]["history"]] == ["init", "train"]
    assert document["lineage"]["history"][-1]["made_in"] == "quick/small"
    assert document["lineage"]["history"][-1]["hash"] == trained_history()[-1].hash
    assert document["cost"]["flops"] == {"parameters": 3e9, "attention": 2e9, "head": 1e9}
    assert document["validation_loss"] == 2.0
    assert document["generations"][0]["key_ramp"] == 1.0


def test_everything_but_paths_fits_80_columns(final):
    expand(final, final.with_name("x" * 90), attention_tokens=[1000, 2], ffn_tokens=[30_000, 4])
    for line in show(final.with_name("x" * 90)).splitlines():
        assert len(line.rstrip()) <= 80 or "x" * 90 in line, line


def test_a_transformer_has_no_generations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = TransformerConfig(vocab_size=31, hidden_size=16, num_heads=1, num_layers=1, ffn_size=64)
    write_checkpoint(Path("final"), config)
    assert "generation" not in show("final")
    document = json.loads(show("final", "--json"))
    assert document["generations"] == []
    assert document["other_parameters"] == document["num_parameters"] == num_parameters(config)
    assert read_manifest(Path("final")).lineage == Lineage(operation="train")


def test_a_damaged_history_is_rejected(final):
    text = (final / "manifest.json").read_text().replace('"seed":7', '"seed":8')
    (final / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="its seal does not match its content"):
        show(final)


@pytest.mark.parametrize(
    "claim",
    [
        {"tokens": 10**400},
        {"steps": -1},
        {"device_seconds": float("inf")},
    ],
)
def test_a_cost_that_no_training_can_have_is_rejected(claim):
    with pytest.raises(ValidationError):
        TrainingCost.model_validate(claim)


def test_a_loss_that_cannot_be_shown_is_left_out_and_the_last_one_before_stands_in(final):
    for loss, told in [(math.nan, None), (math.inf, None), (1e4, "10000 nats")]:
        rewrite_lineage(final, training=TrainingRecord(validation_loss=loss))
        assert ("validation" in show(final)) == (told is not None)
        assert (told or "") in words(show(final))
        assert read_facts(final).validation_loss == (1e4 if told else None)
    rewrite_lineage(final, training=TrainingRecord(losses=[(5, 2.5), (10, 2.25)]))
    assert read_facts(final).validation_loss == 2.25
