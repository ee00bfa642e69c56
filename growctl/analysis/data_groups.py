"""Which runs may share a table or an axis of losses: those of one dataset.

A dataset's fingerprint covers its tokens and its tokenizer. Where only the tokenizer differs, bits per byte still
compare runs on the same validation text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from growctl.runs.runs import RunReport
from stages.counted import counted


@dataclass(frozen=True)
class Dataset:
    """A dataset and the runs that were trained on it."""

    name: str
    fingerprint: str
    """A hash of its tokens and its tokenizer."""
    validation_text: str | None
    """A hash of its validation text, whatever the tokenizer; None if the ledgers do not record it."""
    runs: tuple[str, ...]


@dataclass(frozen=True)
class DataDocument:
    """The datasets of a report. Losses and perplexities of two datasets cannot be compared."""

    datasets: tuple[Dataset, ...]
    warning: str | None
    """The warning that there are several, and what compares them nevertheless; None if there is one."""


def data_groups(runs: Sequence[RunReport]) -> dict[Dataset, list[RunReport]]:
    """The runs by dataset, in the order of each dataset's first run."""
    groups: dict[str, list[RunReport]] = {}
    for run in runs:
        groups.setdefault(run.dataset_fingerprint, []).append(run)
    return {_dataset(members): members for members in groups.values()}


def _dataset(runs: Sequence[RunReport]) -> Dataset:
    name, fingerprint = Path(runs[0].dataset).name, runs[0].dataset_fingerprint
    texts = filter(None, (run.conditions.get("data.validation_text") for run in runs))
    shown = f"{name} ({fingerprint[:8]})" if name else fingerprint[:8]
    return Dataset(shown, fingerprint, next(texts, None), tuple(run.name for run in runs))


def comparable_datasets(datasets: Iterable[Dataset]) -> list[list[Dataset]]:
    """The datasets, together where they share their validation text, so that bits per byte compare them."""
    by_text: dict[str, list[Dataset]] = {}
    for dataset in datasets:
        by_text.setdefault(dataset.validation_text or f"unknown, {dataset.fingerprint}", []).append(dataset)
    return list(by_text.values())


def data_document(runs: Sequence[RunReport]) -> DataDocument:
    """The datasets of `runs`, with the warning if there are several."""
    groups = data_groups(runs)
    if len(groups) < 2:
        return DataDocument(tuple(groups), None)
    together = [" and ".join(each.name for each in some) for some in comparable_datasets(groups) if len(some) > 1]
    alike = f"Bits per byte compare {'; '.join(together)}, which validate on the same text. " if together else ""
    ladders = {dataset: [run.name for run in groups[dataset] if run.control is None] for dataset in groups}
    names = "; ".join(f"{dataset.name}: {', '.join(own or dataset.runs)}" for dataset, own in ladders.items())
    warning = (
        f"These runs are of {counted(len(groups), 'dataset')}, and losses and perplexities of different datasets "
        f"cannot be compared ({names}). Tables and charts show each dataset by itself. {alike}Nothing here "
        f"compares {'others' if alike else 'them'}."
    )
    return DataDocument(tuple(groups), warning)
