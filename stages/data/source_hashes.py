"""The hashes of a large local source's files, remembered: reading hundreds of gigabytes takes minutes, for each run.

This only saves time. A remembered hash is used as long as the file's size, inode and times of change, to the
nanosecond, stay the same. A file that was merely touched is hashed again, and the hash comes out the same.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from stages.checkpoint.manifest import hash_files, write_file

REMEMBERED_BYTES = 1_000_000_000
"""A smaller source is hashed each time: that takes a second or so."""


class SourceHashes:
    """sha256 of files, by `memory` where it knows them. Nothing is written before `save`."""

    def __init__(self, memory: Path | None) -> None:
        self._memory = memory
        self._known: dict[str, str] = {}
        self._found: dict[str, str] = {}
        if memory and memory.is_file():
            try:
                self._known = dict(json.loads(memory.read_bytes()))
            except (OSError, ValueError, TypeError, RecursionError):
                self._known = {}  # it is written anew

    def of(self, paths: Iterable[Path]) -> Iterator[str]:
        """The hash of each file, in order. What reading one raises is raised in its place."""
        stamped = {_stamp(path): path for path in paths}
        fresh = hash_files([path for stamp, path in stamped.items() if stamp not in self._known])
        for stamp in stamped:
            self._found[stamp] = self._known[stamp] if stamp in self._known else next(fresh)
            yield self._found[stamp]

    def save(self) -> None:
        """Remembers what was found, where it is not what was known."""
        if self._memory and self._found != self._known:
            write_file(self._memory, json.dumps(self._found).encode())


def _stamp(path: Path) -> str:
    """The file, and what changes about it whenever its content does."""
    found = path.stat()
    return f"{path} {found.st_size} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"
