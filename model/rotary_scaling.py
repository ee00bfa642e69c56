"""Rotary frequencies, also scaled for sequences longer than those of training.

Shapes: R rotated dimensions of a head; a frequency turns two of them.
"""

import math

import torch
from torch import Tensor

from model.config import RotaryScaling

FAST_TURNS, SLOW_TURNS = 32, 1
"""YaRN's beta and alpha: a pair of dimensions that turns more often than FAST_TURNS in the training length keeps its
frequency; one that turns less often than SLOW_TURNS is interpolated."""


def rotary_frequencies(
    width: int, base: float, scaling: RotaryScaling | None, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The angle per position of each pair of the `width` rotated dimensions: (R / 2,)."""
    exponent_R = torch.arange(0, width, 2, device=device, dtype=dtype) / max(width, 1)
    if scaling is None:
        return base**-exponent_R
    if scaling.kind == "linear":
        return base**-exponent_R / scaling.factor
    if scaling.kind == "ntk":
        return (base * scaling.factor ** (width / max(width - 2, 1))) ** -exponent_R
    if scaling.kind == "llama3":
        turns_R = scaling.trained_length * base**-exponent_R / (2 * math.pi)
        kept_R = ((turns_R - scaling.low_turns) / (scaling.high_turns - scaling.low_turns)).clamp(0, 1)
    else:
        kept_R = _kept(width, base, scaling.trained_length, dtype, device)
    return base**-exponent_R * (kept_R + (1 - kept_R) / scaling.factor)


def _kept(width: int, base: float, trained_length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """YaRN's ramp: how much of each frequency stays, from 1 for the fast to 0 for the slow ones."""

    def pair_that_turns(turns: float) -> float:
        return width * math.log(trained_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(pair_that_turns(FAST_TURNS)), 0)
    last = min(math.ceil(pair_that_turns(SLOW_TURNS)), width - 1)
    span = max(last - first, 0.001)  # as in the paper's code: a step where the ramp has no room
    pair_R = torch.arange(width // 2, device=device, dtype=dtype)
    return 1 - ((pair_R - first) / span).clamp(0, 1)
