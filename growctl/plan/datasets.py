"""Looks up the sizes of a schedule's prepared dataset, and words the warnings that follow from them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from growctl.runs_dir import RunsPaths
from growctl.schema.blocks import DataBlock, Schedule
from stages.data.corpus import DataSpec
from stages.data.prepared import given_dataset, prepared_datasets
from stages.data.validation_size import small_validation

if TYPE_CHECKING:
    from stages.data.dataset import DatasetManifest


class DatasetSizes(NamedTuple):
    """What is to be known of a prepared dataset before a run."""

    training_tokens: int
    validation_documents: int
    validation_tokens: int
    vocab_size: int
    """Entries of its tokenizer."""

    @classmethod
    def of(cls, manifest: "DatasetManifest") -> "DatasetSizes":
        """The sizes of the dataset that `manifest` describes."""
        train, validation = manifest.splits["train"], manifest.splits["validation"]
        return cls(train.num_tokens, validation.num_documents, validation.num_tokens, manifest.vocab_size)


def prepared_sizes(data: DataBlock, runs_dir: Path | None) -> DatasetSizes | None:
    """The sizes of the newest prepared dataset for `data`, from its manifest alone; None if there is none.

    Those of a mixture are the sums of its sources'.
    """
    found = [_prepared_sizes(spec, runs_dir) for spec in data.specs]
    known = [sizes for sizes in found if sizes]
    if len(known) < len(found):
        return None
    training, documents, tokens = (sum(numbers) for numbers in zip(*(sizes[:3] for sizes in known), strict=True))
    return DatasetSizes(training, documents, tokens, known[0].vocab_size)


def _prepared_sizes(spec: DataSpec, runs_dir: Path | None) -> DatasetSizes | None:
    for _, document in prepared_datasets(spec, RunsPaths(runs_dir).datasets) if runs_dir else ():
        try:
            train, validation = document["splits"]["train"], document["splits"]["validation"]
            counts = (train["num_tokens"], validation["num_documents"], validation["num_tokens"])
            return DatasetSizes(*map(int, (*counts, document["vocab_size"])))
        except (ValueError, LookupError, TypeError, OverflowError):
            continue  # damaged: `prepare` sets it aside with a message
    return None


def dataset_warnings(schedule: Schedule, sizes: DatasetSizes) -> Iterator[str]:
    """A warning, in one sentence or two, for each size of the dataset that does not fit `schedule`."""
    warning = small_validation(
        sizes.validation_documents,
        sizes.validation_tokens,
        schedule.data.validation_fraction,
        given=None if schedule.data.mixture else given_dataset(schedule.data),
        max_sequences=schedule.evaluation.max_sequences,
        sequence_length=schedule.training.sequence_length,
    )
    if warning:
        yield warning
    asked = schedule.data.num_tokens
    if asked and asked > sizes.vocab_size and schedule.model.vocab_size is None:
        yield (
            f"data.vocab_size is {asked:,}, but the tokenizer trained on this text has {sizes.vocab_size:,} entries: "
            f"the embedding's other {asked - sizes.vocab_size:,} rows are never trained. Set data.vocab_size to "
            f"{sizes.vocab_size}."
        )
