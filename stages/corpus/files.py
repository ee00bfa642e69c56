"""Lists the files of a source on any file system, refuses those that growctl cannot read, and hashes local ones."""

import codecs
import glob
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple

import fsspec
import fsspec.compression
import fsspec.utils
from fsspec.implementations.local import LocalFileSystem

from stages.checkpoint.files import hash_files, write_file
from stages.corpus.location import glob_root
from stages.corpus.records import is_parquet, is_plain_text, require_pyarrow
from stages.data.errors import DataError, is_missing, reason

NOT_STDLIB = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "__pycache__"}
REMEMBERED_BYTES = 1_000_000_000
"""A smaller source is hashed every time, which takes about a second."""

NO_TEXT = {
    "an archive": (".tar", ".tbz2", ".txz", ".zip", ".7z"),
    "a Parquet file under another compression": (".parquet",),
    "an Arrow file": (".arrow", ".feather"),
    "a table": (".csv", ".tsv"),
    "a file of tokens or numbers that another program wrote": (".npy", ".npz", ".bin"),
    "a PDF": (".pdf",),
    "a Word document": (".docx", ".doc"),
}
"""Kinds of files that growctl does not read as text, by the endings of their names."""

MAGIC = {
    b"PAR1": "a Parquet file that is not named .parquet",
    b"ARROW1": "an Arrow file",
    b"\x93NUMPY": "a NumPy array",
    b"%PDF-": "a PDF",
    codecs.BOM_UTF16_LE: "text in UTF-16",
    codecs.BOM_UTF16_BE: "text in UTF-16",
    b"7z\xbc\xaf\x27\x1c": "an archive",
    b"PK\x03\x04": "an archive",
}
"""The same by the bytes that such a file begins with, which no text begins with."""


class SourceFile(NamedTuple):
    """One file of the source."""

    path: str
    """Its path on the file system."""
    name: str
    """Its path relative to the source, with forward slashes. Document ids start with it."""
    num_bytes: int
    """Size as stored, before any decompression; 0 if the file system does not report it."""
    version: str
    """What a remote file system reports about the content: an ETag or a time. Empty for local files, which are
    hashed."""


