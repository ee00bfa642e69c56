"""Lists the files of a source on any file system, refuses those that growctl cannot read, and hashes local ones."""

import glob
import json
import os
import re
import stat
import sysconfig
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import fsspec
import fsspec.utils
from fsspec.implementations.local import LocalFileSystem

from stages.checkpoint.files import hash_files, write_file
from stages.corpus.location import PYTHON_STDLIB, by_hand, glob_root, local_path
from stages.corpus.token_files import import_command
from stages.data.errors import DataError, is_missing, reading
from stages.data.spec import DataSpec

NOT_STDLIB = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "__pycache__"}
NO_TEXT = {".tar", ".tbz2", ".txz", ".zip", ".7z", ".parquet", ".arrow", ".feather", ".csv", ".tsv", ".npy", ".npz"}
NO_TEXT |= {".bin", ".pdf", ".docx", ".doc", ".json"}
"""Endings of files that growctl does not read as text. In a folder, a `.json` is text."""
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst")


class SourceFile(NamedTuple):
    """One file of the source."""

    path: str
    """Its path on the file system."""
    name: str
    """Its path relative to the source, with forward slashes."""
    num_bytes: int
    """Size as stored, before any decompression; 0 if the file system does not report it."""
    version: str
    """What tells its content from others: what a remote file system reports, an ETag or a time; of a local file the
    time of its last change, or its sha256 once `with_hashes` has it."""


def kind_of(name: str) -> Literal["JSON lines", "Parquet", "WebDataset", "text"]:
    """What the name of a file says that it holds.

    `.json.gz` holds JSON lines, as C4 and Dolma publish them; `.json` does not. fsspec reads only the first file of a
    `.zip`.
    """
    stem, _, ending = (name := name.lower()).rpartition(".")
    is_compressed = ending in fsspec.utils.compressions.keys() - {"zip"}
    if stem.endswith((".jsonl", ".ndjson", ".json")) if is_compressed else ending in ("jsonl", "ndjson"):
        return "JSON lines"
    if ending == "parquet":
        return "Parquet"
    return "WebDataset" if name.endswith(_ARCHIVES) else "text"


def list_files(spec: DataSpec) -> tuple[Any, list[SourceFile], bool]:
    """The file system of the source, its files sorted by name, and whether it is a folder or a glob.

    Leaves out the hidden files of folders and globs. There are no files if there is no such file, or no match in a
    folder. Raises DataError for a file that holds no text by its name.
    """
    with reading(f"data.source: {spec.source!r}", by_hand(spec)):
        fs, files, is_folder = any_files("data.source", spec.source, spec.include)
    for file in files:
        _require_text(file, is_folder)
    return fs, files, is_folder


def any_files(key: str, source: str, include: str = "**/*") -> tuple[Any, list[SourceFile], bool]:
    """As `list_files`, for the setting `key` and whatever the files hold. Raises what the file system raises."""
    if source == PYTHON_STDLIB:
        folder = sysconfig.get_paths()["stdlib"]  # of the running Python, about 11 MB
        fs, files, is_folder = LocalFileSystem(), list(_matching(key, folder, "**/*.py", NOT_STDLIB)), True
    elif local := local_path(source):
        fs, (files, is_folder) = LocalFileSystem(), _local_files(key, local, include)
    else:
        fs, path = fsspec.url_to_fs(source)
        files, is_folder = _remote_files(fs, path, include)
    if is_folder:
        files = [file for file in files if not any(part.startswith(".") for part in file.name.split("/"))]
    return fs, sorted(files, key=lambda file: file.name), is_folder


def _local_files(key: str, path: str, include: str) -> tuple[list[SourceFile], bool]:
    if os.path.isfile(path):
        status = os.stat(path)
        return [SourceFile(path, os.path.basename(path), status.st_size, str(status.st_mtime_ns))], False
    if os.path.isdir(path):
        return list(_matching(key, path, include)), True
    root = glob_root(path) if glob.has_magic(path) else ""
    if os.path.isdir(root):
        return list(_matching(key, root, path[len(root) + 1 :])), True
    return [], False


