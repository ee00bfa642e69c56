"""JSON documents that carry their own hash, so that any flipped bit is detected. No torch here.

The manifests of checkpoints and datasets are such documents. Their `seal` is the sha256 of everything else in them.
"""

import errno
import hashlib
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, ValidationError

from model.errors import UserError
from model.strict import Strict, first_reason
from stages.checkpoint.files import READERS, OnBytes, hash_file

MOST_SAID = 300
"""The most characters of a message that may quote the document."""


class Sealed(Strict):
    """A document with a seal."""

    model_config = ConfigDict(allow_inf_nan=False)

    format_version: int
    seal: str | None = None
    """sha256 of the rest; None only before `seal` is called."""


Document = TypeVar("Document", bound=Sealed)


def plain_path(name: str) -> str:
    """`name`, if it is the path of a file below a directory and cannot lead out of it. Raises ValueError otherwise."""
    parts = name.split("/")
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name[:200]!r} must be a plain relative path within the directory")
    return name


PlainPath = Annotated[str, AfterValidator(plain_path)]
"""A file's path within a directory: neither absolute nor with `..`."""


def seal(document: Document) -> Document:
    """`document` with its seal."""
    bare = document.model_copy(update={"seal": None})
    return bare.model_copy(update={"seal": _seal_of(_parsed(bare.model_dump_json()))})


def read_sealed(path: Path, kind: type[Document], format_version: int, error_type: type[UserError]) -> Document:
    """The document in the file `path`, after checking its format version and its seal.

    Raises `error_type` if it is invalid or on a bad sector, and OSError if the file cannot be read at the moment.
    """
    try:
        return _checked(path.read_bytes(), kind, format_version)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        reason = str(error.strerror)
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_input=False, include_url=False)[0]["loc"])) or "its text"
        reason = f"{where[:MOST_SAID]}: {first_reason(error)[:MOST_SAID]}"
    except RecursionError:
        reason = "it is nested too deeply"
    except ArithmeticError as error:  # validators compute with the document's numbers
        reason = f"a number in it is out of range ({error})"
    except ValueError as error:
        reason = str(error)
    raise error_type(f"{path} cannot be read: {reason}")


def _checked(data: bytes, kind: type[Document], format_version: int) -> Document:
    found = _parsed(data)
    version = found.get("format_version", format_version) if isinstance(found, dict) else format_version
    if isinstance(version, int) and version != format_version:
        raise ValueError(f"it has format version {version}; this growctl reads {format_version}")
    document = kind.model_validate_json(data)
    if document.seal != _seal_of(found):
        changed = "does not match its content: something in it has changed"
        raise ValueError(f"its seal {changed if document.seal else 'is missing'}")
    return document


def check_files(
    directory: Path,
    files: Iterable[tuple[str, int, str]],
    error_of: Callable[[str], UserError],
    hashes: bool = True,
    on_bytes: OnBytes | None = None,
) -> None:
    """Raises the error of the words that name the first file that is missing, differs, or links out of the directory.

    `files` are (name, bytes, sha256). With `hashes`, calls `on_bytes` with the size of each file once it was read.
    """
    root, files = directory.resolve(), list(files)

    def problem(file: tuple[str, int, str]) -> str | None:
        name, num_bytes, sha256 = file
        path = directory / name
        try:
            if not path.is_file():
                return "is missing"
            if not path.resolve().is_relative_to(root):
                return "is a link that leads out of the directory"
            if (size := path.stat().st_size) != num_bytes:
                return f"has {size} bytes, not {num_bytes} as in the manifest"
            if hashes and hash_file(path) != sha256:
                return "does not have the hash in the manifest"
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENAMETOOLONG):  # others do not mean that the file is damaged
                raise
            return f"cannot be read: {error.strerror}"
        return None

    with ThreadPoolExecutor(READERS) as pool:  # hashlib releases the GIL
        for (name, num_bytes, _), wrong in zip(files, pool.map(problem, files), strict=True):
            if wrong:
                raise error_of(f"{name} {wrong}")
            if hashes and on_bytes:
                on_bytes(num_bytes)


def _seal_of(found: dict[str, Any]) -> str:
    rest = {name: value for name, value in found.items() if name != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _parsed(data: str | bytes) -> Any:
    """Parses JSON and keeps fractions as strings, so that the seal also covers digits that rounding would hide."""
    return json.loads(data, parse_float=str)
