"""Measures what files occupy on disk. A file with several hard links counts once."""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class FileId(NamedTuple):
    """Identifies a file under all its names."""

    device: int
    inode: int


@dataclass
class FileUse:
    """One file, as found under some directories."""

    bytes: int
    links: int
    """How many names it has in the whole file system."""

    found: int = 0
    """How many of its names were found under the directories."""


@dataclass
class DiskUse:
    """The files under some directories. Sizes are those of the files' contents."""

    files: dict[FileId, FileUse] = field(default_factory=dict)

    @classmethod
    def of(cls, *paths: Path) -> "DiskUse":
        """The files at and below `paths`, which must not contain each other. Skips what cannot be read or vanishes."""
        use = cls()
        for entry in _regular_files(paths):
            known = use.files.setdefault(FileId(entry.st_dev, entry.st_ino), FileUse(entry.st_size, entry.st_nlink))
            known.found += 1
        return use

    @classmethod
    def union(cls, uses: Iterable["DiskUse"]) -> "DiskUse":
        """The files of all `uses`, which must be of directories that do not contain each other."""
        joined = cls()
        for use in uses:
            for identity, file in use.files.items():
                known = joined.files.setdefault(identity, FileUse(file.bytes, file.links))
                known.found += file.found
        return joined

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files.values())

    @property
    def freed_bytes(self) -> int:
        """What removing the directories would free: the size of the files that have no name elsewhere."""
        return sum(file.bytes for file in self.files.values() if file.found >= file.links)


def _regular_files(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """The status of every regular file at and below `paths`. Does not follow links."""
    for top in paths:
        below = [Path(folder, name) for folder, _, names in os.walk(top) for name in names]
        for path in below if top.is_dir() else [top]:
            with suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield status
