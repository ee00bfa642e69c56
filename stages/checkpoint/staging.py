"""Tells hidden directories that are being written from those that a killed process left behind. No torch here.

The process that writes one names itself in a file in it, the mark, from the moment the directory appears until it is
renamed. Only a process that is known to have ended is contradicted: what a process on another machine or in another
container has marked stays, because whether that process lives cannot be seen from here. No locks are used, because on
shared disks they may hold on one machine only.
"""

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.checkpoint.files import write_file
from stages.process.holder import Holder, read_holder
from stages.stage_dir import WRITING_MARK, is_unfinished


def create_marked(staging: Path, mode: int = 0o777) -> Path:
    """Creates a directory beside `staging`, with a longer name, that this process marks as being written."""
    directory = staging.with_name(f"{staging.name}-{secrets.token_hex(4)}")
    directory.mkdir(mode, parents=True)
    try:
        write_file(directory / WRITING_MARK, Holder.me().model_dump_json().encode())
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return directory


@contextmanager
def temporary_directory(staging: Path) -> Iterator[Path]:
    """Yields a marked directory beside `staging`, with a longer name, for this user only; removes it in the end."""
    directory = create_marked(staging, mode=0o700)
    try:
        yield directory
    finally:
        discard(directory)


def is_being_written(staging: Path) -> bool:
    """Whether a process has marked `staging` and is alive, or may be."""
    writer = _mark(staging)
    return writer is not None and not writer.gone


def why_unfinished(staging: Path) -> str:
    """Why `staging`, which exists, is not complete, and what to do, as the end of a sentence about the directory."""
    writer = _mark(staging)
    if writer is None or writer.gone:
        return f"was left unfinished by a killed process; run the command again, or remove {staging}"
    remove = "" if writer.is_here else f", or remove {staging} if that process has ended"
    return f"is being written by another growctl ({writer}); wait until it is complete{remove}"


def remove_abandoned(folder: Path, tell: Callable[[str], None] = lambda line: None) -> None:
    """Removes the marked directories in `folder` whose processes have ended.

    `tell` gets a line for each, and for each whose process is on another machine, so that it may still be written.
    """
    for directory in sorted(mark.parent for mark in folder.glob(f".*/{WRITING_MARK}")):
        if directory.is_symlink() or not is_unfinished(directory):
            continue
        writer = _mark(directory)
        if writer and not writer.gone and not writer.is_here:
            tell(f"left {directory}, which may still be written by {writer}; remove it if that process has ended")
        with suppress(OSError):
            if remove_unless_written(directory):
                tell(f"removed {directory}, which a killed process left unfinished")


def remove_unless_written(staging: Path) -> bool:
    """Removes `staging` unless `is_being_written`; returns whether it did."""
    if staging.is_symlink() or not staging.is_dir() or is_being_written(staging):
        return False
    _remove(staging)
    return True


def discard(staging: Path) -> None:
    """Removes `staging` if this process is writing it. Ignores errors: a later command removes the rest."""
    writer = _mark(staging)
    if writer and writer.is_me:
        with suppress(OSError):
            _remove(staging)


def _remove(staging: Path) -> None:
    """Removes a directory. The mark goes last, so that another process finishes the removal if this one is killed."""
    for path in staging.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != WRITING_MARK:
            path.unlink()
    (staging / WRITING_MARK).unlink(missing_ok=True)
    staging.rmdir()


def _mark(staging: Path) -> Holder | None:
    """The process that the mark in a directory names; None if there is no mark."""
    mark = staging / WRITING_MARK
    return read_holder(mark) if mark.is_file() else None
