"""Activation checkpointing: segments of blocks keep only their input, and the backward pass computes the rest again.

Shapes: B batch, T sequence, D model width.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from model.attention import RotaryTable


def recomputed_blocks(blocks: Sequence[Callable[..., Tensor]], every: int, x_BTD: Tensor, table: RotaryTable) -> Tensor:
    """The output of `blocks`, (B, T, D). Autograd keeps the input of every `every`-th block, and nothing between them.

    The backward pass computes each segment of `every` blocks a second time, as a whole. Blocks draw no random numbers,
    so it gets the same bits.
    """
    from torch.utils.checkpoint import checkpoint  # on use: it imports torch's compiler, for 2 seconds

    for first in range(0, len(blocks), every):
        x_BTD = checkpoint(
            *(partial(_through, blocks[first : first + every], table.logit_factor), x_BTD),
            *(table.cos_PR, table.sin_PR),
            use_reentrant=False,
            preserve_rng_state=False,
            early_stop=False,
        )
    return x_BTD


def _through(
    segment: Sequence[Callable[..., Tensor]], logit_factor: float, x_BTD: Tensor, cos_PR: Tensor, sin_PR: Tensor
) -> Tensor:
    """The output of a segment."""
    for block in segment:
        x_BTD = block(x_BTD, RotaryTable(cos_PR, sin_PR, logit_factor))
    return _SegmentEnd.apply(x_BTD)


class _SegmentEnd(torch.autograd.Function):
    """The identity. Its backward pass asks for a saved tensor, and so has the segment recomputed before any block's.

    ZeRO-3 gathers a layer's parameters before its backward pass, and releases them after each forward pass. Were the
    segment recomputed in the backward pass of its last layer, that layer would lose its parameters in between.
    """

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor) -> Tensor:
        ctx.save_for_backward(x_BTD)
        return x_BTD.view_as(x_BTD)

    @staticmethod
    def backward(ctx: Any, grad_BTD: Tensor) -> Tensor:
        _ = ctx.saved_tensors
        return grad_BTD
