"""Chooses the text of a draft: a shipped data choice, or what the user names."""

import glob
import json
import math
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from growctl.draft.sizes import NEOX_VOCABULARY, Shape, Vocabularies
from growctl.ladder.warnings import MOST_EPOCHS
from growctl.schedule.errors import shown
from growctl.schedule.fields import parse_count
from growctl.schedule.files import SHIPPED, choices
from growctl.text.suggestion import did_you_mean
from model.errors import UserError
from stages.corpus.prepared import given_dataset
from stages.data.dataset import read_dataset_manifest
from stages.data.spec import DataSpec

BY_SIZE = ("python-stdlib", "wikitext", "pile")
"""The shipped choices that a draft picks from, from the smallest on. The last one is large enough for all."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_OWN_VOCABULARY = re.compile(r"^(tokenizer|vocab_size):.*$", re.MULTILINE)


@dataclass(frozen=True)
class TextSource:
    """The text of a draft."""

    source: str
    """The value of `data.source`."""

    text: str
    """The lines of the `data` block, without the tokenizer."""

    vocabularies: Vocabularies
    """How many tokens its tokenizer has, by shape."""

    lasts: float = math.inf
    """The most data tokens that a run should read of it: no more than `MOST_EPOCHS` times all."""

    def block(self, shape: Shape) -> str:
        """The lines of the `data` block for a model of that shape."""
        if self.vocabularies.given:
            return self.text
        if self.vocabularies.of(shape) == NEOX_VOCABULARY:
            return f"{self.text}tokenizer: EleutherAI/gpt-neox-20b\n"
        return f"{self.text}vocab_size: {self.vocabularies.of(shape)}  # a byte-level BPE, trained on this text\n"


def text_source(name: str) -> TextSource:
    """The text called `name`, as in `--data`. Raises UserError for a name that stands for nothing."""
    known = choices("data", [SHIPPED])
    if name in known:
        return _shipped(name)
    if "://" in name:
        return _own(name, "")
    folder = Path(name).expanduser()
    if folder.exists() or (glob.has_magic(name) and glob.glob(name)):
        source = os.path.abspath(folder)  # the schedule's file may lie in another folder
        if dataset := given_dataset(DataSpec(source=source)):
            comment = "# A prepared dataset, which has its tokenizer.\n"
            return _own(source, comment, read_dataset_manifest(dataset).vocab_size)
        return _own(source, "")
    if _HUB_NAME.fullmatch(name):
        comment = "# From the Hugging Face hub. data.include chooses its files; see docs/data.md.\n"
        return _own(f"hf://datasets/{name}", comment)
    raise UserError(
        f"--data {shown(name)}: there is no such file; give a path, a URL (s3://..., hf://datasets/...), OWNER/NAME on "
        f"the Hugging Face hub, or one of {', '.join(known)}{did_you_mean(name, known)}"
    )


def _own(source: str, comment: str, entries: int | None = None) -> TextSource:
    quoted = json.dumps(source.replace("${", "\\${"), ensure_ascii=False)
    return TextSource(source, f"{comment}source: {quoted}\n", Vocabularies(given=entries))


def _shipped(choice: str) -> TextSource:
    """The lines of the choice's own file, comments included."""
    keys = _keys(choice)
    text = _OWN_VOCABULARY.sub("", _file(choice).read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line]
    vocabularies = Vocabularies(published="tokenizer" in keys, most=keys.get("vocab_size"))
    lasts = MOST_EPOCHS * parse_count(keys["approximate_tokens"]) if choice in BY_SIZE[:-1] else math.inf
    return TextSource(keys["source"], "".join(f"{line}\n" for line in lines), vocabularies, lasts)


@cache
def _keys(choice: str) -> Any:
    return yaml.safe_load(_file(choice).read_text(encoding="utf-8"))


def _file(choice: str) -> Path:
    return SHIPPED / "data" / f"{choice}.yaml"
