"""A small valid schedule for tests, changed at dotted paths, and growctl's errors for it."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from growctl.ladder.load import parse_schedule
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError

BASE: dict[str, Any] = {
    "seed": 3,
    "data": {"source": "python-stdlib", "vocab_size": 300, "validation_fraction": 0.1},
    "model": {"family": "tokenformer", "num_layers": 2, "hidden_size": 32, "num_heads": 2, "rotary_fraction": 0.25},
    "stages": [
        {"name": "small", "attention_tokens": 4, "ffn_tokens": 8, "train_tokens": "2k"},
        {"name": "large", "attention_tokens": 6, "ffn_tokens": 8, "train_steps": 20},
    ],
    "training": {"sequence_length": 16, "batch_size": 8},
    "learning_rate": {"peak": 1e-3, "final": 0.0, "warmup_steps": 2},
    "optimizer": {"betas": [0.9, 0.95]},
    "evaluation": {"every": 10},
    "checkpoint": {"every": 10},
    "growth": {"ramp": 0.1},
    "controls": [{"kind": "tokenformer-scratch", "budgets": [0.5, 1.0]}, {"kind": "decoder-scratch"}],
    "launch": {"devices": 1, "zero_stage": 1, "micro_batch_size": 4},
}
TEXT = OmegaConf.to_yaml(OmegaConf.create(BASE))

NEEDS_A_RUN = ["quickstart_grow_on"]
"""Shipped schedules that start from a run, which must be there before they load."""

DELETE = object()


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """BASE with values set, or deleted, at dotted paths."""
    data = copy.deepcopy(BASE)
    for path, value in changes.items():
        keys: list[Any] = [int(part) if part.isdigit() else part for part in path.split(".")]
        *parents, last = keys
        node: Any = data
        for part in parents:
            node = node[part] if isinstance(node, list) else node.setdefault(part, {})
        if value is DELETE:
            del node[last]
        else:
            node[last] = copy.deepcopy(value)  # later changes may lead into it
    return data


def parse(data: Any) -> Schedule:
    return parse_schedule(data, label="s.yaml", default_name="s")


def message_of(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(ScheduleError) as caught:
        call(*arguments)
    return str(caught.value)


def paths_of(call: Callable[..., Any], *arguments: Any) -> str:
    """The dotted paths of the problems that growctl reports, separated by spaces."""
    first, *lines = message_of(call, *arguments).splitlines()
    return " ".join(re.split(r": | = ", line.strip())[0] for line in lines or [first.partition(": ")[2]])


def file_of(folder: Path, content: str | bytes, name: str = "s.yaml") -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def text_of(folder: Path, documents: int, words: int) -> Path:
    """A folder with that many documents, all different."""
    folder.mkdir(exist_ok=True)
    for number in range(documents):
        (folder / f"{number}.txt").write_text(" ".join(f"{number * words + word:x}" for word in range(words)))
    return folder
