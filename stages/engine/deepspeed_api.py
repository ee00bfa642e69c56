"""What growctl uses of DeepSpeed, imported from here without MLflow and torch's compiler.

DeepSpeed's autotuner, which growctl never uses, imports MLflow wherever that is installed: 1.5 seconds of each worker's
start, as long as DeepSpeed and torch together. Its Muon optimizer, which every engine imports, imports the compiler for
a decorator: 2 seconds.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(module: str) -> Iterator[None]:
    """Has whatever imports `module` inside the block find that it is not installed."""
    imported = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        if imported is not None:
            sys.modules[module] = imported


@contextmanager
def uncompiled() -> Iterator[None]:
    """Has DeepSpeed's decorator for compiling, with or without parentheses after it, return the plain function."""
    compile_function = compiler.compile
    compiler.compile = lambda *given, **_: given[0] if given and callable(given[0]) else lambda function: function
    try:
        yield
    finally:
        compiler.compile = compile_function


with hidden("mlflow"):
    import deepspeed
    from deepspeed import DeepSpeedEngine
    from deepspeed.constants import default_pg_timeout
    from deepspeed.runtime import compiler
    from deepspeed.runtime.utils import combine_grad_norm_groups, is_invalid_grad_norm
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

with uncompiled():
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

__all__ = [
    "ZERO_SUPPORTED_OPTIMIZERS",
    "DeepSpeedEngine",
    "MuonWithAuxAdam",
    "combine_grad_norm_groups",
    "deepspeed",
    "default_pg_timeout",
    "hidden",
    "is_invalid_grad_norm",
]
