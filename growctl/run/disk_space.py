"""Checks before a run starts that everything it will write fits on the disk."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from growctl.ladder.costs import stage_checkpoint_bytes
from growctl.ladder.releases import paths_of
from growctl.launch.devices import Devices
from growctl.run.requests import RunRequest, left_to_train
from growctl.runs.directory import RunError
from growctl.runs.lock import find_holder
from growctl.runs_dir import RunPaths
from growctl.text.formatting import byte_count
from stages.checkpoint.disk_full import existing_path, free_bytes


def check_space(
    requests: Iterable[RunRequest], runs_dir: Path, devices: Devices, last_stage: int | None = None
) -> None:
    """Raises RunError if the checkpoints that `requests` will still write need more space than is free in `runs_dir`.

    `devices`: those that the runs start on, which decide the precision. Counts the stages up to index `last_stage`;
    None: all of them.

    Raises RunError too if `runs_dir` cannot be written.

    Skips runs whose schedule has `checkpoint.check_space: false`, and runs that another growctl holds: `hold` reports
    those.
    """
    asked = [
        request
        for request in requests
        if request.schedule.checkpoint.check_space and find_holder(runs_dir / request.name) is None
    ]
    needed = sum(remaining_bytes(request, runs_dir / request.name, devices, last_stage) for request in asked)
    _require_writable(runs_dir)
    free = free_bytes(runs_dir)
    if needed > free:
        raise RunError(
            f"{', '.join(request.name for request in asked)}: the checkpoints still to be written need about "
            f"{byte_count(needed)}, but only {byte_count(free)} are free in {runs_dir}; free some space, keep fewer "
            "checkpoints (checkpoint.keep, checkpoint.keep_every), or start anyway with checkpoint.check_space=false"
        )


def _require_writable(runs_dir: Path) -> None:
    """Raises RunError if nothing can be written to `runs_dir`, or to the nearest folder above it that exists."""
    there = existing_path(runs_dir)
    found = os.statvfs(there)
    if found.f_flag & os.ST_RDONLY:
        why = os.strerror(errno.EROFS)
    elif there.is_dir() and not os.access(there, os.W_OK | os.X_OK):
        why = os.strerror(errno.EACCES)
    elif found.f_blocks == 0:
        why = "it takes no new files"
    else:
        return
    raise RunError(f"--runs-dir {runs_dir}: {there} cannot be written ({why}); choose another folder")


def remaining_bytes(request: RunRequest, directory: Path, devices: Devices, last_stage: int | None = None) -> int:
    """The bytes that unfinished stages and releases, up to stage `last_stage`, will still add to those on disk."""
    schedule = request.schedule
    precision = devices.precision(schedule.training.precision)
    total = 0
    for plan in left_to_train(schedule, directory):
        if last_stage is not None and plan.index > last_stage:
            break
        stage = paths_of(RunPaths(directory), plan)
        within = [*stage.checkpoints().values(), *stage.leftovers()]  # these are removed before anything is written
        there = sum(path.stat().st_size for folder in within for path in folder.rglob("*") if path.is_file())
        total += max(0, stage_checkpoint_bytes(schedule, plan, precision) - there)
    return total
