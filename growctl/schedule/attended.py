"""Fills in how many tokens a token attends to if attention stays within documents: it is known from a dataset."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schema.blocks import Schedule
from model.errors import UserError
from stages.data.prepared import prepared_datasets


def with_attended_tokens(
    schedule: Schedule, runs_dir: Path, run: RunPaths, load: Callable[[Path], Schedule]
) -> Schedule:
    """`schedule` with `data.attended_tokens`: from its prepared dataset; None without one, or without a document mask.

    A run that has begun keeps its number, because the budgets of its controls follow from it. Its own schedule is read
    with `load`.
    """
    tokens = None
    if schedule.data.document_mask:
        datasets = prepared_datasets(schedule.data, RunsPaths(runs_dir).datasets)
        found = (_of_dataset(schedule, path) for path, _ in datasets)
        tokens = _begun_with(run, load) or next(filter(None, found), None)
    return _with(schedule, tokens)


def counted_on(schedule: Schedule, dataset: Path) -> Schedule:
    """`schedule` with the `data.attended_tokens` of `dataset`. Raises DataError if that is damaged."""
    from stages.data.attended_tokens import attended_tokens

    return _with(schedule, attended_tokens(dataset, schedule.training.sequence_length))


def _with(schedule: Schedule, tokens: float | None) -> Schedule:
    return schedule.model_copy(update={"data": schedule.data.model_copy(update={"attended_tokens": tokens})})


def _begun_with(run: RunPaths, load: Callable[[Path], Schedule]) -> float | None:
    if not run.has_begun() or not run.schedule.is_file():
        return None
    with suppress(UserError, OSError):  # the runner reports a schedule that cannot be read
        return load(run.schedule).data.attended_tokens
    return None


def _of_dataset(schedule: Schedule, dataset: Path) -> float | None:
    with suppress(UserError, OSError):  # damaged: `prepare` sets it aside with a message
        return counted_on(schedule, dataset).data.attended_tokens
    return None
