"""Checkpoints: files, manifest, seal, the official layout. Use `load_model` to load one from Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stages.checkpoint.parameters import load_model

__all__ = ["load_model"]


def __getattr__(name: str) -> Any:
    """Imports `load_model` on first use: it needs torch, but reading a manifest does not."""
    if name != "load_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stages.checkpoint.parameters import load_model

    return load_model
