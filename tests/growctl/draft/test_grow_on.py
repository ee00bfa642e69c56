"""A schedule drafted from a checkpoint grows it as wished, trains it gently, and names its honest opponents."""

from pathlib import Path
from typing import Any

import pytest

from growctl.draft.fit import drafted
from growctl.draft.grow_on import GrowWish
from growctl.ladder.load import load_schedule
from model.decoder_config import decoder_config
from model.errors import UserError
from model.shapes import ModelConfig, num_parameters
from model.tokenformer_config import tokenformer_config
from stages.checkpoint.lineage import Lineage, TrainingCost, extended
from tests.growctl.bases import COST, change_manifest
from tests.growctl.schedules import file_of
from tests.pretrained import write_pretrained
from tests.stages.checkpoints import write_checkpoint

SHAPE: dict[str, Any] = {"vocab_size": 300, "hidden_size": 64, "num_heads": 4, "num_layers": 3}
PLAIN = dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias", "tie_embeddings"), False)
BASES: dict[str, ModelConfig] = {
    "tokenformer": tokenformer_config(attention_tokens=16, ffn_tokens=48, **SHAPE),
    "decoder": decoder_config(ffn_tokens=176, norm="rmsnorm", activation="swiglu", num_kv_heads=2, **PLAIN, **SHAPE),
}


def write_known(directory: Path, config: ModelConfig, cost: TrainingCost | None) -> Path:
    """A checkpoint with a tokenizer, trained at that cost; None: imported."""
    write_pretrained(directory, config)
    if cost is not None:
        history = extended((), "train", {}, num_parameters=num_parameters(config), cost=cost)
        change_manifest(directory, lineage=Lineage(operation="train", history=history))
    return directory


@pytest.mark.parametrize(
    ("family", "params", "stage"),
    [
        ("tokenformer", "2x", {"attention_tokens": 39, "ffn_tokens": 118}),
        ("decoder", "2x", {"num_layers": 7}),
        ("decoder", "180k", {"ffn_tokens": 182}),
    ],
)
@pytest.mark.parametrize("cost", [COST, None])
def test_a_checkpoint_grows_to_the_wanted_size_below_its_peak_against_itself(tmp_path, family, params, stage, cost):
    base = write_known(tmp_path / "base", BASES[family], cost)
    wish = GrowWish(start=str(base), params=params, tokens=2_000_000, data="python-stdlib", replay="wikitext")
    draft, text, _ = drafted(wish, "grown", tmp_path)
    schedule = load_schedule(file_of(tmp_path, text, "grown.yaml"))
    assert {key: getattr(schedule.stages[0], key) for key in stage} == stage
    wanted = 2 * draft.base.num_parameters if params == "2x" else 180_000
    assert draft.num_parameters == pytest.approx(wanted, rel=0.06)
    scratch = [f"{family}-scratch"] if cost else []
    assert [control.kind for control in schedule.controls] == ["ungrown", *scratch]
    assert [source.weight for source in schedule.data.mixture] == [0.95, 0.05]
    assert schedule.learning_rate.warmup_steps >= 10
    assert schedule.optimizer.name == "adamw"


def test_a_draft_takes_half_the_peak_of_the_run_that_trained_its_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "trained"
    final = write_known(run / "stages" / "0-base" / "final", BASES["decoder"], COST)
    (run / "schedule.yaml").write_text("learning_rate: {peak: 0.003}\n")
    wish = GrowWish(start=str(final), params="1.5x", tokens=2_000_000, data="python-stdlib")
    text = drafted(wish, "grown", tmp_path)[1]
    assert "peak: 0.0015" in text
    assert "0.5 of the checkpoint's" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"params": "1x"}, r"--params 1x: must be above the .* of .*base, or 2x"),
        ({"tokens": 10_000}, r"--tokens 10k: only \d+ steps of .* must be about"),
        ({"data": None}, "--data is missing"),
        ({"start": "nowhere"}, "nowhere is neither a path nor a run"),
        ({"start": "bare"}, "bare: has no tokenizer; give a dataset that was prepared with its own"),
    ],
)
def test_a_wish_that_cannot_be_drafted_is_one_clear_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_pretrained(tmp_path / "base", BASES["decoder"])
    write_checkpoint(tmp_path / "bare", BASES["decoder"])
    wish: dict[str, Any] = {
        "start": str(tmp_path / "base"),
        "params": "2x",
        "tokens": 2_000_000,
        "data": "python-stdlib",
    }
    wish |= {key: str(tmp_path / value) if key == "start" else value for key, value in changes.items()}
    with pytest.raises(UserError, match=message):
        drafted(GrowWish(**wish), "grown", tmp_path)
