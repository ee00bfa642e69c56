"""Chooses what a stage resumes from: its newest complete checkpoint, converted if the ranks changed.

Commands that read an engine checkpoint get a temporary conversion of it.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

from growctl.launch.machines import Launch
from growctl.launch.worker_logs import ending_signal, failure_reason, logged_reason, signal_reason
from growctl.launch.workers import Workers
from growctl.run.requests import RunFailed
from model.errors import Failure
from stages.checkpoint.directory import newest_checkpoint, remove_converted, set_aside, whole_or_set_aside
from stages.checkpoint.manifest import Manifest, manifest_hash, read_manifest, verify_checkpoint
from stages.checkpoint.pickles import check_origin
from stages.checkpoint.retention import clear_leftovers
from stages.checkpoint.staging import remove_abandoned, temporary_directory
from stages.counted import plural
from stages.process.lifeline import STDIN, VARIABLE
from stages.stage_dir import StagePaths, converted_directory, staging_directory


class World(NamedTuple):
    """The settings that the format of a DeepSpeed checkpoint depends on."""

    num_devices: int | None
    zero_stage: int | None
    offload: str | None

    def __str__(self) -> str:
        devices = f"{self.num_devices} {plural(self.num_devices or 0, 'device')}"
        return f"{devices} at ZeRO {self.zero_stage}" + (", offloaded" if self.offload == "optimizer" else "")


def newest_own(
    stage_directory: Path, tell: Callable[[str], None], wanted: Callable[[Manifest], bool] = lambda _: True
) -> Manifest | None:
    """The manifest of what `checkpoint_to_resume` would choose, before any conversion; None if the stage has nothing.

    Sets the same checkpoints aside.
    """
    clear_leftovers(stage_directory)
    newest = newest_checkpoint(stage_directory, tell, wanted)
    if newest:
        remove_converted(stage_directory, newest)
    manifests = [read_manifest(newest)] if newest else []
    for converted in StagePaths(stage_directory).conversions():
        own = newest is not None and converted == converted_directory(newest)
        if not own and _whole(converted, None, tell, wanted):
            manifests.append(read_manifest(converted))
    return max(manifests, key=lambda manifest: manifest.step, default=None)


def checkpoint_to_resume(
    stage_directory: Path,
    world: World,
    tell: Callable[[str], None],
    wanted: Callable[[Manifest], bool] = lambda _: True,
) -> Path | None:
    """The checkpoint that workers of `world` resume from: the newest that is `wanted`; None if the stage has none.

    Converts an engine checkpoint of another world first. The conversion is kept until a newer checkpoint is complete.
    Broken checkpoints are set aside, each with a message. Raises RunFailed if the conversion fails.
    """
    clear_leftovers(stage_directory)  # no process writes here now, and the new checkpoints may need the space
    newest = newest_checkpoint(stage_directory, tell, wanted)
    if newest:
        remove_converted(stage_directory, newest)
    fits = newest is not None and _world(read_manifest(newest)) == world
    for converted in StagePaths(stage_directory).conversions():
        own = newest is not None and converted == converted_directory(newest)
        # A conversion newer than every step_* outlived its broken step_*. It is the newest checkpoint, in any world.
        if not (own and fits) and _whole(converted, newest if own else None, tell, wanted):
            return converted
    if newest is None or fits:
        return newest
    tell(f"{newest.name} was saved by {_world(read_manifest(newest))}; converting it for {world}")
    log = StagePaths(stage_directory).log
    try:
        return convert(newest, converted_directory(newest), log)
    except RunFailed as error:
        raise RunFailed(f"{error}\nfull log: {log}") from error


def _whole(
    converted: Path, checkpoint: Path | None, tell: Callable[[str], None], wanted: Callable[[Manifest], bool]
) -> bool:
    """Whether a conversion is intact, `wanted`, and made from `checkpoint` if one is given; else sets it aside with a
    message."""
    manifest = whole_or_set_aside(converted, tell)
    if manifest is None:
        return False
    if checkpoint and manifest.lineage.parent != manifest_hash(checkpoint):
        tell(f"{converted} was not made from {checkpoint.name}; moved to {set_aside(converted).name}")
        return False
    if not wanted(manifest):
        tell(f"{converted} belongs to training that was rolled back; moved to {set_aside(converted).name}")
        return False
    return True


def _world(manifest: Manifest) -> World:
    return World(manifest.world_size, manifest.zero_stage, manifest.offload)


def convert(checkpoint: Path, target: Path, log: Path) -> Path:
    """Converts the engine checkpoint `checkpoint` to `target` in a separate process, which ends with this one.

    The process appends its output to `log`. Returns `target`; raises RunFailed with the reason if it fails. Check the
    checkpoint's files and its origin first: the process unpickles it.
    """
    command = [sys.executable, "-m", "stages.engine.convert", str(checkpoint), str(target)]
    try:
        run_apart(command, {"DS_ACCELERATOR": "cpu"}, log)
    except Failure as error:
        raise RunFailed(f"{checkpoint} cannot be converted: {error}") from None
    return target


def run_apart(command: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float | None = None) -> None:
    """Runs a command to its end, or for `seconds`, in a process that ends with this one and appends to `log`.

    Raises Failure with the reason if it fails.
    """
    log_start = log.stat().st_size if log.exists() else 0
    launch = Launch(list(command), {"PYTHONSAFEPATH": "1", VARIABLE: STDIN, **environment})
    with Workers(launch, log) as process:
        try:
            exit_code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failure(f"it did not end within {seconds:.0f} seconds") from None
    if exit_code != 0:
        ended_by = ending_signal(exit_code)
        reason = signal_reason(ended_by) if ended_by else failure_reason(log, log_start)
        raise Failure(logged_reason(log, log_start) or reason)


@contextmanager
def as_parameters(
    checkpoint: Path, runs_dir: Path, tell: Callable[[str], None], output: Path | None = None
) -> Iterator[Path]:
    """Yields `checkpoint` or, if it is an engine checkpoint, its conversion, which is removed afterwards.

    The conversion never goes into the run's directory: a command that only reads must not stop a run from starting, and
    a run removes conversions. Of the same checkpoint it is the same, to the last bit of its manifest, so what was grown
    from one names the next one as its parent. It is made beside `output`, so that files can be hard-linked from it, or
    else in the system's temporary directory.

    Raises CheckpointError if the engine checkpoint is broken, OriginError if it lies outside `runs_dir`, RunFailed if
    it cannot be converted.
    """
    manifest = read_manifest(checkpoint)
    if manifest.kind == "parameters":
        yield checkpoint
        return
    verify_checkpoint(checkpoint)
    check_origin(checkpoint, runs_dir)
    place = _existing(output.absolute().parent) if output else Path(gettempdir())
    remove_abandoned(place)
    with temporary_directory(place / staging_directory(output or checkpoint).name) as folder:
        tell(f"{checkpoint} is an engine checkpoint; converting it in {folder}")
        target = folder / converted_directory(checkpoint).name
        yield convert(checkpoint, target, log=StagePaths(folder).log)


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.is_dir())
