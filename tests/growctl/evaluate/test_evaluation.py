"""How much of a text `growctl eval` computes at once, and on how many threads."""

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from growctl.evaluate.evaluation import Evaluator
from stages.checkpoint.pretrained import load_pretrained
from tests.pretrained import write_pretrained


@pytest.mark.parametrize(
    ("context", "batch_size", "at_once"), [(64, None, 128), (1024, None, 8), (4096, None, 8), (64, 3, 3)]
)
def test_short_windows_are_batched_by_tokens_and_small_models_use_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: int, batch_size: int | None, at_once: int
):
    write_pretrained(tmp_path / "final")
    text_loss, threads = Mock(return_value=iter(())), Mock()
    monkeypatch.setattr("stages.evaluate.text.text_loss", text_loss)
    monkeypatch.setattr(torch, "set_num_threads", threads)
    opened = load_pretrained(tmp_path / "final")
    Evaluator(opened, None, context, batch_size, lambda fraction: None).on_text([tmp_path], None)
    assert text_loss.call_args.kwargs["batch_size"] == at_once
    threads.assert_called_once_with(1)
