"""A dataset's tokenizer: given, trained on its train split, or trained on those of all texts of a mixture.

    <datasets_dir>/.tokenizer-<key>.json    one that the texts of a mixture share

To a shared one, every text gives an equal part, whatever its weight: other weights then keep the tokenizer, and with it
the prepared sources and the meaning of a loss. The key is a hash of what determines the tokenizer. Each source's
dataset has a copy.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from model.strict import Strict
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import write_file
from stages.corpus.corpus import CHOICE_VERSION, Corpus, open_corpus
from stages.corpus.files import SourceHashes
from stages.corpus.location import download_tokenizer, in_one_spelling, tokenizer_file
from stages.corpus.prepared import locked
from stages.corpus.tasks import Progress
from stages.data.errors import DataError, Unreadable, reason
from stages.data.spec import DEFAULT_VOCAB_SIZE, DataSpec

TOKENIZER_SAMPLE_BYTES = 256 * 1024 * 1024
"""The most text that a tokenizer is trained on, in equal parts from the start of every shard of a text."""

Naming = Callable[[int], AbstractContextManager[None]]
"""Opened with the number of a text while it is read, so that it can name the text in errors."""


def given_tokenizer(spec: DataSpec) -> Tokenizer:
    """The tokenizer that the spec names, with truncation and padding turned off. Raises DataError if it is unusable."""
    assert spec.tokenizer is not None
    path = tokenizer_file(spec) or download_tokenizer(spec.tokenizer)
    return read_tokenizer(path, spec.end_of_text, spec.tokenizer, keys=("data.tokenizer", "data.end_of_text"))


def open_tokenizer(path: Path, what: str | None = None) -> Tokenizer:
    """The tokenizer in a file, which messages call `what`. Raises DataError if it is none."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exceptions
        raise DataError(f"{what or path} is not a tokenizer.json ({reason(error)})") from error


def read_tokenizer(path: Path, end_of_text: str, name: str, keys: tuple[str, str]) -> Tokenizer:
    """The tokenizer in the file `path`, with truncation and padding turned off. Raises DataError if it is unusable.

    Messages call it `name`; `keys` are the settings that gave the tokenizer and the end of text.
    """
    tokenizer = open_tokenizer(path, f"{keys[0]}: {name!r}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if tokenizer.token_to_id(end_of_text) is None:
        special = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)
        raise DataError(
            f"{keys[1]}: the tokenizer {name!r} has no token {end_of_text!r};"
            f" its special tokens are {', '.join(special) or 'none'}"
        )
    return tokenizer


def tokenizer_content(tokenizer: Tokenizer) -> bytes:
    """The content of the file that a dataset has of its tokenizer."""
    return tokenizer.to_str(pretty=True).encode()


def train_tokenizer(
    corpora: Sequence[Corpus], progress: Progress, naming: Naming = lambda number: nullcontext()
) -> Tokenizer:
    """A byte-level BPE trained on the train splits of texts with equal settings. It encodes any text without loss.

    Every text gives an equal part of `TOKENIZER_SAMPLE_BYTES`, or all of its own if that is less.
    """
    most = TOKENIZER_SAMPLE_BYTES // len(corpora)
    meter = progress.meter("training the tokenizer", sum(min(corpus.num_bytes, most) for corpus in corpora))

    def texts() -> Iterator[str]:
        for number, corpus in enumerate(corpora):
            skipped, shards = corpus.skipped(), corpus.shards()
            with naming(number):
                for files in shards:
                    left = most // len(shards)
                    for document in corpus.documents(files, "train", meter.advance, skipped):
                        yield document.text
                        left -= len(document.text)
                        if left <= 0:
                            break

    spec = corpora[0].spec
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size or DEFAULT_VOCAB_SIZE,
        special_tokens=[spec.end_of_text],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


class _Settings(Strict):
    """What determines a shared tokenizer besides the content of the texts."""

    choice_version: int = CHOICE_VERSION
    shared_tokenizer: str
    vocab_size: int | None
    end_of_text: str
    validation_fraction: float


class _Record(Strict):
    """The file of a shared tokenizer."""

    settings: _Settings
    sources: tuple[str, ...]
    """The hash of each text, sorted."""
    tokenizer: str
    tokenizer_sha256: str


class _Text(NamedTuple):
    sha256: str
    number: int
    """Its place in the mixture."""
    corpus: Corpus
    hashes: SourceHashes


def shared_tokenizer(
    specs: Sequence[DataSpec],
    datasets_dir: Path,
    naming: Naming,
    progress: Progress,
    tell: Callable[[str], None] = lambda line: None,
) -> Tokenizer:
    """The tokenizer trained on the texts of `specs`, which have one `shared_tokenizer`; trains it, or finds it.

    It does not depend on the order of the texts. A second process that needs it waits for the first. A damaged file is
    replaced. If a text cannot be opened, the newest tokenizer that was trained with the same settings is enough; `tell`
    gets a line that says so. Raises DataError for a text that cannot be read, DiskFull if the disk is full; nothing has
    been written then.
    """
    settings = _Settings(**specs[0].model_dump(include=set(_Settings.model_fields)))
    with raise_when_full(datasets_dir):
        try:
            texts = sorted(_opened(number, spec, datasets_dir, naming, progress) for number, spec in enumerate(specs))
        except Unreadable as error:
            for path in sorted(datasets_dir.glob(".tokenizer-*.json"), key=lambda path: -path.stat().st_mtime):
                if (record := _read(path)) and record.settings == settings:
                    tell(
                        f"{path} was trained with these settings and is used; its texts could not be compared: {error}"
                    )
                    return Tokenizer.from_str(record.tokenizer)
            raise
        sources = [text.sha256 for text in texts]
        key = hashlib.sha256(json.dumps([settings.model_dump(), sources]).encode()).hexdigest()[:12]
        path = datasets_dir / f".tokenizer-{key}.json"
        if record := _read(path):
            return Tokenizer.from_str(record.tokenizer)
        datasets_dir.mkdir(parents=True, exist_ok=True)
        with locked(datasets_dir / f"tokenizer-{key}", progress):
            if record := _read(path):
                return Tokenizer.from_str(record.tokenizer)
            if path.exists():
                progress.say(f"{path} is damaged; training the tokenizer again")
            for text in texts:
                with naming(text.number):
                    text.corpus.check_separator()
            corpora = [text.corpus for text in texts]
            content = train_tokenizer(corpora, progress, lambda place: naming(texts[place].number)).to_str()
            record = _Record(
                settings=settings, sources=tuple(sources), tokenizer=content, tokenizer_sha256=_sha256(content)
            )
            write_file(path, record.model_dump_json().encode())
            for text in texts:
                text.hashes.save()
            return Tokenizer.from_str(content)


def _opened(number: int, spec: DataSpec, datasets_dir: Path, naming: Naming, progress: Progress) -> _Text:
    with naming(number):
        corpus = open_corpus(in_one_spelling(spec))
        hashes = corpus.remembered_hashes(datasets_dir)
        advance = progress.meter("reading the source", corpus.num_bytes).advance
        return _Text(corpus.sha256(corpus.contents(hashes, advance)), number, corpus, hashes)


def _read(path: Path) -> _Record | None:
    """The record in a file; None if it is missing or damaged."""
    with suppress(OSError, ValidationError):
        record = _Record.model_validate_json(path.read_bytes())
        return record if _sha256(record.tokenizer) == record.tokenizer_sha256 else None
    return None


def _sha256(tokenizer: str) -> str:
    return hashlib.sha256(tokenizer.encode()).hexdigest()
