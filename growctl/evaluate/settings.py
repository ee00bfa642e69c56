"""Checks the settings of `growctl eval` before anything slow starts."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from model.errors import UserError

if TYPE_CHECKING:
    from stages.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class Windows:
    """How text is cut into windows."""

    context: int
    stride: int


def windows_for(manifest: "Manifest", checkpoint: Path, context: int | None, stride: int | None) -> Windows:
    """The windows of `context` tokens, by default as long as the checkpoint's training sequences, without overlap.

    Raises UserError if the context is not known, or the stride is larger than the context.
    """
    context = context or manifest.text.context_length
    if context is None:
        raise UserError(f"{checkpoint} does not say how long its training sequences were; give --context N, in tokens")
    if stride is not None and stride > context:
        raise UserError(
            f"--stride {stride}: a stride above the context of {context} tokens would leave out text; give {context} "
            "or less"
        )
    return Windows(context, stride or context)


def require_one(given: Sequence[tuple[str, object]]) -> str:
    """The one option of `given`, (name, value or None), that has a value. Raises UserError if none or several have."""
    names = [name for name, value in given if value is not None]
    if len(names) == 1:
        return names[0]
    if not names:
        raise UserError(f"give what to evaluate on: {', '.join(name for name, _ in given[:-1])} or {given[-1][0]}")
    raise UserError(f"{' and '.join(names)}: give only one of them")


def listed(option: str, value: str) -> list[str]:
    """The names in `value`, separated by commas. Raises UserError if there are none."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise UserError(f"{option} {value!r}: the list is empty; give one or more, separated by commas")
    return names


def require_harness() -> None:
    """Raises UserError if lm-evaluation-harness is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise UserError("--tasks needs lm-evaluation-harness; install it with `pip install 'growctl[eval]'`")


def context_lengths(value: str) -> list[int]:
    """The lengths in `value`, separated by commas. Raises UserError if one is not a whole number above 0."""
    names = listed("--contexts", value)
    for name in names:
        if not name.isdecimal() or int(name) == 0:
            raise UserError(f"--contexts {name!r}: a length is a whole number of tokens, 1 or more")
    return [int(name) for name in names]


def require_fitting(what: str, options: Mapping[str, tuple[object, str]]) -> None:
    """Raises UserError if an option, {name: (value, what it belongs to)}, is given with anything else than `what`."""
    for name, (value, belongs_to) in options.items():
        if value is not None and what != belongs_to:
            raise UserError(f"{name} has no effect with {what}; it belongs to {belongs_to}")


def require_one_device(device: str, batch_size: int | None) -> None:
    """Raises UserError if an option is given that --contexts cannot heed."""
    if "," in device:
        raise UserError(f"--device {device}: --contexts measures time and memory on one device; give one")
    if batch_size is not None:
        raise UserError(
            f"--batch-size {batch_size} has no effect with --contexts: every batch holds as many tokens as the longest "
            "context"
        )


def new_file(option: str, path: Path | None) -> None:
    """Raises UserError if the file that `option` names exists, or cannot be written."""
    if path is None:
        return
    if os.path.lexists(path):
        raise UserError(f"{option} {path} exists already; give another name, or remove it")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}")
    try:
        with TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise UserError(f"{option} {path}: no file can be written there ({error.strerror})") from error
