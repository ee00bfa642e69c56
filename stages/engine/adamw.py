"""AdamW that never imports torch's compiler."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from stages.engine.deepspeed_api import ZERO_SUPPORTED_OPTIMIZERS


def outside_the_compiler(optimizer: type[torch.optim.Optimizer], name: str) -> Callable[..., Any]:
    """The method of torch's optimizer without its wrappers for torch's compiler."""
    return inspect.unwrap(getattr(optimizer, name))


class EagerAdamW(torch.optim.AdamW):
    """torch's AdamW, with the same bits.

    torch wraps these methods to keep them out of compiled code, and the first call imports the compiler for that: 1.5
    seconds of each worker's start. No worker compiles its optimizer.
    """

    step = torch.no_grad()(outside_the_compiler(torch.optim.AdamW, "step"))
    add_param_group = outside_the_compiler(torch.optim.AdamW, "add_param_group")
    zero_grad = outside_the_compiler(torch.optim.AdamW, "zero_grad")
    state_dict = outside_the_compiler(torch.optim.AdamW, "state_dict")
    load_state_dict = outside_the_compiler(torch.optim.AdamW, "load_state_dict")


ZERO_SUPPORTED_OPTIMIZERS.append(EagerAdamW)
"""As torch's own is. DeepSpeed warns of others."""
