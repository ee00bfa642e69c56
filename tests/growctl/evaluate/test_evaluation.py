"""How much of a text `growctl eval` computes at once, and on how many threads."""

from pathlib import Path
from typing import Any

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
    threads: list[int] = []

    def text_loss(*_: Any, **settings: Any) -> Any:
        batches.append(settings["batch_size"])
        yield from ()

    batches: list[int] = []
    monkeypatch.setattr("stages.evaluate.text.text_loss", text_loss)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    opened = load_pretrained(tmp_path / "final")
    Evaluator(opened, None, context, batch_size, lambda fraction: None).on_text([tmp_path], None)
    assert (batches, threads) == ([at_once], [1])
