"""Looks up the sizes of a schedule's prepared dataset, and words the warnings that follow from them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from growctl.ladder.budgets import evaluation_length
from growctl.runs_dir import RunsPaths
from growctl.schema.blocks import Schedule
from growctl.schema.data_block import DataBlock
from growctl.text.formatting import byte_count
from stages.corpus.prepared import given_dataset, prepared_datasets
from stages.corpus.validation_size import small_validation
from stages.data.dataset import REMOTE_NAME, DatasetManifest, read_dataset_manifest
from stages.data.spec import DataSpec


class DatasetSizes(NamedTuple):
    """What is to be known of a prepared dataset before a run."""

    training_tokens: int
    validation_documents: int
    validation_tokens: int
    vocab_size: int
    """Entries of its tokenizer."""

    remote_bytes: int = 0
    """Bytes of its training tokens that lie at a URL."""

    @classmethod
    def of(cls, manifest: DatasetManifest, dataset: Path) -> "DatasetSizes":
        """The sizes of the dataset in the directory `dataset`, which `manifest` describes."""
        train, validation = manifest.splits["train"], manifest.splits["validation"]
        sizes = (train.num_tokens, validation.num_documents, validation.num_tokens, manifest.vocab_size)
        remote = _remote_bytes(dataset, train.num_tokens * manifest.token_bytes)
        for directory in (source.dataset(dataset) for source in manifest.sources):
            of_source = read_dataset_manifest(directory).splits["train"]
            remote += _remote_bytes(directory, of_source.num_tokens * manifest.token_bytes)
        return cls(*sizes, remote)


def prepared_sizes(data: DataBlock, runs_dir: Path | None) -> DatasetSizes | None:
    """The sizes of the newest prepared dataset for `data`, from its manifest alone; None if there is none.

    Those of a mixture are the sums of its sources'.
    """
    found = [_prepared_sizes(spec, runs_dir) for spec in data.specs]
    known = [sizes for sizes in found if sizes]
    if len(known) < len(found):
        return None
    training, documents, tokens = (sum(numbers) for numbers in zip(*(sizes[:3] for sizes in known), strict=True))
    remote = sum(sizes.remote_bytes for sizes in known)
    return DatasetSizes(training, documents, tokens, known[0].vocab_size, remote)


def _prepared_sizes(spec: DataSpec, runs_dir: Path | None) -> DatasetSizes | None:
    datasets = prepared_datasets(spec, RunsPaths(runs_dir).datasets) if runs_dir else ()
    return next((DatasetSizes.of(manifest, path) for path, manifest in datasets), None)


def _remote_bytes(dataset: Path, num_bytes: int) -> int:
    return num_bytes if (dataset / REMOTE_NAME).exists() else 0


def dataset_warnings(schedule: Schedule, sizes: DatasetSizes) -> Iterator[str]:
    """A warning, in one sentence or two, for each size of the dataset that does not fit `schedule`."""
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
