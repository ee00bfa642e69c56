"""Where the text of a dataset is: local paths in one spelling each, and the message for a missing one.

Whoever names a text by a relative path, through a link or as `file://` means the same files, so all of these give one
dataset.
"""

import difflib
import glob
import os
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

PYTHON_STDLIB = "python-stdlib"
LOCAL_SCHEMES = ("file", "local")


def local_path(source: str) -> str | None:
    """The absolute path of a file, folder or glob that `source` names; None for python-stdlib and other URLs."""
    scheme, is_url, _ = source.partition("://")
    if source == PYTHON_STDLIB or "::" in source or (is_url and scheme not in LOCAL_SCHEMES):
        return None
    return str(LocalFileSystem._strip_protocol(source))


def one_spelling(source: str) -> str:
    """`source` in the spelling that all names of the same text share: for local paths, the real path."""
    path = local_path(source)
    if path is None:
        return source if source.endswith("://") else source.rstrip("/") or source
    if not os.path.lexists(path) and glob.has_magic(path):
        folder = glob_root(path)
        return os.path.realpath(folder) + path[len(folder) :]
    return real_file(path) if os.path.isfile(path) else os.path.realpath(path)


def real_file(path: str) -> str:
    """The real path of a file. A link keeps its own name if the target's name ends differently.

    The ending decides how a file is read, and downloads from the Hugging Face hub are links to `blobs/HASH`.
    """
    real, own = Path(os.path.realpath(path)), Path(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return str(real if real.suffixes == own.suffixes else own)


def glob_root(path: str) -> str:
    """The folder of a glob: everything before the first part with a magic character."""
    first_magic = min(path.find(sign) for sign in "*?[" if sign in path)
    return path[:first_magic].rpartition("/")[0]


def missing_source(source: str) -> str | None:
    """Why there is no local text at `source`, as a clause; None if there is one, or if `source` is a URL.

    Looks at names only. Only a glob makes it list folders.
    """
    path = local_path(source)
    if path is None or os.path.exists(path):
        return None
    if os.path.islink(path):
        return f"{path!r} is a link to {os.readlink(path)!r}, which does not exist"
    if not glob.has_magic(path):
        return f"{path!r} does not exist"
    return None if next(glob.iglob(path, recursive=True), None) else f"no file matches {path!r}"


def nearest_path(path: str) -> str:
    """`; did you mean PATH?` for an existing path that differs from a missing one in its first missing part.

    Names that part if a folder above is missing and nothing has a similar name.
    """
    missing = Path(os.path.abspath(path))
    while missing.parent != missing and not missing.parent.exists():
        missing = missing.parent
    try:
        names = os.listdir(missing.parent)
    except OSError:  # a file, or a folder that cannot be read
        return f"; {str(missing.parent)!r} is not a folder that can be read"
    if close := difflib.get_close_matches(missing.name, names, n=1):
        return f"; did you mean {str(missing.with_name(close[0]))!r}?"
    return "" if str(missing) == os.path.abspath(path) else f"; there is no {missing.name!r} in {str(missing.parent)!r}"
