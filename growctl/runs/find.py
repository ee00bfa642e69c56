"""Finds the runs of a report, each ladder with its controls and without copies."""

import gc
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from growctl.ledger.file import LedgerError, NothingRecorded
from growctl.runs.read import read_run
from growctl.runs.runs import RunReport
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.text.suggestion import nearest
from model.errors import UserError


class RunNotFoundError(UserError):
    """There is no run of the requested name."""


def find_runs(runs_dir: Path, names: Sequence[str] = ()) -> list[RunReport]:
    """The runs called `names`, or all runs in `runs_dir`; each ladder is followed by its controls.

    The name of a set, such as the seeds of one schedule, stands for its ladders, unless a run has that name.

    Raises RunNotFoundError for an unknown name or if there are no runs at all, LedgerError if the ledger of a requested
    run cannot be read.
    """
    paths = find_ledgers(runs_dir)
    runs: dict[str, RunReport] = {}
    unreadable: dict[str, LedgerError] = {}
    with _no_garbage_collection():
        for name, path in paths.items():
            try:
                runs[name] = read_run(path)
            except LedgerError as error:
                unreadable[name] = error
    sets = _sets(runs.values())
    _check_known(names, [*paths, *sets], runs_dir)
    names = [member for name in names for member in ([name] if name in paths else sets[name])]
    ladders = {known for name in names for known in (name, runs[name].recorded_name if name in runs else name)}
    for name, why in unreadable.items():
        if name not in names and isinstance(why, NothingRecorded):
            continue  # its runner has only just created it
        if not names or name in names or name.startswith(tuple(f"{ladder}-control-" for ladder in ladders)):
            raise why
    if not runs:
        raise RunNotFoundError(f"there are no runs in {runs_dir} yet")
    runs = _with_their_ladders(_without_copies(runs, names))
    found: dict[str, RunReport] = {}
    ladders_first = sorted(runs, key=lambda name: (runs[name].control is not None, name))
    for name in [name for name in names if name in runs] or ladders_first:
        controls = [other for other in runs if runs[other].control_of == name]
        controls.sort(key=lambda other: (runs[other].control, runs[other].cumulative_flops))
        found |= {member: runs[member] for member in (name, *controls) if member not in found}
    return list(found.values())


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pauses Python's search for cycles, which looks at every row again and again and finds nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def find_ledgers(runs_dir: Path, names: Sequence[str] = ()) -> dict[str, Path]:
    """The ledgers of the runs called `names`, or of all runs in `runs_dir`, by the name of the run.

    Raises RunNotFoundError for an unknown name or if there are no runs at all.
    """
    paths = {run.directory.name: run.ledger for run in RunsPaths(runs_dir).runs_with_ledgers()}
    if not paths:
        raise RunNotFoundError(f"there are no runs in {runs_dir} yet")
    _check_known(names, paths, runs_dir)
    return {name: paths[name] for name in names or paths}


def _check_known(names: Sequence[str], known: Collection[str], runs_dir: Path) -> None:
    """Raises RunNotFoundError for the first of `names` that is not known."""
    for name in names:
        if name not in known:
            raise RunNotFoundError(f"no run {name!r} in {runs_dir}; {nearest(name, known)}")


def _sets(runs: Iterable[RunReport]) -> dict[str, list[str]]:
    """The ladders of each set of runs, by the set's name."""
    found: dict[str, list[str]] = {}
    for run in runs:
        if run.group is not None and run.control is None:
            found.setdefault(run.group, []).append(run.name)
    return found


def _without_copies(runs: dict[str, RunReport], names: Sequence[str]) -> dict[str, RunReport]:
    """Keeps one of the runs with the same id and the same ends: preferably one of `names`, then one that was not
    renamed, then the first by name.

    Notes name the copies that are left out, and say which runs began as copies and were trained further.
    """

    def precedence(run: RunReport) -> tuple[bool, bool, str]:
        return run.name not in names, run.name != run.recorded_name, run.name

    kept: dict[tuple[Any, ...], RunReport] = {}
    for run in sorted(runs.values(), key=precedence):
        ends = tuple((part.name, part.num_steps, part.validation_loss, part.finished) for part in run.parts)
        other = kept.setdefault((run.run_id, ends), run)
        if other is not run:
            kept[run.run_id, ends] = _with_note(other, _left_out(run, other))
    originals: dict[str, RunReport] = {}
    for run in sorted(kept.values(), key=lambda run: (run.name != run.recorded_name, run.name)):
        originals.setdefault(run.run_id, run)
    return {run.name: _with_origin(run, originals[run.run_id]) for run in sorted(kept.values(), key=lambda r: r.name)}


