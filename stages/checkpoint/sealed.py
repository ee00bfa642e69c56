"""JSON documents that carry their own hash, so that a flipped bit anywhere in one is noticed. No torch here.

The manifests of checkpoints and datasets are such documents. Their `seal` is the sha256 of everything else in them but
the `signature` (stages/checkpoint/signatures.py), which is made over the seal.
"""

import hashlib
import json
import os
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, ValidationError

from model.errors import UserError
from model.strict import Strict

MOST_BYTES = 256 * 1024 * 1024
"""A larger file is no manifest: a million entries take less."""

MOST_SAID = 300
"""Characters of what may repeat the document."""

MOST_CHARACTERS, NAME_BYTES = 1024, 255
"""Of a path within a directory, and of each name in it: what file systems take."""

_UNSEALED = ("seal", "signature")


class DocumentError(UserError):
    """What is wrong with a document, without its path."""


class Sealed(Strict):
    """A document with a seal."""

    model_config = ConfigDict(allow_inf_nan=False)

    format_version: int
    seal: str | None = None
    """sha256 of the rest; None only until `seal` has made it."""

    signature: str | None = None
    """Of the seal, by the runs directory in which this was written (stages/checkpoint/signatures.py)."""


Document = TypeVar("Document", bound=Sealed)


def plain_path(name: str) -> str:
    """`name`, where it is that of a file below a directory and cannot lead out of it; else a ValueError."""
    parts = name.split("/")
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name[:200]!r} must be a plain relative path within the directory")
    if len(name) > MOST_CHARACTERS or any(len(os.fsencode(part)) > NAME_BYTES for part in parts):
        raise ValueError(f"{name[:80]!r}... is longer than any file's name")
    return name


PlainPath = Annotated[str, AfterValidator(plain_path)]
"""A file's path within a directory: not absolute, and without `..`."""


def seal(document: Document) -> Document:
    """`document` with its seal, and without a signature."""
    bare = document.model_copy(update={"seal": None, "signature": None})
    return bare.model_copy(update={"seal": _seal_of(_parsed(bare.model_dump_json()))})


def read_sealed(path: Path, kind: type[Document], format_version: int) -> Document:
    """The document in the file `path`, of that format version, its seal checked.

    Raises DocumentError, and OSError where the file cannot be read.
    """
    if path.stat().st_size > MOST_BYTES:
        raise DocumentError(f"it has {path.stat().st_size:,} bytes, more than any manifest")
    data = path.read_bytes()
    found = _parsed(data)
    version = found.get("format_version", format_version) if isinstance(found, dict) else format_version
    if isinstance(version, int) and version != format_version:
        raise DocumentError(f"it has format version {version}; this growctl reads {format_version}")
    try:
        document = kind.model_validate_json(data)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "its text"
        said = problem["msg"].removeprefix("Value error, ")
        raise DocumentError(f"{where[:MOST_SAID]}: {said[:MOST_SAID]}") from None
    except ArithmeticError as error:  # the models' own checks reckon with what they are given
        raise DocumentError(f"a number in it is out of all range ({error})") from None
    if document.seal is None:
        raise DocumentError("its seal is missing")
    if document.seal != _seal_of(found):
        raise DocumentError("its seal does not fit the rest: something in it has changed")
    return document


def check_inside(directory: Path, name: str) -> None:
    """DocumentError where a link makes the file `name` of `directory` one outside."""
    if not (directory / PurePosixPath(name)).resolve().is_relative_to(directory.resolve()):
        raise DocumentError(f"{name} is a link that leads outside")


def _seal_of(found: dict[str, Any]) -> str:
    rest = {name: value for name, value in found.items() if name not in _UNSEALED}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _parsed(data: str | bytes) -> Any:
    """JSON with its fractions as they are written: a digit that rounding would hide counts too."""
    try:
        return json.loads(data, parse_float=str)
    except (ValueError, RecursionError) as error:
        said = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DocumentError(said) from None
