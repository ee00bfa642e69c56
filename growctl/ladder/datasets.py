"""Looks up the sizes of a schedule's prepared datasets, and words the warnings that follow from them."""

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import NamedTuple

from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule, evaluation_length
from growctl.schedule.data_block import DataBlock
from growctl.text.formatting import byte_count
from stages.corpus.prepared import given_dataset, prepared_datasets
from stages.counted import counted
from stages.data.dataset import REMOTE_NAME, DatasetManifest, read_dataset_manifest
from stages.data.spec import DataSpec

ENOUGH_DOCUMENTS, ENOUGH_TOKENS = 50, 100_000
"""Of a validation set. With fewer, a difference between two losses may rest on a few documents."""
MARGIN = 1.2
"""A hash of their texts draws the documents, so a share gives somewhat more or fewer of them than it says."""
LARGEST_SHARE = 0.5
"""The largest `data.validation_fraction` to suggest. Beyond it, the text itself is too short."""


class DatasetSizes(NamedTuple):
    """What is to be known of a prepared dataset before a run."""

    training_tokens: int
    validation_documents: int
    validation_tokens: int
    vocab_size: int
    """Entries of its tokenizer."""

    remote_bytes: int = 0
    """Bytes of its training tokens that lie at a URL."""


def prepared_sizes(data: DataBlock, runs_dir: Path | None) -> DatasetSizes | None:
    """The sizes of the newest prepared dataset for `data`, from its manifest alone; None if there is none.

    Those of a mixture are the sums of its sources'.
    """
    sizes = [each for each in (_prepared_sizes(spec, runs_dir) for spec in data.specs) if each]
    if len(sizes) < len(data.specs):
        return None
    training, documents, tokens = (sum(numbers) for numbers in zip(*(each[:3] for each in sizes), strict=True))
    remote = sum(each.remote_bytes for each in sizes)
    return sizes[0]._replace(
        training_tokens=training, validation_documents=documents, validation_tokens=tokens, remote_bytes=remote
    )


def source_sizes(data: DataBlock, runs_dir: Path | None) -> tuple[dict[str, int | None], bool]:
    """The training tokens of each source of a mixture, and whether all of them are counted: prepared in `runs_dir`.

    Otherwise they are `approximate_tokens`, or None.
    """
    sizes: dict[str, int | None] = {}
    counted = True
    for source, spec in zip(data.mixture, data.specs, strict=True) if data.mixture else ():
        prepared = _prepared_sizes(spec, runs_dir)
        counted = counted and prepared is not None
        sizes[source.name] = prepared.training_tokens if prepared else source.approximate_tokens
    return sizes, counted


def sizes_in(manifest: DatasetManifest, directory: Path) -> dict[str, int | None]:
    """The training tokens of each source of the mixture in `directory`; empty for an ordinary dataset."""
    sources = [(entry.name, read_dataset_manifest(entry.dataset(directory))) for entry in manifest.sources]
    return {name: source.splits["train"].num_tokens for name, source in sources}


def _prepared_sizes(spec: DataSpec, runs_dir: Path | None) -> DatasetSizes | None:
    for path, manifest in prepared_datasets(spec, RunsPaths(runs_dir).datasets) if runs_dir else ():
        train, validation = manifest.splits["train"], manifest.splits["validation"]
        remote = train.num_tokens * manifest.token_bytes if (path / REMOTE_NAME).exists() else 0
        return DatasetSizes(
            train.num_tokens, validation.num_documents, validation.num_tokens, manifest.vocab_size, remote
        )
    return None


def dataset_warnings(schedule: Schedule, sizes: DatasetSizes | None) -> Iterator[str]:
    """A warning, in one sentence or two, for each size of the prepared dataset that does not fit `schedule`."""
    if sizes is None:
        return
    most = schedule.evaluation.max_sequences
    warning = small_validation(
        sizes.validation_documents,
        sizes.validation_tokens,
        schedule.data.validation_fraction,
        given=None if schedule.data.mixture else given_dataset(schedule.data),
        max_sequences=most and max(most, len(schedule.data.mixture)),  # one of each source at least
        sequence_length=evaluation_length(schedule),
    )
    if warning:
        yield warning
    if sizes.remote_bytes > schedule.data.cache_bytes:
        yield _small_cache(schedule, sizes.remote_bytes)
    asked = schedule.data.num_tokens
    if asked and asked > sizes.vocab_size and not sizes.remote_bytes and schedule.model.vocab_size is None:
        yield (
            f"data.vocab_size is {asked:,}, but the tokenizer trained on this text has {sizes.vocab_size:,} entries: "
            f"the embedding's other {asked - sizes.vocab_size:,} rows are never trained. Set data.vocab_size to "
            f"{sizes.vocab_size}."
        )


def _small_cache(schedule: Schedule, num_bytes: int) -> str:
    """The warning for a cache that cannot hold the dataset: samples come from everywhere."""
    cache_bytes = schedule.data.cache_bytes
    missing = 1 - cache_bytes / num_bytes
    return (
        f"data.cache_bytes is {byte_count(cache_bytes)}, but the training tokens at "
        f"{schedule.data.source or 'the URLs of data.mixture'} take {byte_count(num_bytes)}: about {missing:.0%} of "
        "the samples fetch a whole shard, which takes far longer than training on them. Set data.cache_bytes to "
        f"{byte_count(num_bytes)} or more, or download the dataset."
    )


def small_validation(
    num_documents: int,
    num_tokens: int,
    fraction: float | None = None,
    *,
    given: Path | None = None,
    max_sequences: int | None = None,
    sequence_length: int = 1,
) -> str | None:
    """A warning if a validation set of that size, or what an evaluation reads of it, is small; None if it is not.

    `fraction` is the `data.validation_fraction` that gave it; without it, the warning suggests no other. `given` is the
    dataset that the schedule names as its source, to which no such key applies. An evaluation reads `max_sequences` of
    `sequence_length` tokens, or all.
    """
    read = num_tokens if max_sequences is None else min(num_tokens, max_sequences * sequence_length)
    if num_documents >= ENOUGH_DOCUMENTS and read >= ENOUGH_TOKENS:
        return None
    advice = []
    if num_documents < ENOUGH_DOCUMENTS or num_tokens < ENOUGH_TOKENS:
        factor = max(ENOUGH_DOCUMENTS / max(1, num_documents), ENOUGH_TOKENS / max(1, num_tokens))
        share = ceil(100 * MARGIN * factor * (fraction or 1)) / 100
        if given:
            advice.append(f"Prepare or import {given} again with a larger validation fraction, or use more text.")
        elif fraction is None or share > LARGEST_SHARE:
            advice.append("Use more text, or a larger data.validation_fraction.")
        else:
            advice.append(f"Set data.validation_fraction to {share:g} instead of {fraction:g}, or use more text.")
    if read < min(num_tokens, ENOUGH_TOKENS):
        advice.append(f"Set evaluation.max_sequences to {enough_sequences(sequence_length):,} or more.")
    return (
        f"Validation has {counted(num_documents, 'document')} with {counted(num_tokens, 'token')}, and an evaluation "
        f"reads {read:,} of them: with fewer than {ENOUGH_DOCUMENTS} documents or {ENOUGH_TOKENS:,} tokens, a "
        f"difference of 0.05 nats per token between two losses may rest on a few documents. {' '.join(advice)}"
    )


def enough_sequences(sequence_length: int) -> int:
    """The fewest sequences with ENOUGH_TOKENS."""
    return ceil(ENOUGH_TOKENS / sequence_length)
