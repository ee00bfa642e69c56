"""Free space: asked for before something large is written, and a full disk told from other failures. No torch here."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from model.errors import Failure
from stages.checkpoint.manifest import CheckpointError, read_manifest, staging_directory
from stages.checkpoint.retention import checkpoints

MARGIN_BYTES = 65536
"""More than the files of a checkpoint, for its manifest and folders."""


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(Failure):
    """There is no room for what has to be written, in one sentence for the user."""


def free_bytes(path: Path) -> int:
    """What can still be written on the file system of `path`, or of the nearest folder above it that is there."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def last_checkpoint_bytes(stage_directory: Path) -> int | None:
    """What the files of the newest checkpoint within a stage come to by its manifest; None where that is not known."""
    for newest in list(checkpoints(stage_directory).values())[-1:]:
        with suppress(CheckpointError):
            return sum(file.bytes for file in read_manifest(newest).files.values())
    return None


def require_space(directory: Path, num_bytes: int) -> None:
    """DiskFull where the checkpoint `directory`, of about `num_bytes`, does not fit into what is free."""
    free = free_bytes(directory)
    if free < num_bytes + MARGIN_BYTES:
        raise DiskFull(
            f"{directory} takes {num_bytes:,} bytes and {free:,} are free there; nothing was written. Make room and "
            "run again: it goes on from the checkpoint before"
        )


@contextmanager
def clean_when_full(directory: Path, num_bytes: int) -> Iterator[None]:
    """For writing the checkpoint `directory`: on a failure what is half-written goes, and a full disk is DiskFull.

    torch does not say why a file could not be written. Where less than `num_bytes`, the checkpoint's, are free once
    what is half-written is gone, that was why; else it may be a rank that died.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        shutil.rmtree(staging_directory(directory), ignore_errors=True)
        full = error.errno in _NO_SPACE if isinstance(error, OSError) else free_bytes(directory) < num_bytes
        if not full:
            raise
        raise DiskFull(
            f"the disk was full before {directory} was whole; what was written of it is gone. Make room and run "
            "again: it goes on from the checkpoint before"
        ) from error


@contextmanager
def told_when_full(directory: Path) -> Iterator[None]:
    """For all that is written to `directory` beside checkpoints: a full disk is DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise DiskFull(f"the disk of {directory} is full; make room and run again") from error
