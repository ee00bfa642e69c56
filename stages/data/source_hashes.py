"""Caches the hashes of a large local source's files, because rehashing takes minutes per run.

This only saves time. A cached hash is used as long as the file's size, inode and times of change (in nanoseconds) stay
the same. A file that was only touched is hashed again, with the same result.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from stages.checkpoint.files import hash_files, write_file

REMEMBERED_BYTES = 1_000_000_000
"""A smaller source is hashed every time, which takes about a second."""


class SourceHashes:
    """The sha256 of files, from the cache file `memory` if it has them. Only `save` writes that file."""

    def __init__(self, memory: Path | None) -> None:
        self._memory = memory
        self._known: dict[str, str] = {}
        self._found: dict[str, str] = {}
        if memory and memory.is_file():
            try:
                self._known = dict(json.loads(memory.read_bytes()))
            except (OSError, ValueError, TypeError, RecursionError):
                self._known = {}  # a damaged cache is written again

    @property
    def memory_exists(self) -> bool:
        """Whether an earlier process has written the cache file."""
        return bool(self._known)

    def remembers(self, paths: Iterable[Path]) -> bool:
        """Whether `of` takes little time: the hash of each file is in the cache, or the source is small."""
        return self._memory is None or all(_stamp(path) in self._known for path in paths)

    def of(self, paths: Iterable[Path]) -> Iterator[str]:
        """Yields the hash of each file, in order. An error from reading a file is raised at its position."""
        stamped = {_stamp(path): path for path in paths}
        fresh = hash_files([path for stamp, path in stamped.items() if stamp not in self._known])
        for stamp in stamped:
            self._found[stamp] = self._known[stamp] if stamp in self._known else next(fresh)
            yield self._found[stamp]

    def save(self) -> None:
        """Writes the hashes to the cache file, if they have changed."""
        if self._memory and self._found != self._known:
            write_file(self._memory, json.dumps(self._found).encode())


def _stamp(path: Path) -> str:
    """The file's path with its size, inode and times, which change whenever its content does."""
    found = path.stat()
    return f"{path} {found.st_size} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"
