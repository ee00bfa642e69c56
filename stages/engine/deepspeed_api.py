"""What growctl uses of DeepSpeed, imported without MLflow. Every other module imports it from here.

DeepSpeed's autotuner, which growctl never uses, imports MLflow wherever that is installed: 1.5 seconds of each worker's
start, as long as DeepSpeed and torch together.
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


with hidden("mlflow"):
    import deepspeed
    from deepspeed import DeepSpeedEngine
    from deepspeed.checkpoint import DeepSpeedCheckpoint, ds_to_universal
    from deepspeed.constants import default_pg_timeout
    from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS
    from deepspeed.utils import (
        safe_get_full_fp32_param,
        safe_get_full_optimizer_state,
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
        safe_set_local_fp32_param,
        safe_set_local_optimizer_state,
    )

__all__ = [
    "ZERO_SUPPORTED_OPTIMIZERS",
    "DeepSpeedCheckpoint",
    "DeepSpeedEngine",
    "deepspeed",
    "default_pg_timeout",
    "ds_to_universal",
    "hidden",
    "safe_get_full_fp32_param",
    "safe_get_full_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_optimizer_state",
]