class LocalFolders(LocalFileSystem):
    """The local file system. Links in a folder are treated as their targets; hidden entries are left out.

    fsspec's own silently skips links, and folders that it cannot read.
    """

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        """The entries of a folder. Raises DataError for a broken or circular link, or an unreadable folder."""
        path = self._strip_protocol(path)
        try:
            with os.scandir(path) as entries:
                infos = [self._entry(entry) for entry in entries if not entry.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return super().ls(path, detail=detail, **kwargs)
        except OSError as error:
            raise DataError(f"data.source: the folder {path} cannot be read ({reason(error)})") from error
        return infos if detail else [info["name"] for info in infos]

    def _entry(self, entry: os.DirEntry[str]) -> dict[str, Any]:
        if not entry.is_symlink():
            return self.info(entry)
        leads_to = f"data.source: {entry.path} is a link to {os.readlink(entry.path)}"
        try:
            info = self.info(entry.path)  # fsspec follows the link of a path, but not of an entry
        except OSError as error:
            raise DataError(f"{leads_to}, which cannot be read ({reason(error)}); fix or remove the link") from error
        above = map(os.path.realpath, PurePath(entry.path).parents)
        if info["type"] == "directory" and os.path.realpath(entry.path) in above:
            raise DataError(f"{leads_to}, a folder that contains the link: this is an endless loop; remove the link")
        return info


def stdlib_files() -> tuple[Any, list[SourceFile]]:
    """The file system and the source files of the running Python's standard library, about 11 MB."""
    fs, root = fsspec.url_to_fs(sysconfig.get_paths()["stdlib"])
    files = []
    for _, folders, infos in fs.walk(root, detail=True):
        for name in NOT_STDLIB & folders.keys():
            del folders[name]
        files += [_source_file(info, root) for name, info in infos.items() if name.endswith(".py")]
    if not files:
        raise DataError(f"data.source: this Python has no library source in {root}; set a file or a folder")
    return fs, files


def source_info(fs: Any, path: str) -> dict[str, Any] | None:
    """What is at `path`, or None if there is nothing. `isfile` and `isdir` would also return False for an unreachable
    server."""
    try:
        info: dict[str, Any] = fs.info(path)
    except Exception as error:
        if is_missing(error):
            return None
        raise
    return info


def list_files(fs: Any, path: str, info: dict[str, Any] | None, include: str) -> list[SourceFile]:
    """The files at `path`: that file, the files of a folder that match `include`, or those that match a glob."""
    if info is not None and info["type"] == "file":
        return [_source_file(info, path.rpartition("/")[0])]
    if info is not None and info["type"] == "directory":
        root = path.rstrip("/")
        pattern = f"{glob.escape(root)}/{include}"
    elif glob.has_magic(path):
        root, pattern = glob_root(path), path
    else:
        return []
    infos = fs.glob(pattern, detail=True).values()
    return [_source_file(info, root) for info in infos if info["type"] == "file"]


def _source_file(info: dict[str, Any], root: str) -> SourceFile:
    versions = () if "ino" in info else ("ETag", "etag", "blob_id", "mtime", "created")  # inodes are local
    version = next((str(info[key]) for key in versions if info.get(key)), "")
    name = info["name"].removeprefix(root).lstrip("/")
    return SourceFile(info["name"], name, int(info.get("size") or 0), version)


def require_readers(files: list[SourceFile], is_folder: bool) -> None:
    """Raises DataError if one of `files` holds no text by its name, or if a package to read it is missing.

    fsspec also reads .zst with `zstandard`, but then silently stops after a file's first frame.
    """
    for file in files:
        ending = _ending(file.name)
        kind = next((kind for kind, endings in NO_TEXT.items() if ending in endings), None)
        if ending == ".json" and not is_folder:
            kind = "a JSON document, which is read only if each line is an object and its name ends in .jsonl"
        if kind and is_plain_text(file.name):
            raise no_text(file.path, kind, is_folder)
    if columns := next((file.path for file in files if is_parquet(file.name)), None):
        require_pyarrow(columns)
    zst = next((file.path for file in files if file.name.endswith(".zst")), None)
    if zst and getattr(fsspec.compression.compr.get("zstd"), "__name__", "") != "ZstdFile":
        raise DataError(f"data.source: {zst} is compressed by Zstandard; to read it, `pip install backports.zstd`")


def kind_of_bytes(beginning: bytes) -> str | None:
    """The kind of a file with that `beginning`; None if none is known by it."""
    return next((kind for magic, kind in MAGIC.items() if beginning.startswith(magic)), None)


def no_text(path: str, kind: str, is_folder: bool) -> DataError:
    """The error for a file of the source that is of `kind`."""
    others = "; or set data.include so that it is left out" if is_folder else ""
    return DataError(
        f"data.source: {path} is {kind}, but growctl reads UTF-8 text, JSON lines, Parquet and WebDataset tars; unpack"
        f" or convert it, and set data.source to the new files{others}"
    )


def _ending(name: str) -> str:
    """The last ending of a file's name in lower case, without those of a compression that growctl undoes.

    fsspec would undo `.zip` too, but it reads only the first file of an archive.
    """
    suffixes = PurePosixPath(name.lower()).suffixes
    while suffixes[1:] and suffixes[-1] != ".zip" and suffixes[-1].removeprefix(".") in fsspec.utils.compressions:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


class SourceHashes:
    """The sha256 of files, from the cache file `memory` if it has them: rehashing a large source takes minutes.

    A cached hash is used as long as the file's size, inode and times of change (in nanoseconds) stay the same. A file
    that was only touched is hashed again, with the same result. Only `save` writes the cache file.
    """

    def __init__(self, memory: Path | None) -> None:
        self._memory = memory
        self._cached: dict[str, str] = {}
        self._read: dict[str, str] = {}
        if memory and memory.is_file():
            try:
                self._cached = dict(json.loads(memory.read_bytes()))
            except (OSError, ValueError, TypeError, RecursionError):
                self._cached = {}  # a damaged cache is written again

    @property
    def memory_exists(self) -> bool:
        """Whether an earlier process has written the cache file."""
        return bool(self._cached)

    def remembers(self, paths: Iterable[Path]) -> bool:
        """Whether `hashes` takes little time: the hash of each file is in the cache, or the source is small."""
        return self._memory is None or all(_stamp(path) in self._cached for path in paths)

    def hashes(self, paths: Iterable[Path]) -> Iterator[str]:
        """Yields the hash of each file, in order. An error from reading a file is raised at its position."""
        stamped = {_stamp(path): path for path in paths}
        fresh = hash_files([path for stamp, path in stamped.items() if stamp not in self._cached])
        for stamp in stamped:
            self._read[stamp] = self._cached[stamp] if stamp in self._cached else next(fresh)
            yield self._read[stamp]

    def save(self) -> None:
        """Writes the hashes to the cache file, if they have changed."""
        if self._memory and self._read != self._cached:
            write_file(self._memory, json.dumps(self._read).encode())


def _stamp(path: Path) -> str:
    """The file's path with its size, inode and times, which change whenever its content does."""
    status = path.stat()
    return f"{path} {status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"
