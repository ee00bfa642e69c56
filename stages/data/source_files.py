"""Lists the files of a source on any file system, and refuses those that growctl cannot read, before it reads one."""

import glob
import sysconfig
from typing import Any, NamedTuple

import fsspec
import fsspec.compression

from stages.data.file_kinds import kind_of_name, no_text
from stages.data.location import glob_root
from stages.data.parquet import is_parquet, require_pyarrow
from stages.data.source_errors import DataError, is_missing

NOT_STDLIB = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "__pycache__"}


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


def stdlib_files() -> tuple[Any, list[SourceFile]]:
    """The file system and the source files of the running Python's standard library, about 11 MB."""
    fs, root = fsspec.url_to_fs(sysconfig.get_paths()["stdlib"])
    files = []
    for _, folders, found in fs.walk(root, detail=True):
        for name in NOT_STDLIB & folders.keys():
            del folders[name]
        files += [_source_file(info, root) for name, info in found.items() if name.endswith(".py")]
    if not files:
        raise DataError(f"data.source: this Python has no library source in {root}; set a file or a folder")
    return fs, files


def source_info(fs: Any, path: str) -> dict[str, Any] | None:
    """What is at `path`, or None if there is nothing. `isfile` and `isdir` would also return False for an unreachable
    server."""
    try:
        found: dict[str, Any] = fs.info(path)
    except Exception as error:
        if is_missing(error):
            return None
        raise
    return found


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
    found = fs.glob(pattern, detail=True).values()
    return [_source_file(info, root) for info in found if info["type"] == "file"]


def _source_file(info: dict[str, Any], root: str) -> SourceFile:
    known = () if "ino" in info else ("ETag", "etag", "blob_id", "mtime", "created")  # inodes are local
    version = next((str(info[key]) for key in known if info.get(key)), "")
    name = info["name"].removeprefix(root).lstrip("/")
    return SourceFile(info["name"], name, int(info.get("size") or 0), version)


def require_readers(files: list[SourceFile], is_folder: bool) -> None:
    """Raises DataError if one of `files` holds no text by its name, or if a package to read it is missing."""
    for file in files:
        if kind := kind_of_name(file.name, is_folder):
            raise no_text(file.path, kind, is_folder)
    if columns := next((file.path for file in files if is_parquet(file.name)), None):
        require_pyarrow(columns)
    _require_decompressors(files)


def _require_decompressors(files: list[SourceFile]) -> None:
    """Raises DataError if Zstandard files cannot be read completely.

    fsspec also reads .zst with `zstandard`, but then silently stops after a file's first frame.
    """
    zst = next((file.path for file in files if file.name.endswith(".zst")), None)
    if zst and getattr(fsspec.compression.compr.get("zstd"), "__name__", "") != "ZstdFile":
        raise DataError(f"data.source: {zst} is compressed by Zstandard; to read it, `pip install backports.zstd`")
