"""Reads the ledgers of runs again and again, each only once it has changed."""

from pathlib import Path

from growctl.analysis.read import read_run
from growctl.analysis.runs import RunReport
from growctl.runs_dir import RunPaths

Stamp = tuple[tuple[int, int] | None, ...]


class ChangedRuns:
    """A reader of runs for `find_runs`, which keeps what it has read."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[Stamp, RunReport]] = {}

    def read(self, path: Path) -> RunReport:
        """The report of the run whose ledger is `path`, as `read_run` gives it."""
        stamp = _stamp(path)
        known = self._read.get(path)
        if known is None or known[0] != stamp:
            known = (stamp, read_run(path))
            self._read[path] = known
        return known[1]


def _stamp(ledger: Path) -> Stamp:
    """What changes with a run: the sizes and times of its ledger, of the ledger's journals and of its folders."""
    run = RunPaths(ledger.parent)
    journals = (ledger.with_name(f"{ledger.name}{end}") for end in ("", "-wal", "-journal"))
    stages = sorted(run.stages.iterdir()) if run.stages.is_dir() else []
    return tuple(map(_seen, (*journals, run.directory, *stages)))


def _seen(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
