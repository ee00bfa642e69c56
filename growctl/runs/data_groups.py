"""Which runs may share a table or an axis of losses: those of one dataset.

A dataset's fingerprint covers its tokens and its tokenizer. Where only the tokenizer differs, bits per byte still
compare runs on the same validation text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from growctl.runs.runs import RunReport
from stages.counted import counted

_MOST_NAMED = 4
"""The most sources of a mixture that a sentence names all."""

Comparable = Literal["loss", "bits per byte", "nothing"]
"""What compares the losses of two runs: loss per token and perplexity, only bits per byte, or nothing."""


@dataclass(frozen=True)
class DataGroup:
    """Runs of one dataset."""

    name: str
    fingerprint: str
    validation_text: str | None
    """A hash of the validation text, whatever the tokenizer; None if the ledgers do not record it."""
    runs: tuple[RunReport, ...]


@dataclass(frozen=True)
class DatasetEntry:
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

    datasets: tuple[DatasetEntry, ...]
    warning: str | None
    """The warning that there are several, and what compares them nevertheless; None if there is one."""


def dataset_name(run: RunReport) -> str:
    """The name of a run's dataset, with the start of its fingerprint."""
    name, fingerprint = Path(run.dataset).name, run.dataset_fingerprint[:8]
    return f"{name} ({fingerprint})" if name else fingerprint


def mixture_shares(run: RunReport) -> str | None:
    """The shares of a mixture's sources in its validation loss, such as `books 0.75, code 0.25`; None without one.

    Of many sources, those of the heaviest.
    """
    weights: dict[str, float] | None = run.conditions.get("data.mixture")
    if not weights:
        return None
    total = sum(weights.values())
    named = weights.items() if len(weights) <= _MOST_NAMED else sorted(weights.items(), key=lambda each: -each[1])[:3]
    shares = ", ".join(f"{name} {weight / total:.3g}" for name, weight in named)
    return f"{shares} and {len(weights) - len(named)} other sources" if len(named) < len(weights) else shares


def data_groups(runs: Sequence[RunReport]) -> tuple[DataGroup, ...]:
    """The runs by dataset, in the order of each dataset's first run."""
    groups: dict[str, list[RunReport]] = {}
    for run in runs:
        groups.setdefault(run.dataset_fingerprint, []).append(run)
    return tuple(
        DataGroup(dataset_name(members[0]), fingerprint, _validation_text(members), tuple(members))
        for fingerprint, members in groups.items()
    )


def comparable_groups(runs: Sequence[RunReport]) -> tuple[tuple[DataGroup, ...], ...]:
    """The datasets of `runs`, together where they share their validation text, so that bits per byte compare them."""
    by_text: dict[str, list[DataGroup]] = {}
    for group in data_groups(runs):
        by_text.setdefault(group.validation_text or f"unknown, {group.fingerprint}", []).append(group)
    return tuple(map(tuple, by_text.values()))


def what_compares(a: RunReport, b: RunReport) -> Comparable:
    """What compares the losses of two runs, as far as their data decides it."""
    if a.dataset_fingerprint == b.dataset_fingerprint:
        return "loss"
    return "bits per byte" if len(comparable_groups((a, b))) == 1 else "nothing"


def data_warning(runs: Sequence[RunReport]) -> str | None:
    """The warning that `runs` are of several datasets, and what compares them nevertheless; None for one dataset."""
    groups = data_groups(runs)
    if len(groups) < 2:
        return None
    names = "; ".join(f"{group.name}: {_names(group.runs)}" for group in groups)
    together = comparable_groups(runs)
    sentences = [
        f"These runs are of {counted(len(groups), 'dataset')}, and losses and perplexities of different datasets "
        f"cannot be compared ({names}).",
        "Tables and charts show each dataset by itself.",
    ]
    if len(together) == 1:
        sentences.append("All of them validate on the same text, so that bits per byte compare them.")
    elif len(together) < len(groups):
        alike = [" and ".join(group.name for group in some) for some in together if len(some) > 1]
        sentences.append(
            f"Bits per byte compare {'; '.join(alike)}, which validate on the same text. Nothing here compares others."
        )
    elif any(group.validation_text is None for group in groups):
        sentences.append("Nothing here compares them: the ledgers do not record whether they validate on one text.")
    else:
        sentences.append("Nothing here compares them, because they validate on different texts.")
    return " ".join(sentences)


def data_document(runs: Sequence[RunReport]) -> DataDocument:
    """The datasets of `runs` for scripts."""
    entries = (
        DatasetEntry(group.name, group.fingerprint, group.validation_text, tuple(run.name for run in group.runs))
        for group in data_groups(runs)
    )
    return DataDocument(tuple(entries), data_warning(runs))


_MOST_NAMES = 3


def _names(runs: Sequence[RunReport]) -> str:
    """The names of the ladders of `runs`, or of all runs if there is no ladder."""
    names = [run.name for run in runs if run.control is None] or [run.name for run in runs]
    left_out = len(names) - _MOST_NAMES
    return ", ".join(names if left_out <= 1 else [*names[:_MOST_NAMES], f"{left_out} more"])


def _validation_text(runs: Sequence[RunReport]) -> str | None:
    known = (run.conditions.get("data.validation_text") for run in runs)
    return next((text for text in known if text), None)
