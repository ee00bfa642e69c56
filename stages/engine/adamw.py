"""AdamW that never imports torch's compiler."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from stages.engine.deepspeed_api import ZERO_SUPPORTED_OPTIMIZERS


def _outside_the_compiler(name: str) -> Callable[..., Any]:
    """The method of torch's AdamW without its wrappers for torch's compiler."""
    return inspect.unwrap(getattr(torch.optim.AdamW, name))


class EagerAdamW(torch.optim.AdamW):
    """torch's AdamW, with the same bits.

    torch wraps these methods to keep them out of compiled code, and the first call imports the compiler for that: 1.5
    seconds of each worker's start. No worker compiles its optimizer.
    """

    step = torch.no_grad()(_outside_the_compiler("step"))
    add_param_group = _outside_the_compiler("add_param_group")
    zero_grad = _outside_the_compiler("zero_grad")
    state_dict = _outside_the_compiler("state_dict")
    load_state_dict = _outside_the_compiler("load_state_dict")


ZERO_SUPPORTED_OPTIMIZERS.append(EagerAdamW)
"""As torch's own is. DeepSpeed warns of others."""
