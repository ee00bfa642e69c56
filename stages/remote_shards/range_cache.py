"""A bounded cache of ranges on this machine's disk, which all processes that read remote shards share.

    <directory>/3f/3fa1...        a range, named by its sha256
    <directory>/.bytes            how many bytes the ranges have; the file is the lock of whoever changes them

A name says what the file must hold, so a range that several datasets share is stored once, and each process checks a
file when it first opens it. A file is written under a temporary name and renamed. The bytes are booked before they are
written: a process that is killed in between leaves the count too high until the next count of all files. The range
that was used least recently goes first; a process that has a removed file mapped still reads it.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt

from model.errors import Failure, UserError
from stages.checkpoint.disk_full import NO_SPACE
from stages.remote_shards.mapping import mapped_bytes

BYTES_FILE = ".bytes"
TEMPORARY = ".tmp"
ABANDONED_SECONDS = 3600
"""A temporary file of this age belongs to a killed process: a range is written in less than a second."""

KEPT_SHARE = 15 / 16
"""The share of the limit that remains after ranges were removed, so that not every new range needs a look at all."""


class CacheFull(Failure):
    """The cache's disk is full, and no range is left that could be removed."""


class CacheUnusable(UserError):
    """A folder that cannot hold the cache."""


class RangeCache:
    """The ranges in one directory. Safe in threads and in several processes. Makes the directory on first use."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._folder = f"{directory}{os.sep}"
        self._known: dict[str, tuple[int, int]] = {}
        """By name, the inode and the modification time of each file that this process has checked."""

    def open(self, sha256: str, num_bytes: int, dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """A range as numbers that are mapped from its file, and marks it as used; None if it is not there whole.

        Removes a file that does not hold what its name says.
        """
        path = self._path(sha256)
        try:
            content = mapped_bytes(path)
            found = path.stat()
        except OSError:
            return None
        identity = (found.st_ino, found.st_mtime_ns)
        if self._known.get(sha256) != identity:
            if len(content) != num_bytes or hashlib.sha256(content.data).hexdigest() != sha256:
                self._remove(path)
                return None
            self._known[sha256] = identity
        self._mark_used(path)
        return content.view(dtype)

    def read(self, sha256: str, start: int, stop: int) -> bytes | None:
        """Bytes `start` to `stop` of a range that this process has checked; None if it has not, or it is not there."""
        try:
            descriptor = os.open(f"{self._folder}{sha256[:2]}/{sha256}", os.O_RDONLY)
        except OSError:
            return None
        try:
            found = os.fstat(descriptor)
            if self._known.get(sha256) != (found.st_ino, found.st_mtime_ns):
                return None
            with suppress(OSError):  # a file of another user
                os.utime(descriptor, ns=(time.time_ns(), found.st_mtime_ns))
            return os.pread(descriptor, stop - start, start)
        finally:
            os.close(descriptor)

    def require_usable(self) -> None:
        """Makes the directory. Raises CacheUnusable if this process cannot write there."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._locked():
                return
        except OSError as error:
            if error.errno not in NO_SPACE:  # a full disk is an error once a range is there to write
                raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> CacheUnusable:
        return CacheUnusable(
            f"data.cache_dir: the data cache {self.directory} cannot be written ({error.strerror}); set it to a folder"
            " on this machine that you may write to"
        )

    def has(self, sha256: str) -> bool:
        """Whether there is a file for a range, without a look into it."""
        return self._path(sha256).exists()

    def store(self, sha256: str, content: bytes) -> None:
        """Stores a range, and first removes those used least recently if it does not fit.

        On a full disk the cache shrinks: it removes half of its ranges and tries again. Raises CacheFull if none is
        left, CacheUnusable if it cannot write. A range that is larger than the whole cache is not stored.
        """
        if len(content) > self.limit_bytes:
            return
        while True:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                with self._locked() as count:
                    if self.has(sha256):
                        return
                    total = self._counted(count)
                    if total + len(content) > self.limit_bytes:
                        kept = min(int(self.limit_bytes * KEPT_SHARE), self.limit_bytes - len(content))
                        total = self._make_room(kept)
                    self._book(count, total + len(content))
                    self._write(self._path(sha256), content)
                    return
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise self._unusable(error) from error
                if not self._shrink():
                    raise CacheFull(
                        f"the disk of the data cache {self.directory} is full, and no range is left in it to remove:"
                        " free some space, or set data.cache_dir to a folder on another disk"
                    ) from error

    def num_bytes(self) -> int:
        """The bytes of all ranges in the directory, as its files say."""
        if not self.directory.is_dir():
            return 0
        with self._locked():
            return sum(size for _, size, _ in self._files())

    def _path(self, sha256: str) -> Path:
        return self.directory / sha256[:2] / sha256

    def _mark_used(self, path: Path) -> None:
        with suppress(OSError):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))

    def _write(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}-{secrets.token_hex(4)}{TEMPORARY}")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The opened file of the count, which no other process or thread changes in the meantime.

        On a file system without locks, two processes may miscount until the next count of all files.
        """
        count = os.open(self.directory / BYTES_FILE, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with suppress(OSError):
                fcntl.flock(count, fcntl.LOCK_EX)
            yield count
        finally:
            os.close(count)

    def _counted(self, count: int) -> int:
        """The bytes that are booked; counts the files if that is not known."""
        try:
            return int(os.pread(count, 20, 0))
        except ValueError:
            return sum(size for _, size, _ in self._files())

    def _book(self, count: int, num_bytes: int) -> None:
        os.pwrite(count, b"%-20d" % num_bytes, 0)

    def _make_room(self, most_bytes: int) -> int:
        """Removes the ranges used least recently until `most_bytes` remain; returns what remains. Needs the lock."""
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= most_bytes:
                break
            if path.suffix != TEMPORARY:  # another process is writing it
                self._remove(path)
                total -= size
        return total

    def _shrink(self) -> bool:
        """Removes half of the ranges, after a write that found the disk full; returns whether there were any."""
        try:
            with self._locked() as count:
                total = sum(size for _, size, _ in self._files())
                if total:
                    self._book(count, self._make_room(total // 2))
                return bool(total)
        except OSError as error:
            if error.errno not in (*NO_SPACE, errno.ENOENT):
                raise
            return False

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """(time of the last use, bytes, path) of each range. Removes what killed processes left half-written."""
        for path in self.directory.glob("[0-9a-f][0-9a-f]/*"):
            with suppress(OSError):
                found = path.stat()
                if path.suffix == TEMPORARY and found.st_mtime < time.time() - ABANDONED_SECONDS:
                    path.unlink()
                    continue
                yield found.st_atime_ns, found.st_size, path

    def _remove(self, path: Path) -> None:
        self._known.pop(path.name, None)
        with suppress(OSError):
            path.unlink()
