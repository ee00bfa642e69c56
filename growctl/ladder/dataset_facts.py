"""Fills in what a prepared dataset says: the entries of its tokenizer, and the tokens that a token attends to."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.batches import contexts
from growctl.schedule.blocks import Schedule
from growctl.schedule.data_block import DataBlock
from growctl.schedule.sources import given_vocabulary
from model.errors import UserError
from stages.corpus.prepared import prepared_datasets
from stages.data.errors import DataError


def with_vocabulary(data: Any, runs_dir: Path, run: RunPaths, load: Callable[[Path], Schedule]) -> Any:
    """A schedule's plain data, with `data.tokenizer_vocab_size` if its sources are prepared datasets.

    An invalid block stays as it is. A run that has begun keeps its number. Raises DataError for a key that is not as a
    dataset was made.
    """
    if not isinstance(data, dict) or not isinstance(data.get("data"), dict):
        return data
    block = {key: value for key, value in data["data"].items() if key != "tokenizer_vocab_size"}
    try:
        texts = DataBlock.model_validate(block)
    except ValidationError:
        return data | {"data": block}
    entries = None
    if texts.source or texts.mixture:
        entries = given_vocabulary(texts, RunsPaths(runs_dir).datasets)
        begun = _begun_with(run, load)
        if begun and [spec.source for spec in begun.specs] == [spec.source for spec in texts.specs]:
            entries = begun.tokenizer_vocab_size or entries
    return data | {"data": block | ({"tokenizer_vocab_size": entries} if entries else {})}


def with_attended_tokens(
    schedule: Schedule, runs_dir: Path, run: RunPaths, load: Callable[[Path], Schedule]
) -> Schedule:
    """`schedule` with `data.attended_tokens`: from its prepared dataset; None without one, or without a document mask.

    Raises DataError if the end of text does not tell apart the documents of that dataset.

    A run that has begun keeps its numbers, because the budgets of its controls follow from it. Its own schedule is read
    with `load`.
    """
    tokens = None
    if schedule.data.document_mask:
        begun = _begun_with(run, load)
        tokens = (begun and begun.attended_tokens) or _prepared(schedule, RunsPaths(runs_dir).datasets)
    return _with(schedule, tokens)


def counted_on(schedule: Schedule, dataset: Path) -> Schedule:
    """`schedule` with the `data.attended_tokens` of `dataset`.

    Raises DataError if that is damaged, or if the end of text does not tell apart its documents.
    """
    from stages.data.documents import misplaced_ends, weighted_datasets
    from stages.data.packing import attended_tokens

    datasets, packing = weighted_datasets(dataset), schedule.data.packing
    _reject(misplaced_ends(datasets))
    return _with(schedule, {str(length): attended_tokens(datasets, length, packing) for length in contexts(schedule)})


def _prepared(schedule: Schedule, datasets_dir: Path) -> dict[str, float] | None:
    """The numbers for the text, or the sources of the mixture, if all are prepared, and packed if they are to be."""
    weights, datasets = [*schedule.data.base_weights.values()] or [1.0], {}
    for spec, weight in zip(schedule.data.specs, weights, strict=True):
        path = next((path for path, _ in prepared_datasets(spec, datasets_dir)), None)
        if path is None:
            return None
        datasets[path] = weight
    from stages.data.documents import misplaced_ends
    from stages.data.packing import attended_tokens, known_packing

    misplaced = tokens = None
    lengths, packing = contexts(schedule), schedule.data.packing
    with suppress(UserError, OSError):  # damaged: `prepare` sets it aside with a message
        misplaced = misplaced_ends(datasets)
        if packing == "concatenate" or all(known_packing(path, length) for path in datasets for length in lengths):
            tokens = {str(length): attended_tokens(datasets, length, packing) for length in lengths}
    _reject(misplaced)
    return tokens


def _reject(misplaced: str | None) -> None:
    if misplaced:
        raise DataError(
            f"data.document_mask = true: {misplaced}; the model tells documents apart by that token alone, so each "
            "must end in it and contain no other. Write the documents in that way and prepare or import them again "
            "(Megatron-LM: --append-eod), or set data.document_mask to false"
        )


def _with(schedule: Schedule, tokens: dict[str, float] | None) -> Schedule:
    return schedule.model_copy(update={"data": schedule.data.model_copy(update={"attended_tokens": tokens})})


def _begun_with(run: RunPaths, load: Callable[[Path], Schedule]) -> DataBlock | None:
    if not run.has_begun() or not run.schedule.is_file():
        return None
    with suppress(UserError, OSError):  # the runner reports a schedule that cannot be read
        return load(run.schedule).data
    return None
