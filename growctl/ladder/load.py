"""Loads a growth schedule from a YAML file and overrides.

Its schema is in growctl/schedule/blocks.py.

hydra composes the files, OmegaConf resolves references, and pydantic validates. One message lists all unknown keys,
wrong types and bad combinations before any work starts.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from growctl.ladder.checks import RUN_NAME, check_combinations, check_controls
from growctl.ladder.dataset_facts import with_attended_tokens, with_vocabulary
from growctl.ladder.datasets import source_sizes
from growctl.ladder.mixtures import exhausted_run
from growctl.ladder.start import with_base
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import NAME_ALLOWED, ScheduleError, describe, named_python, path_of, several
from growctl.schedule.files import SHIPPED, find_schedule, shipped_schedules
from growctl.schedule.sources import missing_data
from model.errors import UserError

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
    tell: Callable[[str], None] = lambda line: None,
) -> Schedule:
    """Loads the schedule at a path or with a shipped name, and applies hydra overrides (`stages.0.train_tokens=200k`).

    Fills in the schedule's name, and what growctl must know of its start checkpoint and its dataset. The run called
    `run`, by default as the schedule is, keeps the checkpoint that it has begun from. Relative paths become absolute
    (growctl/schedule/paths.py); `tell` gets a line where one may mean another file than the reader expects. Raises
    ScheduleError with everything that is wrong with the schedule or its controls.
    """
    from growctl.schedule.compose import Composition
    from growctl.schedule.corpora import with_corpora
    from growctl.schedule.paths import with_absolute_paths

    path = find_schedule(reference, runs_dir)
    composed = Composition(path, [*_folder_name(path, runs_dir, run), *overrides], reference)
    name = run or (composed.data.get("name") if isinstance(composed.data, dict) else None) or path.stem
    own = RunsPaths(runs_dir).run(str(name))
    try:
        data = with_corpora(with_absolute_paths(composed, own, tell), composed.folder)
        data = with_base(data, runs_dir, own, load_resolved)
        data = with_vocabulary(data, runs_dir, own, load_resolved)
    except UserError as error:
        raise _error(reference, [str(error)], composed.origin) from error
    schedule = parse_schedule(data, label=reference, default_name=path.stem, origin=composed.origin)
    try:
        schedule = with_attended_tokens(schedule, runs_dir, own, load_resolved)
    except UserError as error:
        raise _error(reference, [str(error)], composed.origin) from error
    if lines := check_controls(schedule):
        raise _error(reference, lines, composed.origin)
    return schedule


def check_text(schedule: Schedule, label: str, runs_dir: Path) -> None:
    """Raises ScheduleError if the text or the tokenizer is a local path where nothing is. Messages call it `label`.

    A dataset in `runs_dir` that was prepared with the same settings is enough. Also raises it if the sources of a
    mixture are prepared and do not last for the schedule.
    """
    if missing := missing_data(schedule.data, RunsPaths(runs_dir).datasets):
        raise ScheduleError(f"{label}: {missing}")
    sizes, counted = source_sizes(schedule.data, runs_dir)
    if counted and (used_up := exhausted_run(schedule, sizes)):
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
    from growctl.schedule.reading import read_plain

    folder = path.absolute().parent.name
    schedule = parse_schedule(read_plain(path), label=str(path), default_name=folder)
    return schedule.model_copy(update={"name": folder}) if RUN_NAME.fullmatch(folder) else schedule


def parse_schedule(
    data: Any, *, label: str, default_name: str, origin: Callable[[str], str] = lambda path: ""
) -> Schedule:
    """Validates plain data and returns the schedule. Messages call it `label`. Raises ScheduleError if it is invalid.

    `origin` maps a dotted path to the start of a message about its value: the place where that value was set.
    """
    if not isinstance(data, dict) or not data.keys() & Schedule.model_fields.keys():
        raise ScheduleError(f"{label}: is not a schedule; a schedule has the keys {', '.join(Schedule.model_fields)}")
    try:
        lines = list(named_python(data))
        if not lines:
            schedule = Schedule.model_validate(data)
            lines = check_combinations(schedule)
    except ValidationError as error:
        lines = describe(error, Schedule)
    if lines:
        raise _error(label, lines, origin)
    if schedule.name is None:
        if not RUN_NAME.fullmatch(default_name):
            raise ScheduleError(
                f"{label}: name: is missing, and the file's name {default_name!r} is not allowed: {NAME_ALLOWED}"
            )
        schedule = schedule.model_copy(update={"name": default_name})
    return schedule


def _error(label: str, lines: Sequence[str], origin: Callable[[str], str]) -> ScheduleError:
    return ScheduleError(f"{label}: {several([origin(path_of(line)) + line for line in lines])}")
