"""The tokenizer that the texts of a mixture share: trained once, on the train splits of all of them.

    <datasets_dir>/.tokenizer-<key>.json

Every text gives an equal part, whatever its weight: other weights then keep the tokenizer, and with it the prepared
sources and the meaning of a loss. The key is a hash of what determines the tokenizer. Each source's dataset has a copy.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError
from tokenizers import Tokenizer

from model.strict import Strict
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import write_file
from stages.data.build import SHARD_BYTES
from stages.data.corpus import Corpus, DataSpec, open_corpus
from stages.data.locked_dataset import locked
from stages.data.prepare import CHOICE_VERSION, remembered_hashes
from stages.data.progress import Progress
from stages.data.source_errors import Unreadable
from stages.data.source_hashes import SourceHashes
from stages.data.tokenizer import TrainingText, train_tokenizer

Naming = Callable[[int], AbstractContextManager[None]]
"""Opened with the number of a text while it is read, so that it can name the text in errors."""


class _Settings(Strict):
    """What determines the tokenizer besides the content of the texts."""

    choice_version: int = CHOICE_VERSION
    shared_tokenizer: str
    vocab_size: int | None
    end_of_text: str
    validation_fraction: float

    @classmethod
    def of(cls, spec: DataSpec) -> "_Settings":
        names = cls.model_fields.keys() - {"choice_version"}
        return cls(**spec.model_dump(include=set(names)))


class _Record(Strict):
    """The file of a tokenizer."""

    settings: _Settings
    sources: tuple[str, ...]
    """The hash of each text, sorted."""
    tokenizer: str
    tokenizer_sha256: str


class _Text(NamedTuple):
    corpus: Corpus
    hashes: SourceHashes
    sha256: str


def shared_tokenizer(
    specs: Sequence[DataSpec],
    datasets_dir: Path,
    naming: Naming,
    progress: Progress,
    tell: Callable[[str], None] = lambda line: None,
) -> Tokenizer:
    """The tokenizer trained on the texts of `specs`, which have one `shared_tokenizer`; trains it, or finds it.

    A second process that needs it waits for the first. A damaged file is replaced. If a text cannot be opened, the
    newest tokenizer that was trained with the same settings is enough; `tell` gets a line that says so. Raises
    DataError for a text that cannot be read, DiskFull if the disk is full; nothing has been written then.
    """
    with raise_when_full(datasets_dir):
        try:
            texts = [_opened(number, spec, datasets_dir, naming, progress) for number, spec in enumerate(specs)]
        except Unreadable as error:
            if earlier := _newest(specs[0], datasets_dir):
                path, tokenizer = earlier
                tell(f"{path} was trained with these settings and is used; its texts could not be compared: {error}")
                return tokenizer
            raise
        settings = _Settings.of(specs[0])
        sources = sorted(text.sha256 for text in texts)
        key = hashlib.sha256(json.dumps([settings.model_dump(), sources]).encode()).hexdigest()[:12]
        path = datasets_dir / f".tokenizer-{key}.json"
        if found := _read(path):
            return Tokenizer.from_str(found.tokenizer)
        datasets_dir.mkdir(parents=True, exist_ok=True)
        with locked(datasets_dir / f"tokenizer-{key}", progress):
            if found := _read(path):
                return Tokenizer.from_str(found.tokenizer)
            if path.exists():
                progress.say(f"{path} is damaged; training the tokenizer again")
            content = _trained(texts, naming, progress).to_str()
            record = _Record(
                settings=settings,
                sources=tuple(sources),
                tokenizer=content,
                tokenizer_sha256=_sha256(content),
            )
            write_file(path, record.model_dump_json().encode())
            for text in texts:
                text.hashes.save()
            return Tokenizer.from_str(content)


def _opened(number: int, spec: DataSpec, datasets_dir: Path, naming: Naming, progress: Progress) -> _Text:
    with naming(number):
        corpus = open_corpus(spec.in_one_spelling())
        hashes = remembered_hashes(corpus, datasets_dir)
        advance = progress.meter("reading the source", corpus.num_bytes).advance
        return _Text(corpus, hashes, corpus.sha256(corpus.contents(hashes, advance)))


def _trained(texts: Sequence[_Text], naming: Naming, progress: Progress) -> Tokenizer:
    """The tokenizer, which does not depend on the order of the texts."""
    parts = []
    for number, text in sorted(enumerate(texts), key=lambda numbered: numbered[1].sha256):
        with naming(number):
            text.corpus.check_separator()
        parts.append(TrainingText(text.corpus, text.corpus.shards(SHARD_BYTES), partial(naming, number)))
    return train_tokenizer(parts, progress)


def _newest(spec: DataSpec, datasets_dir: Path) -> tuple[Path, Tokenizer] | None:
    """The newest tokenizer that was trained with the settings of `spec`, and its file."""
    settings = _Settings.of(spec)
    for path in sorted(datasets_dir.glob(".tokenizer-*.json"), key=lambda path: -path.stat().st_mtime):
        record = _read(path)
        if record and record.settings == settings:
            return path, Tokenizer.from_str(record.tokenizer)
    return None


def _read(path: Path) -> _Record | None:
    """The record in a file; None if it is missing or damaged."""
    with suppress(OSError, ValidationError):
        record = _Record.model_validate_json(path.read_bytes())
        return record if _sha256(record.tokenizer) == record.tokenizer_sha256 else None
    return None


def _sha256(tokenizer: str) -> str:
    return hashlib.sha256(tokenizer.encode()).hexdigest()
