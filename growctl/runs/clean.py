"""Removes what can be made again, under the locks that its users would take."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from growctl.runs.directory import RunError
from growctl.runs.disk_use import DiskUse
from growctl.runs.lock import hold
from growctl.runs.needed import DatasetUse, NeededCheckpoints, why_in_use
from growctl.runs.removable import Cleanup, Kept, Removable, dataset_name, in_idle_run
from growctl.runs.status import run_directories
from stages.checkpoint.files import sync_path
from stages.checkpoint.manifest import CheckpointError
from stages.checkpoint.verify import verify_checkpoint
from stages.stage_dir import is_unfinished, preparation_lock, removal_directory


@dataclass
class Removed:
    """What was removed, and what was not although it was to be."""

    paths: list[Path] = field(default_factory=list)
    freed_bytes: int = 0
    skipped: list[Kept] = field(default_factory=list)


def remove(cleanup: Cleanup, on_check: Callable[[Path], None] = lambda path: None) -> Removed:
    """Removes what `cleanup` lists, as far as it is still removable.

    Takes the lock of each run, looks again, and reads every checkpoint that makes another superfluous against its
    hashes first: `on_check` is called with its path. Each directory is hidden by one rename before its files go, so
    what a kill leaves is a leftover, never an incomplete checkpoint.
    """
    uses = {item.path: DiskUse.of(item.path) for item in cleanup.remove}
    removed = Removed()
    for run, items in groupby(cleanup.remove, key=lambda item: item.run):
        if run is None:
            _remove_datasets(cleanup.runs_dir, items, removed)
        else:
            _remove_from_run(cleanup.runs_dir / run, list(items), removed, on_check)
    removed.freed_bytes = DiskUse.union(uses[path] for path in removed.paths).freed_bytes
    return removed


def _remove_from_run(
    directory: Path, items: list[Removable], removed: Removed, on_check: Callable[[Path], None]
) -> None:
    others = [path for path in run_directories(directory.parent) if path != directory]
    try:
        if why := why_in_use(directory):
            raise RunError(why)
        with hold(directory):
            still = set(in_idle_run(directory, NeededCheckpoints.of(others)))
            for relied_on, group in groupby(items, key=lambda item: item.relies_on):
                problem = _problem(relied_on, on_check)
                for item in group:
                    if problem or item not in still:
                        removed.skipped.append(Kept(item.path, problem or "it has changed since it was listed"))
                    else:
                        _remove(item.path)
                        removed.paths.append(item.path)
    except RunError as error:
        removed.skipped += [Kept(item.path, str(error)) for item in items if item.path not in removed.paths]


def _problem(checkpoint: Path | None, on_check: Callable[[Path], None]) -> str | None:
    """What is wrong with the checkpoint that makes others superfluous; None if it is intact or there is none."""
    if checkpoint is None:
        return None
    on_check(checkpoint)
    try:
        verify_checkpoint(checkpoint)
    except CheckpointError as error:
        return f"it may still be needed: {error}"
    return None


def _remove_datasets(runs_dir: Path, items: Iterable[Removable], removed: Removed) -> None:
    for item in items:
        with _prepared_by_nobody(item.path.with_name(dataset_name(item.path))) as alone:
            use = DatasetUse.of(run_directories(runs_dir))
            if not alone:
                removed.skipped.append(Kept(item.path, "a growctl may be preparing this dataset: its lock is not free"))
            elif item.kind == "dataset" and (item.path.name in use.runs or use.unknown):
                removed.skipped.append(Kept(item.path, "a run has started to use it since it was listed"))
            else:
                _remove(item.path)
                removed.paths.append(item.path)


@contextmanager
def _prepared_by_nobody(dataset: Path) -> Iterator[bool]:
    """Locks a dataset against processes that would prepare it. Yields False if one does, or if locks do not work."""
    with preparation_lock(dataset).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _remove(directory: Path) -> None:
    """Removes a directory, hidden by one rename first."""
    hidden = directory
    if not is_unfinished(directory):
        hidden = removal_directory(directory)
        os.rename(directory, hidden)
        sync_path(directory.parent)
    shutil.rmtree(hidden)
