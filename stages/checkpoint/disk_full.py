"""Checks for free disk space before large writes, and turns full-disk errors into DiskFull.

Imports no torch.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model.errors import Failure
from stages.stage_dir import staging_directory

MARGIN_BYTES = 65536
"""Space for a checkpoint's manifest and folders, in addition to its files."""

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(Failure):
    """There is not enough free disk space. The message is one line for the user."""


def existing_part(path: Path) -> Path:
    """`path`, absolute, if it exists, else the nearest existing folder or file above it."""
    return next(part for part in (path.absolute(), *path.absolute().parents) if os.path.lexists(part))


def free_bytes(path: Path) -> int:
    """The free space on the file system of `path`, or of its nearest existing parent folder."""
    return shutil.disk_usage(existing_part(path)).free


def require_space(directory: Path, num_bytes: int) -> None:
    """Raises DiskFull if there is not enough free space for the checkpoint `directory` of about `num_bytes`."""
    free = free_bytes(directory)
    if free < num_bytes + MARGIN_BYTES:
        raise DiskFull(
            f"{directory} takes {num_bytes:,} bytes and only {free:,} are free there; nothing was written. Free some "
            "space and run the same command again"
        )


@contextmanager
def raise_when_full(directory: Path, checkpoint_bytes: int | None = None) -> Iterator[None]:
    """Raises DiskFull if the disk of `directory` is full.

    Before a checkpoint of `checkpoint_bytes`, also if it does not fit; removes it if it stays incomplete.

    torch does not report why a file could not be written. If fewer bytes are free after the removal than the checkpoint
    needs, the disk was full; otherwise a rank may have died, and the error is raised again.
    """
    if checkpoint_bytes is not None:
        require_space(directory, checkpoint_bytes)
    try:
        yield
    except (OSError, RuntimeError) as error:
        removed = ""
        if checkpoint_bytes is not None:
            shutil.rmtree(staging_directory(directory), ignore_errors=True)
            removed = " while it was being written; the incomplete checkpoint was removed"
        full = (
            error.errno in NO_SPACE if isinstance(error, OSError) else free_bytes(directory) < (checkpoint_bytes or 0)
        )
        if not full:
            raise
        raise DiskFull(
            f"the disk of {directory} is full{removed}; free some space and run the same command again"
        ) from error