def _matching(key: str, root: str, pattern: str, without: Collection[str] = ()) -> Iterator[SourceFile]:
    """The files below `root` that match, links to files and folders included. fsspec silently skips links.

    Leaves out folders with the names `without`. Raises DataError for a broken or circular link, or a folder that cannot
    be read.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{key}: the folder {error.filename} cannot be read ({error.strerror})") from error

    matches, depth = re.compile(fsspec.utils.glob_translate(pattern)).match, pattern.count("/")
    for folder, folders, names in os.walk(root, onerror=fail, followlinks=True):
        below = os.path.relpath(folder, root).split("/") if folder != root else []
        is_deepest = "**" not in pattern and len(below) == depth
        folders[:] = [name for name in folders if not (is_deepest or name.startswith(".") or name in without)]
        for name in names:
            relative, path = "/".join([*below, name]), os.path.join(folder, name)
            if matches(relative) and not name.startswith("."):
                with reading(f"{key}: {path}", "fix it, or remove it if it is a link"):
                    status = os.stat(path)
                if stat.S_ISREG(status.st_mode):
                    yield SourceFile(path, relative, status.st_size, str(status.st_mtime_ns))


def _remote_files(fs: Any, path: str, include: str) -> tuple[list[SourceFile], bool]:
    """The file at `path`, the files of a folder that match `include`, or those that match a glob.

    `isfile` and `isdir` would also return False for an unreachable server.
    """
    try:
        info = fs.info(path)
    except Exception as error:
        if not is_missing(error):
            raise
        if not glob.has_magic(path):
            return [], False
        info = {"type": "glob"}
    if info["type"] == "file":
        root, infos = path.rpartition("/")[0], [info]
    elif info["type"] == "directory":
        root = path.rstrip("/")
        infos = list(fs.glob(f"{glob.escape(root)}/{include}", detail=True).values())
    else:
        root, infos = glob_root(path), list(fs.glob(path, detail=True).values())
    versions = ("ETag", "etag", "blob_id", "mtime", "created")
    files = [
        SourceFile(
            each["name"],
            each["name"].removeprefix(root).lstrip("/"),
            int(each.get("size") or 0),
            next((str(each[key]) for key in versions if each.get(key)), ""),
        )
        for each in infos
        if each["type"] == "file"
    ]
    return files, info["type"] != "file"


def _require_text(file: SourceFile, is_folder: bool) -> None:
    """Raises DataError if a file holds no text by its name. Of a `.zip`, fsspec reads only the first file."""
    suffixes = PurePosixPath(file.name.lower()).suffixes or [""]
    while suffixes[1:] and suffixes[-1] != ".zip" and suffixes[-1].removeprefix(".") in fsspec.utils.compressions:
        suffixes.pop()
    if kind_of(file.name) == "text" and suffixes[-1] in NO_TEXT - ({".json"} if is_folder else set()):
        convert = "unpack or convert it, and set data.source to the new files, or data.include to others"
        if suffixes[-1] == ".bin":
            convert = (
                f"if it holds tokens (nanoGPT, llm.c, Megatron), {import_command(file.path)}; then data.source=DIR"
            )
        raise DataError(
            f"data.source: {file.path} ends in {suffixes[-1]}, but growctl reads UTF-8 text, JSON lines (.jsonl),"
            f" Parquet and WebDataset tars; {convert}"
        )


def with_hashes(
    files: Sequence[SourceFile], cache: Path | None, advance: Callable[[int], None] = lambda num_bytes: None
) -> tuple[SourceFile, ...]:
    """The local `files` with their sha256 as versions. Calls `advance` with the size of each.

    Hashing a large source takes minutes, so hashes come from the file `cache` as long as the size, the inode and the
    times of change (in nanoseconds) of a file stay the same. Raises DataError if a file cannot be read.
    """
    try:
        known = dict(json.loads(cache.read_bytes())) if cache else {}
    except (OSError, ValueError, TypeError):  # missing or damaged
        known = {}
    stamps = [_stamp(file) for file in files]
    fresh = hash_files([Path(file.path) for file, stamp in zip(files, stamps, strict=True) if stamp not in known])
    hashes = {}
    for file, stamp in zip(files, stamps, strict=True):
        with reading(f"data.source: {file.path}"):
            hashes[stamp] = known[stamp] if stamp in known else next(fresh)
        advance(file.num_bytes)
    if cache and hashes != known:
        write_file(cache, json.dumps(hashes).encode())
    return tuple(file._replace(version=hashes[stamp]) for file, stamp in zip(files, stamps, strict=True))


def _stamp(file: SourceFile) -> str:
    """The file's path with its size, inode and times, which change whenever its content does."""
    with reading(f"data.source: {file.path}"):
        status = os.stat(file.path)
    return f"{file.path} {status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"
