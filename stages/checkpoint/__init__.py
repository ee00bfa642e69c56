"""Checkpoints: files, manifest, seal. Python code loads and saves models with the names below."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stages.checkpoint.parameters import load_model
    from stages.checkpoint.pretrained import load_pretrained, save_model

__all__ = ["load_model", "load_pretrained", "save_model"]

_MODULES = {"load_model": "parameters", "load_pretrained": "pretrained", "save_model": "pretrained"}


def __getattr__(name: str) -> Any:
    """Imports a function on first use: they need torch, but reading a manifest does not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
