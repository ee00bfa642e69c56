"""Losses at several contexts: on the same tokens, by position, with the scaling that each length needs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from model.errors import UserError
from stages.checkpoint.pretrained import Pretrained, load_pretrained
from stages.evaluate import long_context
from stages.evaluate.long_context import context_losses
from stages.evaluate.results import positions_of
from stages.evaluate.text import text_loss
from tests.pretrained import text_config, write_pretrained

TEXT = "the hen is in the barn, and the barn is in the fen. " * 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Pretrained:
    directory = tmp_path_factory.mktemp("checkpoint") / "final"
    write_pretrained(directory, text_config(width=32, num_heads=2))
    opened = load_pretrained(directory)
    with torch.no_grad():
        for parameter in opened.model.parameters():
            parameter.mul_(4)  # so that positions matter
    return opened


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def losses(checkpoint: Pretrained, text: Path, *contexts: int, **changes: Any) -> dict[int, dict[str, Any]]:
    settings: dict[str, Any] = {"kind": None, "trained_length": 32, "max_tokens": 10**6} | changes
    scores = list(context_losses(checkpoint, [text], contexts, **settings))
    return {
        context: {score.metric: score for score in scores if score.task == f"context-{context}"} for context in contexts
    }


def test_each_context_has_the_loss_of_plain_evaluation_on_the_same_tokens(checkpoint: Pretrained, text: Path):
    for context, found in losses(checkpoint, text, 16, 32, 128).items():
        plain = next(iter(text_loss(checkpoint, [text], context=context, stride=context, batch_size=4)))
        assert plain.metric == "loss"
        assert found["loss"].num_samples == plain.num_samples
        assert found["loss"].value == pytest.approx(plain.value, abs=1e-5)
        parts = [score.num_samples for metric, score in found.items() if positions_of(metric)]
        assert sum(parts) == plain.num_samples
        assert found["seconds_per_token"].value > 0
        assert found["bytes_per_token"].value is None  # known on a GPU only


def test_only_contexts_beyond_training_are_scaled_by_how_much_longer_they_are(checkpoint: Pretrained, text: Path):
    plain, scaled = (losses(checkpoint, text, 32, 128, kind=kind) for kind in (None, "yarn"))
    assert scaled[32]["loss"].value == plain[32]["loss"].value
    assert abs(scaled[128]["loss"].value - plain[128]["loss"].value) > 1e-4


def test_a_batch_of_the_longest_context_comes_before_all_measurements(
    checkpoint: Pretrained, text: Path, monkeypatch: pytest.MonkeyPatch
):
    steps: list[int | str] = []
    hidden_states = checkpoint.model.hidden_states
    monkeypatch.setattr(long_context, "wait_for", lambda device: steps.append("wait"))

    def spy(input_BT: torch.Tensor, *rest: Any, **settings: Any) -> torch.Tensor:
        steps.append(input_BT.shape[1])
        return hidden_states(input_BT, *rest, **settings)

    monkeypatch.setattr(checkpoint.model, "hidden_states", spy)
    losses(checkpoint, text, 16, 128, max_tokens=129)
    assert steps == [128, "wait", 16, "wait", "wait", 128, "wait"]


def test_the_first_tokens_are_enough_if_asked_and_what_cannot_be_measured_is_refused(
    checkpoint: Pretrained, text: Path, tmp_path: Path
):
    found = losses(checkpoint, text, 16, 64, max_tokens=100)
    assert [scores["loss"].num_samples for scores in found.values()] == [99, 99]
    with pytest.raises(UserError, match=r"has 1,\d\d\d tokens; a context of 4,096 needs 4,097"):
        losses(checkpoint, text, 32, 4096)
    write_pretrained(tmp_path / "final", text_config(rotary_fraction=0.0))
    with pytest.raises(UserError, match=r"--rope-scaling ntk: .* has no rotary embedding to scale"):
        losses(load_pretrained(tmp_path / "final"), text, 64, kind="ntk")
