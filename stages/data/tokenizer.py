"""A dataset's tokenizer, loaded from a file or the Hugging Face hub, or trained on the train split."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from stages.data.corpus import DEFAULT_VOCAB_SIZE, Corpus, DataSpec, no_tokenizer
from stages.data.hub import download_tokenizer, local_tokenizer
from stages.data.progress import Progress
from stages.data.source_errors import DataError, Unreadable, reason
from stages.data.source_files import SourceFile

TOKENIZER_SAMPLE_BYTES = 256 * 1024 * 1024
"""The most text that a tokenizer is trained on, in equal parts from the start of every shard of a text."""


def given_tokenizer(spec: DataSpec) -> Tokenizer:
    """The tokenizer that the spec names, with truncation and padding turned off. Raises DataError if it is unusable."""
    assert spec.tokenizer is not None
    path = tokenizer_file(spec) or download_tokenizer(spec.tokenizer)
    return read_tokenizer(path, spec.end_of_text, spec.tokenizer, keys=("data.tokenizer", "data.end_of_text"))


def read_tokenizer(path: Path, end_of_text: str, name: str, keys: tuple[str, str]) -> Tokenizer:
    """The tokenizer in the file `path`, with truncation and padding turned off. Raises DataError if it is unusable.

    Messages call it `name`; `keys` are the settings that gave the tokenizer and the end of text.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exceptions
        raise DataError(f"{keys[0]}: {name!r} is not a tokenizer.json ({reason(error)})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if tokenizer.token_to_id(end_of_text) is None:
        known = sorted(token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special)
        raise DataError(
            f"{keys[1]}: the tokenizer {name!r} has no token {end_of_text!r};"
            f" its special tokens are {', '.join(known) or 'none'}"
        )
    return tokenizer


def tokenizer_file(spec: DataSpec) -> Path | None:
    """The local file that `data.tokenizer` names. None if it is not set or names a model on the hub."""
    path = local_tokenizer(spec.tokenizer) if spec.tokenizer else None
    if path and not path.is_file():
        raise Unreadable(no_tokenizer(path))
    return path


def tokenizer_content(tokenizer: Tokenizer) -> bytes:
    """The content of the file that a dataset has of its tokenizer."""
    return tokenizer.to_str(pretty=True).encode()


class TrainingText(NamedTuple):
    """A text to train a tokenizer on."""

    corpus: Corpus
    shards: Sequence[tuple[SourceFile, ...]]
    naming: Callable[[], AbstractContextManager[None]] = nullcontext
    """Opened while the text is read, so that it can name the text in errors."""


def train_tokenizer(parts: Sequence[TrainingText], progress: Progress) -> Tokenizer:
    """A byte-level BPE trained on the train splits of texts with equal settings. It encodes any text without loss.

    Every text gives an equal part of `TOKENIZER_SAMPLE_BYTES`, or all of its own if that is less.
    """
    most = TOKENIZER_SAMPLE_BYTES // len(parts)
    meter = progress.meter("training the tokenizer", sum(min(part.corpus.num_bytes, most) for part in parts))

    def texts() -> Iterator[str]:
        for corpus, shards, naming in parts:
            skipped = corpus.skipped()
            with naming():
                for files in shards:
                    left = most // len(shards)
                    for document in corpus.documents(files, "train", meter.advance, skipped):
                        yield document.text
                        left -= len(document.text)
                        if left <= 0:
                            break

    spec = parts[0].corpus.spec
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
