"""Where a text and a tokenizer are: local paths in one spelling each, names on the Hugging Face hub, and messages for
what is missing or needs a download.

Whoever names a text by a relative path, through a link or as `file://` means the same files, so all of these give one
dataset. Imports nothing slow.
"""

import difflib
import glob
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from fsspec.implementations.local import LocalFileSystem

from stages.data.errors import Unreadable, reading
from stages.data.spec import DataSpec, SourceSpec

Spec = TypeVar("Spec", bound=DataSpec)

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
    return _real_file(path) if os.path.isfile(path) else os.path.realpath(path)


def in_one_spelling(spec: Spec) -> Spec:
    """The same spec with the spelling of local paths that all names of the same files share."""
    path = local_tokenizer(spec.tokenizer) if spec.tokenizer else None
    tokenizer = _real_file(str(path)) if path else spec.tokenizer
    return spec.model_copy(update={"source": one_spelling(spec.source), "tokenizer": tokenizer})


def texts_hash(texts: Iterable[SourceSpec]) -> str:
    """A hash of where texts are and how they are read: the same in any order, and in any spelling of local paths."""
    spelled = (text.model_copy(update={"source": one_spelling(text.source)}) for text in texts)
    described = sorted(json.dumps(text.model_dump(mode="json"), sort_keys=True) for text in spelled)
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _real_file(path: str) -> str:
    """The real path of a file. A link keeps its own name if the target's name ends differently.

    The ending decides how a file is read, and downloads from the Hugging Face hub are links to `blobs/HASH`.
    """
    real, own = Path(os.path.realpath(path)), Path(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return str(real if real.suffixes == own.suffixes else own)


def glob_root(path: str) -> str:
    """The folder of a glob: everything before the first part with a magic character."""
    first_magic = min(path.find(sign) for sign in "*?[" if sign in path)
    return path[:first_magic].rpartition("/")[0]


def missing_text(spec: DataSpec) -> str | None:
    """The message for a source or a tokenizer that is a local path where nothing is; None if there is none such.

    Reads no file. Only a glob makes it list folders.
    """
    if missing_source(spec.source):
        return no_source(spec)
    try:
        tokenizer_file(spec)
    except Unreadable as error:
        return str(error)
    return None


def missing_source(source: str) -> str | None:
    """Why there is no local text at `source`, as a clause; None if there is one, or if `source` is a URL."""
    path = local_path(source)
    if path is None or os.path.exists(path):
        return None
    if not glob.has_magic(path):
        near = nearest_beside(path)
        return f"{path!r} does not exist" + (f"; {near!r} does" if near else "")
    return None if next(glob.iglob(path, recursive=True), None) else f"no file matches {path!r}"


def nearest_beside(path: str, endings: tuple[str, ...] = ("",)) -> str | None:
    """The path beside `path` whose name, with one of `endings`, is nearest to its own; None if none is near."""
    folder, name = os.path.split(path)
    names = sorted(os.listdir(folder or ".")) if os.path.isdir(folder or ".") else []
    near = difflib.get_close_matches(name, [each for each in names if each.endswith(endings) and each != name], n=1)
    return os.path.join(folder, near[0]) if near else None


def no_source(spec: DataSpec) -> str:
    """The message for a source that does not exist, with what to do."""
    missing = missing_source(spec.source) or f"{spec.source!r} does not exist"
    return f"data.source: {missing}; set it to {PYTHON_STDLIB}, a file, a folder, a glob or a URL of one"


def local_tokenizer(name: str) -> Path | None:
    """The local file that `name` refers to: a file, or the tokenizer.json of a folder. None for a name on the hub."""
    with reading(f"data.tokenizer: {name!r}"):
        path = Path(name).expanduser()
    path = path / "tokenizer.json" if os.path.isdir(path) else path
    return path if os.path.isfile(path) or is_path(name) else None


def tokenizer_file(spec: DataSpec) -> Path | None:
    """The local file that `data.tokenizer` names. None if it is not set or names a model on the hub."""
    path = local_tokenizer(spec.tokenizer) if spec.tokenizer else None
    if path and not os.path.isfile(path):
        raise Unreadable(f"data.tokenizer: there is no file {str(path.absolute())!r}")
    return path


def is_path(tokenizer: str) -> bool:
    """Whether the spelling of `data.tokenizer` alone says that it is a path: no model on the hub has such a name."""
    return tokenizer.endswith(".json") or tokenizer.startswith((".", "/", "~")) or tokenizer.count("/") > 1


def download_tokenizer(name: str, key: str = "data.tokenizer") -> Path:
    """The path of the tokenizer.json of a model on the hub, cached or downloaded now. Raises DataError on failure.

    `key` is the setting that gave the name.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub import utils as hub

    hub.disable_progress_bars()
    hub.logging.set_verbosity_error()
    with reading(
        f"{key}: {name!r} is not a local file, and on the Hugging Face hub it",
        f"on a machine that can reach the hub, `hf download {shlex.quote(name)} tokenizer.json --local-dir FOLDER`;"
        f" then set {key}=FOLDER",
    ):
        return Path(hf_hub_download(name, "tokenizer.json"))


def by_hand(spec: DataSpec) -> str:
    """How to download the source by hand and which key to set then, for messages. Empty for a local source."""
    if "://" not in spec.source or local_path(spec.source):
        return ""
    match = re.fullmatch(r"hf://datasets/([^/]+/[^/@]+)(?:@([^/]*))?/?(.*?)/*", spec.source)
    if match is None:
        return "download its files on a machine that can reach it, and set data.source to their location"
    repository, revision, below = match.groups()
    is_file = any(sign in below.rpartition("/")[2] for sign in ".*?[")
    wanted = "/".join(part for part in (below, "" if is_file else spec.include) if part)
    wanted = re.sub(r"\*+", "*", wanted.replace("**/", "*"))  # `hf download` matches with fnmatch
    options = f"--include {shlex.quote(wanted)}{f' --revision {revision}' if revision else ''} --local-dir DIR"
    return (
        f"on a machine that can reach the hub, `hf download {shlex.quote(repository)} --repo-type dataset {options}`;"
        f" then set data.source={'/'.join(['DIR', below]).rstrip('/')}"
    )
