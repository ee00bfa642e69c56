"""Loads a growth schedule from a YAML file and overrides.

Its schema is in growctl/schedule/blocks.py.

hydra composes the files, OmegaConf resolves references, and pydantic validates. One message lists all unknown keys,
wrong types and bad combinations before any work starts.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from growctl.ladder.checks import check_combinations, check_controls
from growctl.ladder.datasets import exhausted, known_sizes
from growctl.runs_dir import NAME_ALLOWED, RUN_NAME, RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule, contexts
from growctl.schedule.data_block import DataBlock
from growctl.schedule.errors import ScheduleError, describe, several
from growctl.schedule.files import SHIPPED, fill_in_corpora, find_schedule, shipped_schedules
from growctl.schedule.sources import given_vocabulary, missing_data
from growctl.schedule.start_block import StartBlock, describe_start
from model.errors import UserError
from stages.corpus.prepared import prepared_datasets
from stages.data.errors import DataError

__all__ = [
    "RUN_NAME",
    "SHIPPED",
    "ScheduleError",
    "check_text",
    "find_schedule",
    "folder_name_error",
    "load_resolved",
    "load_schedule",
    "parse_schedule",
    "shipped_schedules",
]


def load_schedule(
    reference: str,
    overrides: Sequence[str] = (),
    *,
    runs_dir: Path = Path("runs"),
    run: str | None = None,
) -> Schedule:
    """Loads the schedule at a path or with a shipped name, and applies hydra overrides (`stages.0.train_tokens=200k`).

    Fills in the schedule's name, and what growctl must know of its start checkpoint and its dataset. The run called
    `run`, by default as the schedule is, keeps the checkpoint that it has begun from. Relative paths become absolute.
    Raises ScheduleError with everything that is wrong with the schedule or its controls.
    """
    from growctl.schedule.compose import composed

    path = find_schedule(reference, runs_dir)
    data = composed(path, [*_folder_name(path, runs_dir, run), *overrides], reference)
    own = RunsPaths(runs_dir).run(str(run or data.get("name") or path.stem))
    begun = _begun(own)
    with _naming(reference):
        fill_in_corpora(data, path.parent)
        _fill_in_base(data, runs_dir, begun)
        _fill_in_vocabulary(data, runs_dir, begun)
    schedule = parse_schedule(data, label=reference, default_name=path.stem)
    with _naming(reference):
        schedule = _with_attended_tokens(schedule, runs_dir, begun)
    if lines := check_controls(schedule):
        raise ScheduleError(f"{reference}: {several(lines)}")
    return schedule


def _begun(run: RunPaths) -> Schedule | None:
    """The schedule that `run` has begun with. It keeps what the schedule says of its start checkpoint and dataset."""
    if run.has_begun() and run.schedule.is_file():
        with suppress(UserError, OSError):  # the runner reports a schedule that cannot be read
            return load_resolved(run.schedule)
    return None


def _fill_in_base(data: dict[str, Any], runs_dir: Path, begun: Schedule | None) -> None:
    """Adds `start.base` if there is a `start`; leaves an invalid block to the schema.

    Raises UserError if there is no such checkpoint.
    """
    if not isinstance(block := data.get("start"), dict):
        return
    block.pop("base", None)
    with suppress(ValidationError):
        start, own = StartBlock.model_validate(block), begun and begun.start
        same = own and (own.checkpoint, own.run, own.stage) == (start.checkpoint, start.run, start.stage)
        base = own.base if own and same else None
        block["base"] = (base or describe_start(start, runs_dir)).model_dump(mode="json")


def _fill_in_vocabulary(data: dict[str, Any], runs_dir: Path, begun: Schedule | None) -> None:
    """Adds `data.tokenizer_vocab_size` if the sources are prepared datasets; leaves an invalid block to the schema.

    Raises DataError for a key that is not as a dataset was made.
    """
    if not isinstance(block := data.get("data"), dict):
        return
    block.pop("tokenizer_vocab_size", None)
    with suppress(ValidationError):
        texts = DataBlock.model_validate(block)
        if texts.source or texts.mixture:
            entries = given_vocabulary(texts, RunsPaths(runs_dir).datasets)
            if begun and [spec.source for spec in begun.data.specs] == [spec.source for spec in texts.specs]:
                entries = begun.data.tokenizer_vocab_size or entries
            block |= {"tokenizer_vocab_size": entries} if entries else {}


def _with_attended_tokens(schedule: Schedule, runs_dir: Path, begun: Schedule | None) -> Schedule:
    """`schedule` with `data.attended_tokens` from its prepared dataset; None without one, or without a document mask.

    Raises DataError if the end of text does not tell apart the documents of that dataset. A run that has begun keeps
    its numbers, because the budgets of its controls follow from them.
    """
    tokens = None
    if schedule.data.document_mask:
        tokens = (begun and begun.data.attended_tokens) or _attended_tokens(schedule, RunsPaths(runs_dir).datasets)
    return _with_data(schedule, attended_tokens=tokens)


def counted_on(schedule: Schedule, dataset: Path) -> Schedule:
    """`schedule` with the `data.attended_tokens` of `dataset`.

    Raises DataError if that is damaged, or if the end of text does not tell apart its documents.
    """
    from stages.data.documents import misplaced_ends, weighted_datasets
    from stages.data.packing import attended_tokens

    datasets, packing = weighted_datasets(dataset), schedule.data.packing
    _reject(misplaced_ends(datasets))
    tokens = {str(length): attended_tokens(datasets, length, packing) for length in contexts(schedule)}
    return _with_data(schedule, attended_tokens=tokens)


def _attended_tokens(schedule: Schedule, datasets_dir: Path) -> dict[str, float] | None:
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


def _with_data(schedule: Schedule, **changes: Any) -> Schedule:
    return schedule.model_copy(update={"data": schedule.data.model_copy(update=changes)})


def check_text(schedule: Schedule, label: str, runs_dir: Path) -> None:
    """Raises ScheduleError if the text or the tokenizer is a local path where nothing is. Messages call it `label`.

    A dataset in `runs_dir` that was prepared with the same settings is enough. Also raises it if the sources of a
    mixture are prepared and do not last for the schedule.
    """
    if missing := missing_data(schedule.data, RunsPaths(runs_dir).datasets):
        raise ScheduleError(f"{label}: {missing}")
    sizes = known_sizes(schedule.data, runs_dir)
    if sizes.is_prepared and (used_up := exhausted(schedule, sizes.sources, with_controls=True)):
        raise ScheduleError(f"{label}: {used_up}")


def _folder_name(path: Path, runs_dir: Path, run: str | None) -> list[str]:
    """The override that names a run as its folder, if the schedule at `path` is a run's own; none for another schedule.

    A folder may have been renamed or copied since the run began. Raises ScheduleError if its name is not allowed and no
    other name is given, `run`.
    """
    folder = path.absolute().parent
    its_run = RunPaths(folder)
    is_run = its_run.ledger.exists() or its_run.run_id.exists() or folder.parent == runs_dir.absolute()
    if path.name != its_run.schedule.name or not is_run:
        return []
    if error := folder_name_error(path.parent):
        if run:
            return []
        raise ScheduleError(error)
    return [f'name="{folder.name}"']


def check_runs_dir(reference: str, runs_dir: Path, run: str | None) -> None:
    """Raises ScheduleError if `reference` is the schedule of a run that is not in `runs_dir`: it would begin anew.

    `run` is the name that the user gives the run; another name than its folder's means another run.
    """
    path = find_schedule(reference, runs_dir)
    folder = RunPaths(path.parent)
    is_run = path.name == folder.schedule.name and folder.ledger.exists()
    name, home = folder.directory.name, folder.directory.parent
    if not is_run or run not in (None, name) or home.resolve() == runs_dir.resolve():
        return
    command = shlex.join(["growctl", "run", reference, "--runs-dir", str(home)])
    raise ScheduleError(
        f"{reference}: is the schedule of the run {name} in {home}, and {runs_dir.absolute()} would get a new run of "
        f"that name; to resume {name}: {command}; for a new run, give --runs-dir {runs_dir} or another --name"
    )


def folder_name_error(folder: Path) -> str | None:
    """Why the `folder` of a run cannot name the run, with the command that renames it; None if it can."""
    name = folder.absolute().name
    if RUN_NAME.fullmatch(name):
        return None
    allowed = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100] or "run"
    command = shlex.join(["mv", str(folder), str(folder.with_name(allowed))])
    return f"{folder}: a run is named as its folder, and {name!r} is not allowed: {NAME_ALLOWED}; rename it: {command}"


def load_resolved(path: Path) -> Schedule:
    """Loads the schedule that a run stores in the file `path`, with every default written out.

    The run's name is that of its folder, which may have been renamed or copied since. Raises ScheduleError if the
    schedule is invalid, OSError if it cannot be read.
    """
    from stages.plain_yaml import read_yaml  # slow: omegaconf

    with _naming(str(path)):
        data = read_yaml(path)
    folder = path.absolute().parent.name
    schedule = parse_schedule(data, label=str(path), default_name=folder)
    return schedule.model_copy(update={"name": folder}) if RUN_NAME.fullmatch(folder) else schedule


def parse_schedule(data: Any, *, label: str, default_name: str) -> Schedule:
    """Validates plain data, which messages call `label`. Raises ScheduleError with everything that is wrong with it."""
    if not isinstance(data, dict) or not data.keys() & Schedule.model_fields.keys():
        raise ScheduleError(f"{label}: is not a schedule; a schedule has the keys {', '.join(Schedule.model_fields)}")
    try:
        schedule = Schedule.model_validate(data)
        lines = check_combinations(schedule)
    except ValidationError as error:
        lines = describe(error, Schedule)
    if lines:
        raise ScheduleError(f"{label}: {several(lines)}")
    if schedule.name is None:
        if not RUN_NAME.fullmatch(default_name):
            raise ScheduleError(
                f"{label}: name: is missing, and the file's name {default_name!r} is not allowed: {NAME_ALLOWED}"
            )
        schedule = schedule.model_copy(update={"name": default_name})
    return schedule


@contextmanager
def _naming(label: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise ScheduleError(f"{label}: {error}") from error
