"""Finds the two runs that `growctl compare` was asked for."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from growctl.analysis.find import find_ledgers
from growctl.analysis.read import read_run
from growctl.analysis.runs import RunReport
from growctl.ledger.ledger import LedgerError
from growctl.runs_dir import RunPaths, RunsPaths
from model.errors import UserError


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


def runs_of_sets(a: RunReport, b: RunReport) -> list[RunReport]:
    """The runs of the sets that `a` and `b` belong to, those two included; without runs whose ledger cannot be read."""
    found = {run.directory.resolve(): run for run in (a, b)}
    for runs_dir in {run.directory.resolve().parent for run in (a, b) if run.group}:
        for paths in RunsPaths(runs_dir).runs_with_ledgers():
            for run in _readable(paths):
                found.setdefault(paths.directory.resolve(), run)
    groups = {run.group for run in (a, b)} - {None}
    return [run for run in found.values() if run in (a, b) or run.group in groups]


def _ledger(name: str, runs_dir: Path) -> Path:
    """The ledger of the run called `name` in `runs_dir`, or else in the directory `name`."""
    by_path, by_name = RunPaths(Path(name)), RunsPaths(runs_dir).run(name)
    is_name = by_name.directory.name == name and by_name.ledger.is_file()
    if not is_name and by_path.ledger.is_file():
        return by_path.ledger
    return find_ledgers(runs_dir, [name])[name]


def _ends(run: RunReport) -> list[tuple[str, int, float | None]]:
    return [(part.name, part.num_steps, part.validation_loss) for part in run.parts]


def _readable(paths: RunPaths) -> Iterator[RunReport]:
    try:
        yield read_run(paths.ledger)
    except LedgerError:
        return
