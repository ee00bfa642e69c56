"""A small ladder on a mixture of two texts, with the tokenizer of tests/pretrained.py."""

from pathlib import Path
from typing import Any

import yaml

from tests.pretrained import byte_tokenizer

SCHEDULE: dict[str, Any] = {
    "data": {"validation_fraction": 0.2},
    "model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "vocab_size": 261},
    "stages": [
        {"name": "a", "attention_tokens": 2, "ffn_tokens": 4, "train_steps": 6},
        {"name": "b", "attention_tokens": 4, "ffn_tokens": 8, "train_steps": 6, "mixture": {"books": 1, "code": 0}},
        {"name": "c", "attention_tokens": 6, "ffn_tokens": 12, "train_steps": 8, "mixture": {"books": 1, "code": 3}},
    ],
    "training": {"sequence_length": 16, "batch_size": 4, "log_every": 1},
    "learning_rate": {"peak": 1e-3, "warmup_steps": 2},
    "evaluation": {"every": 4, "max_sequences": 8},
    "checkpoint": {"every": 2},
    "controls": [{"kind": "tokenformer-scratch"}],
    "launch": {"devices": 1},
}


def write_texts(folder: Path) -> None:
    """Two texts of different sizes and the tokenizer, in `folder`."""
    for name, num_files in (("books", 40), ("code", 30)):
        (folder / name).mkdir(parents=True)
        for number in range(num_files):
            (folder / name / f"{number:02}.txt").write_text(f"{name} {number}: " + f"the {name} of {number}; " * 12)
    byte_tokenizer().save(str(folder / "tokenizer.json"))


def mixed_schedule(folder: Path, **blocks: Any) -> dict[str, Any]:
    """The schedule as plain data; its texts and tokenizer are in `folder`."""
    sources = [
        {"name": "books", "source": str(folder / "books"), "weight": 3},
        {"name": "code", "source": str(folder / "code"), "weight": 1},
    ]
    data = SCHEDULE["data"] | {"tokenizer": str(folder / "tokenizer.json"), "mixture": sources}
    return SCHEDULE | {"data": data} | blocks


def write_schedule(folder: Path, **blocks: Any) -> Path:
    """`mixed_schedule` as the file mixed.yaml in `folder`."""
    path = folder / "mixed.yaml"
    path.write_text(yaml.safe_dump(mixed_schedule(folder, **blocks)))
    return path
