"""Tells hidden directories that are being written from those that a killed process left behind. No torch here.

The process that writes one names itself in a file in it, the mark, from the moment the directory appears until it is
renamed. Only a process that is known to have ended is contradicted: what a process on another machine or in another
container has marked stays, because whether that process lives cannot be seen from here. No locks are used, because on
shared disks they may hold on one machine only.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.checkpoint.files import write_file
from stages.process.holder import Holder
from stages.stage_dir import WRITING_MARK, is_unfinished

NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)


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
    return _writer(staging) is not None


def why_unfinished(staging: Path) -> str:
    """Why `staging`, which exists, is not complete, and what to do, as the end of a sentence about the directory."""
    writer = _writer(staging)
    if writer is None:
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
        with suppress(OSError):
            writer = _writer(directory)
            if writer is None and remove_unless_written(directory):
                tell(f"removed {directory}, which a killed process left unfinished")
            elif writer and not writer.is_here:
                tell(f"left {directory}, which may still be written by {writer}; remove it if that process has ended")


def remove_unless_written(staging: Path) -> bool:
    """Removes `staging` unless `is_being_written`; returns whether it did."""
    return _remove(staging, lambda mark: mark is None or mark.gone)


def discard(staging: Path) -> None:
    """Removes `staging` if this process is writing it. Ignores errors: a later command removes the rest."""
    with suppress(OSError):
        _remove(staging, lambda mark: mark is not None and mark.is_me)


def _writer(staging: Path) -> Holder | None:
    """The process that is writing `staging`, or may be; None if there is none."""
    with suppress(FileNotFoundError, NotADirectoryError), _opened(staging) as folder:
        mark = _mark(folder)
        return None if mark is None or mark.gone else mark
    return None


def _remove(staging: Path, may_remove: Callable[[Holder | None], bool]) -> bool:
    """Removes `staging` if `may_remove` approves its mark, or None if it has none; returns whether it did.

    The mark goes last, so that another process finishes the removal if this one is killed. Only the directory that was
    opened is removed, not one that another process has put in its place meanwhile.
    """
    with suppress(FileNotFoundError), _opened(staging) as folder:
        if not may_remove(_mark(folder)):
            return False
        with os.scandir(folder) as found:
            entries = list(found)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.name, dir_fd=folder)
            elif entry.name != WRITING_MARK:
                os.unlink(entry.name, dir_fd=folder)
        with suppress(FileNotFoundError):
            os.unlink(WRITING_MARK, dir_fd=folder)
        try:
            os.rmdir(staging)
        except OSError as error:
            if error.errno not in NOT_EMPTY:
                raise
        else:
            return True
    return False


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mark(folder: int) -> Holder | None:
    """What the mark in an open directory says; None if there is no mark."""
    try:
        descriptor = os.open(WRITING_MARK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        return Holder.parse(file.read())
