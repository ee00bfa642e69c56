"""Checks the settings of `growctl eval` before anything slow starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
    """The one option of `given`, (name, value), that has a value. Raises UserError if none or several have."""
    names = [name for name, value in given if value]
    if len(names) == 1:
        return names[0]
    if not names:
        raise UserError(f"give what to evaluate on: {', '.join(name for name, _ in given[:-1])} or {given[-1][0]}")
    raise UserError(f"{' and '.join(names)}: give only one of them")
