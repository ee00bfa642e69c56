"""Single files of checkpoints and datasets: hashed, written, linked and synced to disk. No torch here."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pydantic import FiniteFloat, NonNegativeInt

from model.strict import Strict
from stages.stage_dir import WRITING_MARK

READERS = 4
"""Files hashed at a time."""

OnBytes = Callable[[int], None]
"""Called with the size of each file once it has been read."""


class FileEntry(Strict):
    """One file of a checkpoint."""

    bytes: NonNegativeInt
    sha256: str
    """Hash of the whole file, header included."""

    rms: FiniteFloat | None = None
    """Root mean square of a parameter's value, to six digits. Init `matched` scales new tokens to it."""


def hash_file(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(paths: Iterable[Path]) -> Iterator[str]:
    """Yields the sha256 of each file, in order. Hashes several at a time; an error is raised at the file's position."""
    with ThreadPoolExecutor(READERS) as pool:  # hashlib releases the GIL
        yield from pool.map(hash_file, paths)


def write_file(path: Path, data: bytes) -> FileEntry:
    """Writes `data` to a temporary file, syncs it and renames it to `path`, which is never incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def list_files(directory: Path) -> dict[str, FileEntry]:
    """Syncs all files below `directory`, which a library wrote. Returns their manifest entries by relative path."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != WRITING_MARK)
    for path in paths:
        sync_path(path)
    return {
        path.relative_to(directory).as_posix(): FileEntry(bytes=path.stat().st_size, sha256=hash_file(path))
        for path in paths
    }


def link_or_copy(source: Path, target: Path) -> None:
    """Makes a hard link or, if the file system does not support it, a synced copy. A link does not open the file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)
    sync_path(target)


def sync_path(path: Path) -> None:
    """Syncs a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
