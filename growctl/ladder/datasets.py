"""Looks up the sizes of a schedule's prepared dataset, and words the warnings that follow from them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from growctl.ladder.stage_plans import plan_stages
from growctl.runs_dir import RunsPaths
from growctl.schedule.batches import evaluation_length, longest_context
from growctl.schedule.blocks import Schedule
from growctl.schedule.data_block import DataBlock
from growctl.text.formatting import byte_count
from stages.data.corpus import DataSpec
from stages.data.prepared import given_dataset, prepared_datasets
from stages.data.remote_reading import REMOTE_NAME
from stages.data.validation_size import small_validation
from stages.remote_shards.range_hashes import RANGE_BYTES

if TYPE_CHECKING:
    from stages.data.dataset import DatasetManifest


class DatasetSizes(NamedTuple):
    """What is to be known of a prepared dataset before a run."""

    training_tokens: int
    validation_documents: int
    validation_tokens: int
    vocab_size: int
    """Entries of its tokenizer."""

    remote_bytes: int = 0
    """Bytes of its training tokens that lie at a URL."""

    range_bytes: int = RANGE_BYTES
    """What is fetched at a time of tokens at a URL."""

    @classmethod
    def of(cls, manifest: "DatasetManifest", dataset: Path) -> "DatasetSizes":
        """The sizes of the dataset in the directory `dataset`, which `manifest` describes."""
        from stages.data.dataset import read_dataset_manifest  # slow: numpy

        train, validation = manifest.splits["train"], manifest.splits["validation"]
        sizes = (train.num_tokens, validation.num_documents, validation.num_tokens, manifest.vocab_size)
        remote = _remote_bytes(dataset, train.num_tokens * manifest.token_bytes)
        for directory in (source.dataset(dataset) for source in manifest.sources):
            of_source = read_dataset_manifest(directory).splits["train"]
            remote += _remote_bytes(directory, of_source.num_tokens * manifest.token_bytes)
        return cls(*sizes, remote, manifest.range_bytes)


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
    return DatasetSizes(training, documents, tokens, known[0].vocab_size, remote, known[0].range_bytes)


def _prepared_sizes(spec: DataSpec, runs_dir: Path | None) -> DatasetSizes | None:
    for path, document in prepared_datasets(spec, RunsPaths(runs_dir).datasets) if runs_dir else ():
        try:
            train, validation = document["splits"]["train"], document["splits"]["validation"]
            counts = (train["num_tokens"], validation["num_documents"], validation["num_tokens"])
            found = DatasetSizes(*map(int, (*counts, document["vocab_size"])))
            remote = _remote_bytes(path, found.training_tokens * int(document["token_bytes"]))
            return found._replace(remote_bytes=remote, range_bytes=int(document["range_bytes"]))
        except (ValueError, LookupError, TypeError, OverflowError):
            continue  # damaged: `prepare` sets it aside with a message
    return None


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
        yield _small_cache(schedule, sizes.remote_bytes, sizes.range_bytes)
    asked = schedule.data.num_tokens
    if asked and asked > sizes.vocab_size and not sizes.remote_bytes and schedule.model.vocab_size is None:
        yield (
            f"data.vocab_size is {asked:,}, but the tokenizer trained on this text has {sizes.vocab_size:,} entries: "
            f"the embedding's other {asked - sizes.vocab_size:,} rows are never trained. Set data.vocab_size to "
            f"{sizes.vocab_size}."
        )


def _small_cache(schedule: Schedule, num_bytes: int, range_bytes: int) -> str:
    """The warning for a cache that cannot hold the dataset: samples come from everywhere, each from a range."""
    cache_bytes = schedule.data.cache_bytes
    num_samples = sum(plan.train_tokens for plan in plan_stages(schedule)) // longest_context(schedule)
    missing = 1 - cache_bytes / num_bytes
    return (
        f"data.cache_bytes is {byte_count(cache_bytes)}, but the training tokens at "
        f"{schedule.data.source or 'the URLs of data.mixture'} take "
        f"{byte_count(num_bytes)}: about {missing:.0%} of the samples fetch a range of {byte_count(range_bytes)} each, "
        f"{byte_count(int(num_samples * missing * range_bytes))} in the whole ladder. Set data.cache_bytes to "
        f"{byte_count(num_bytes)} or more, or download the dataset."
    )
