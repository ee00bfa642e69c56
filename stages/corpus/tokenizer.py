"""A dataset's tokenizer: given, trained on its train split, or trained on those of all texts of a mixture.

    <datasets_dir>/.tokenizer-<key>.json    one that the texts of a mixture share

To a shared one, every text gives an equal part, whatever its weight: other weights then keep the tokenizer, and with it
the prepared sources and the meaning of a loss. The key is a hash of what determines the tokenizer. Each source's
dataset has a copy.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import write_file
from stages.corpus.corpus import CHOICE_VERSION, Corpus, Skipped, open_corpus
from stages.corpus.location import download_tokenizer, in_one_spelling, tokenizer_file
from stages.corpus.prepared import locked, prepared_datasets
from stages.corpus.tasks import Progress
from stages.data.errors import DataError, Unreadable, reason
from stages.data.spec import DEFAULT_VOCAB_SIZE, DataSpec
from stages.stage_dir import TOKENIZER_NAME

TOKENIZER_SAMPLE_BYTES = 256 * 1024 * 1024
"""The most text that a tokenizer is trained on, in equal parts from the start of every shard of a text."""

Naming = Callable[[int], AbstractContextManager[None]]
"""Opened with the number of a text while it is read, so that it can name the text in errors."""


def given_tokenizer(spec: DataSpec) -> Tokenizer:
    """The tokenizer that the spec names, with truncation and padding turned off. Raises DataError if it is unusable."""
    assert spec.tokenizer is not None
    path = tokenizer_file(spec) or download_tokenizer(spec.tokenizer)
    tokens = {"data.end_of_text": spec.end_of_text, "data.begin_of_text": spec.begin_of_text}
    return read_tokenizer(path, "data.tokenizer", tokens)


def open_tokenizer(path: Path, key: str = "") -> Tokenizer:
    """The tokenizer in a file, which the setting `key` gave. Raises DataError if it is none."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exceptions
        raise DataError(f"{key and f'{key}: '}{path} is not a tokenizer.json ({reason(error)})") from error


def read_tokenizer(path: Path, key: str, tokens: Mapping[str, str | None]) -> Tokenizer:
    """The tokenizer in the file `path`, with truncation and padding turned off. Raises DataError if it is unusable.

    `key` is the setting that gave the tokenizer; `tokens` are those that it must have, by the setting that gave each.
    """
    tokenizer = open_tokenizer(path, key)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for token_key, token in tokens.items():
        if token is not None and tokenizer.token_to_id(token) is None:
            special = sorted(each.content for each in tokenizer.get_added_tokens_decoder().values() if each.special)
            raise DataError(
                f"{token_key}: the tokenizer {path} has no token {token!r}; its special tokens are"
                f" {', '.join(special) or 'none'}"
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
            skipped, shards = Skipped(corpus.spec), corpus.shards()
            with naming(number):
                for files in shards:
                    left = most // len(shards)
                    for document in corpus.documents(files, "train", meter.advance, skipped):
                        yield document.text
                        left -= len(document.text)
                        if left <= 0:
                            break

    spec = corpora[0].spec
    return _trained(texts(), spec)


def bytes_per_token(texts: Sequence[str], spec: DataSpec) -> float | None:
    """About how many bytes of a text a token stands for, from some of its documents; None if `spec.tokenizer` is on the
    hub.

    A tokenizer that is trained on a few documents needs fewer tokens for these than one that is trained on all, and
    more for others: the truth lies between.
    """

    def ratio(tokenizer: Tokenizer, on: Sequence[str]) -> float:
        num_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(on, add_special_tokens=False))
        return sum(len(text.encode()) for text in on) / max(1, num_tokens)

    if spec.tokenizer:
        path = tokenizer_file(spec)
        return ratio(open_tokenizer(path), texts) if path else None
    same, others = ratio(_trained(texts, spec), texts), texts[1::2]
    return math.sqrt(same * ratio(_trained(texts[::2], spec), others)) if others else same


def _trained(texts: Iterable[str], spec: DataSpec) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size or DEFAULT_VOCAB_SIZE,
        special_tokens=[spec.end_of_text],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def shared_tokenizer(specs: Sequence[DataSpec], datasets_dir: Path, naming: Naming, progress: Progress) -> Tokenizer:
    """The tokenizer trained on the texts of `specs`, which have one `shared_tokenizer`; trains it, or finds it.

    It does not depend on the order of the texts. A second process that needs it waits for the first. If a text cannot
    be opened, the tokenizer of a dataset that was prepared from one of the texts is enough; `progress.tell` gets a line
    that says so. Raises DataError for a text that cannot be read, DiskFull if the disk is full; nothing has been
    written then.
    """
    with raise_when_full(datasets_dir):
        try:
            opened = []
            for number, spec in enumerate(specs):
                with naming(number):
                    opened.append(open_corpus(in_one_spelling(spec)).hashed(datasets_dir, progress))
        except Unreadable as error:
            for dataset, _ in (found for spec in specs for found in prepared_datasets(spec, datasets_dir)):
                progress.tell(f"{dataset} has the tokenizer of these texts, used without comparing them: {error}")
                return open_tokenizer(dataset / TOKENIZER_NAME)
            raise
        sources = [corpus.sha256 for corpus in opened]
        order = sorted(range(len(opened)), key=lambda number: sources[number])
        keys = ("shared_tokenizer", "vocab_size", "end_of_text", "validation_fraction")
        settings = [CHOICE_VERSION, *(getattr(specs[0], key) for key in keys), sorted(sources)]
        key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
        path = datasets_dir / f".tokenizer-{key}.json"
        with locked(datasets_dir / f"tokenizer-{key}", progress):
            with suppress(DataError):  # missing or damaged
                return open_tokenizer(path)
            corpora = [opened[number] for number in order]
            tokenizer = train_tokenizer(corpora, progress, lambda place: naming(order[place]))
            write_file(path, tokenizer_content(tokenizer))
            return tokenizer
