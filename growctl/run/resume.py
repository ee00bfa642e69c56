"""Chooses what a stage resumes from: its newest complete checkpoint, converted if the ranks changed.

Commands that read an engine checkpoint get a temporary conversion of it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

from growctl.launch.workers import run_apart
from growctl.run.requests import RunFailed
from model.errors import Failure
from stages.checkpoint.directory import (
    clear_leftovers,
    newest_checkpoint,
    remove_converted,
    set_aside,
    whole_or_set_aside,
)
from stages.checkpoint.disk_full import existing_part
from stages.checkpoint.manifest import Manifest, manifest_hash, read_manifest, verify_checkpoint
from stages.checkpoint.pickles import check_origin
from stages.checkpoint.staging import remove_abandoned, temporary_directory
from stages.counted import plural
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
) -> Path | None:
    """The newest checkpoint that is `wanted`, or a conversion that outlived a newer one; None if there is none.

    Broken checkpoints are set aside, each with a message.
    """
    clear_leftovers(stage_directory)  # no process writes here now, and the new checkpoints may need the space
    newest = newest_checkpoint(stage_directory, tell, wanted)
    if newest:
        remove_converted(stage_directory, newest)
    for converted in StagePaths(stage_directory).conversions():
        if (newest is None or converted != converted_directory(newest)) and _whole(converted, None, tell, wanted):
            return converted
    return newest


def checkpoint_to_resume(
    stage_directory: Path,
    world: World,
    tell: Callable[[str], None],
    wanted: Callable[[Manifest], bool] = lambda _: True,
) -> Path | None:
    """The checkpoint that workers of `world` resume from: the newest that is `wanted`; None if the stage has none.

    Converts an engine checkpoint of another world first. The conversion is kept until a newer checkpoint is complete.
    Raises RunFailed if the conversion fails.
    """
    newest, stage = newest_own(stage_directory, tell, wanted), StagePaths(stage_directory)
    if newest is None or newest in stage.conversions() or _world(read_manifest(newest)) == world:
        return newest
    converted = converted_directory(newest)
    if converted in stage.conversions() and _whole(converted, newest, tell, wanted):
        return converted
    tell(f"{newest.name} was saved by {_world(read_manifest(newest))}; converting it for {world}")
    try:
        return convert(newest, converted, stage.log)
    except RunFailed as error:
        raise RunFailed(f"{error}\nfull log: {stage.log}") from error


def _whole(
    converted: Path, checkpoint: Path | None, tell: Callable[[str], None], wanted: Callable[[Manifest], bool]
) -> bool:
    """Whether a conversion is intact, `wanted`, and made from `checkpoint` if one is given; else sets it aside with a
    message."""
    manifest = whole_or_set_aside(converted, tell, wanted)
    if manifest is None:
        return False
    if checkpoint and manifest.lineage.parent != manifest_hash(checkpoint):
        tell(f"{converted} was not made from {checkpoint.name}; moved to {set_aside(converted).name}")
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


@contextmanager
def as_parameters(
    checkpoint: Path, runs_dir: Path, tell: Callable[[str], None], output: Path | None = None
) -> Iterator[Path]:
    """Yields `checkpoint` or, if it is an engine checkpoint, its conversion, which is removed afterwards.

    The conversion never goes into the run's directory: a command that only reads must not stop a run from starting, and
    a run removes conversions. Of the same checkpoint it is the same, to the last bit of its manifest, so what was grown
    from one names the next one as its parent. It is made beside `output`, so that files can be hard-linked from it, or
    else in the system's temporary directory.

    Raises CheckpointError if the engine checkpoint is broken or lies outside `runs_dir`, RunFailed if it cannot be
    converted.
    """
    manifest = read_manifest(checkpoint)
    if manifest.kind == "parameters":
        yield checkpoint
        return
    verify_checkpoint(checkpoint)
    check_origin(checkpoint, runs_dir)
    place = existing_part(output.parent) if output else Path(gettempdir())
    remove_abandoned(place)
    with temporary_directory(place / staging_directory(output or checkpoint).name) as folder:
        tell(f"{checkpoint} is an engine checkpoint; converting it in {folder}")
        target = folder / converted_directory(checkpoint).name
        yield convert(checkpoint, target, log=StagePaths(folder).log)
