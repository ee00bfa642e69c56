"""Activation checkpointing: segments of blocks keep only their input, and the backward pass computes the rest again.

Shapes: B batch, T sequence, D model width.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from model.attention import RotaryTable


def recomputed_blocks(
    blocks: Sequence[nn.Module], every: int, x_BTD: Tensor, table: RotaryTable, mask_BHTT: Tensor | None
) -> Tensor:
    """The output of `blocks`, (B, T, D). Autograd keeps the input of every `every`-th block, and nothing between them.

    The backward pass computes each segment of `every` blocks a second time, as a whole: neither family draws random
    numbers, so it gets the same bits.
    """
    from torch.utils.checkpoint import checkpoint  # on use: it imports torch's compiler, for 2 seconds

    cos_PR, sin_PR, logit_factor = table
    for first in range(0, len(blocks), every):
        segment = blocks[first : first + every]

        def through(x_BTD: Tensor, cos_PR: Tensor, sin_PR: Tensor, mask_BHTT: Tensor | None, segment=segment) -> Tensor:
            for block in segment:
                x_BTD = block(x_BTD, RotaryTable(cos_PR, sin_PR, logit_factor), mask_BHTT)
            return x_BTD

        # Without early stop: it would end a pass between the hooks with which ZeRO-3 gathers and releases parameters.
        x_BTD = checkpoint(
            *(through, x_BTD, cos_PR, sin_PR, mask_BHTT),
            use_reentrant=False,
            preserve_rng_state=False,
            early_stop=False,
        )
    return x_BTD