def _left_out(run: RunReport, shown: RunReport) -> str:
    """The sentence that `run` is not shown, because `shown` is the same run."""
    if run.name == run.recorded_name:
        return f"{shown.name} is a copy of {run.name}; only {shown.name} is shown, as you asked."
    return f"{run.name} is a copy of {shown.name} and is left out."


def _with_origin(run: RunReport, original: RunReport) -> RunReport:
    """`run`, with a note if it began as a copy of `original` and the two have different ends."""
    if run.name == original.name:
        return run
    note = (
        f"{run.name} began as a copy of {original.name}, and they were trained differently since. The steps before the "
        "copy are in both: do not add their costs."
    )
    return _with_note(run, note)


def _with_note(run: RunReport, note: str) -> RunReport:
    return replace(run, notes=(*run.notes, note))


def _with_their_ladders(runs: dict[str, RunReport]) -> dict[str, RunReport]:
    """The runs, with each control's `control_of` set to the directory name of its ladder.

    The ladder is the one that still has the name recorded by the control, or else the renamed one with the recorded id.
    A control with a prefix before its name belongs to the ladder with the same prefix, if there is one.
    """
    ladders = [run for run in runs.values() if run.control is None]
    names = {run.recorded_name: run.name for run in ladders}
    names |= {run.name: run.name for run in ladders if run.name == run.recorded_name}
    by_id = {run.run_id: run.name for run in ladders}

    def ladder_of(run: RunReport) -> str | None:
        if run.control_of is None:
            return None
        alike = run.name.removesuffix(run.recorded_name) + run.control_of
        if run.name != run.recorded_name and run.name.endswith(run.recorded_name) and alike in runs:
            return alike
        named = names.get(run.control_of, run.control_of)
        is_of_named = named in runs and run.ladder_id in (None, runs[named].run_id)
        return named if is_of_named else by_id.get(run.ladder_id or "", named)

    return {name: replace(run, control_of=ladder_of(run)) for name, run in runs.items()}


class NotTwoRuns(UserError):
    """What was asked for is not two runs that can be compared."""


def find_pair(first: str, second: str, runs_dir: Path) -> tuple[RunReport, RunReport]:
    """The runs called `first` and `second`: each a name in `runs_dir`, or the path of a run's directory.

    Runs of the same name, in two runs directories, are named by their paths. Raises RunNotFoundError for an unknown
    run, NotTwoRuns if both are the same run or one has no evaluation, LedgerError if a ledger cannot be read.
    """
    paths = [_ledger(name, runs_dir) for name in (first, second)]
    if paths[0].resolve() == paths[1].resolve():
        raise NotTwoRuns(f"{first} and {second} are the same run; name two different runs")
    a, b = map(read_run, paths)
    if a.run_id == b.run_id and _ends(a) == _ends(b):
        raise NotTwoRuns(f"{second} is a copy of {first}; name two different runs")
    for run, path in zip((a, b), paths, strict=True):
        if not run.points and not any(part.validation_loss is not None for part in run.parts):
            raise NotTwoRuns(
                f"{path.parent}: the run has no evaluation yet; compare it once it has one (growctl status shows how "
                "far it is)"
            )
    if a.name == b.name:
        a, b = (replace(run, name=str(path.parent)) for run, path in zip((a, b), paths, strict=True))
    return a, b


def _ledger(name: str, runs_dir: Path) -> Path:
    """The ledger of the run called `name` in `runs_dir`, or else in the directory `name`."""
    by_path, by_name = RunPaths(Path(name)), RunsPaths(runs_dir).run(name)
    is_name = by_name.directory.name == name and by_name.ledger.is_file()
    if not is_name and by_path.ledger.is_file():
        return by_path.ledger
    return find_ledgers(runs_dir, [name])[name]


def _ends(run: RunReport) -> list[tuple[str, int, float | None]]:
    return [(part.name, part.num_steps, part.validation_loss) for part in run.parts]
