"""Chooses the text of a draft: a shipped data choice, or what the user names."""

import glob
import json
import math
import os
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from growctl.draft.sizes import NEOX_VOCABULARY, Shape, Vocabularies
from growctl.ladder.datasets import ENOUGH_DOCUMENTS, ENOUGH_TOKENS
from growctl.ladder.warnings import MOST_EPOCHS
from growctl.schedule.errors import shown
from growctl.schedule.fields import parse_count
from growctl.schedule.files import SHIPPED, choices
from growctl.text.formatting import byte_count, short_count
from growctl.text.suggestion import did_you_mean
from model.errors import UserError
from stages.corpus.files import kind_of
from stages.corpus.location import nearest_beside
from stages.corpus.prepared import given_dataset
from stages.counted import counted
from stages.data.dataset import read_dataset_manifest
from stages.data.spec import SPLITS, DataSpec

if TYPE_CHECKING:
    from stages.corpus.corpus import TextSize

BY_SIZE = ("python-stdlib", "wikitext", "pile")
"""The shipped choices that a draft picks from, from the smallest on. The last one is large enough for all."""

FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Shares of the documents for validation, of which a draft takes the first that is enough to evaluate on."""
_PIECES = ": pieces of the file of 16 KiB, unless document_separator says what lies between two documents"
ROUGHLY = 0.2
"""By how much an estimate of tokens may be wrong."""

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

    size: "TextSize | None" = None
    """The size of a local text of the user's."""

    def block(self, shape: Shape) -> str:
        """The lines of the `data` block for a model of that shape. Raises UserError for a text without two splits."""
        if self.vocabularies.given:
            return self.text
        if self.vocabularies.of(shape) == NEOX_VOCABULARY:
            return f"{self.text}tokenizer: EleutherAI/gpt-neox-20b\n"
        entries = self.vocabularies.of(shape)
        text = f"{self.text}vocab_size: {entries}  # a byte-level BPE, trained on this text\n"
        return text if self.size is None else text + splits(self.source, self.size, entries)


@cache
def splits(source: str, size: "TextSize", entries: int) -> str:
    """The lines for the validation split and the number of tokens: enough documents and tokens to evaluate on, if the
    smaller of two splits may be large enough for that."""
    from stages.corpus.tokenizer import bytes_per_token  # slow

    per_token = bytes_per_token(size.sample, DataSpec(source=source, vocab_size=entries)) or 1.0

    def is_enough(fraction: float) -> bool:
        num_documents, num_bytes = size.split("validation", fraction)
        return num_documents >= ENOUGH_DOCUMENTS and num_bytes / per_token >= ENOUGH_TOKENS * (1 + ROUGHLY)

    def is_split(fraction: float) -> bool:
        return all(size.split(split, fraction)[0] for split in SPLITS)

    fraction = next(filter(is_enough, FRACTIONS), None) or next(filter(is_split, (FRACTIONS[-1], 0.5)), None)
    if fraction is None:
        raise UserError(
            f"--data {shown(source)}: has {counted(len(size.documents), 'document')}, and training and validation need "
            "different ones; use more text, or name a single text file itself, which is cut every 16 KiB"
        )
    is_cut = Path(source).is_file() and kind_of(source) == "text"
    about = "" if size.share == 1 else "about "
    documents, num_bytes = zip(*(size.split(split, fraction) for split in SPLITS), strict=True)
    train, validation = (short_count(round(each / per_token)) for each in num_bytes)
    return (
        f"# {about}{counted(sum(documents), 'document')}{_PIECES if is_cut else ''}\n"
        f"validation_fraction: {fraction}  # {about}{counted(documents[1], 'document')}, about {validation} tokens\n"
        f"approximate_tokens: {train}  # for training, estimated from {byte_count(num_bytes[0])}\n"
    )


def text_source(name: str) -> TextSource:
    """The text called `name`, as in `--data`. Raises UserError for a name that stands for nothing."""
    known = choices("data", [SHIPPED])
    if name in known:
        return _shipped(name)
    if "://" in name:
        return _own(name, "")
    folder = Path(name).expanduser()
    if os.path.exists(folder) or (glob.has_magic(name) and glob.glob(name)):
        source = os.path.abspath(folder)  # the schedule's file may lie in another folder
        if dataset := given_dataset(DataSpec(source=source)):
            comment = "# A prepared dataset, which has its tokenizer.\n"
            return _own(source, comment, read_dataset_manifest(dataset).vocab_size)
        from stages.corpus.corpus import measure_text  # slow

        return replace(_own(source, ""), size=measure_text(DataSpec(source=source)))
    if _HUB_NAME.fullmatch(name):
        comment = "# From the Hugging Face hub. data.include chooses its files; see docs/your-data.md.\n"
        return _own(f"hf://datasets/{name}", comment)
    beside = filter(None, [nearest_beside(name)])
    raise UserError(
        f"--data {shown(name)}: there is no such file; give a path, a URL (s3://..., hf://datasets/...), OWNER/NAME on "
        f"the Hugging Face hub, or one of {', '.join(known)}{did_you_mean(name, [*known, *beside])}"
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
