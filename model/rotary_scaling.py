"""Rotary frequencies for sequences longer than those of training.

Shapes: R rotated dimensions of a head; a frequency turns two of them.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

ScalingKind = Literal["linear", "ntk", "yarn"]

FAST_TURNS, SLOW_TURNS = 32, 1
"""YaRN's beta and alpha: a pair of dimensions that turns more often than FAST_TURNS in the training length keeps its
frequency; one that turns less often than SLOW_TURNS is interpolated."""


@dataclass(frozen=True)
class RotaryScaling:
    """How rotary frequencies change for a sequence of `factor` times `trained_length` tokens.

    - `linear`: position interpolation (arXiv 2306.15595). All frequencies are divided by the factor.
    - `ntk`: NTK-aware scaling. The base grows by factor^(R / (R - 2)), so that the slowest frequency is divided by the
      factor and the fastest stays.
    - `yarn`: YaRN (arXiv 2309.00071). Slow frequencies are divided by the factor, fast ones stay, with a linear
      ramp in between; the attention logits are multiplied by (0.1 ln(factor) + 1)^2.
    """

    kind: ScalingKind
    factor: float
    """Above 1: the length to evaluate at / `trained_length`."""

    trained_length: int
    """Tokens of a training sequence."""

    @property
    def logit_factor(self) -> float:
        """The factor on attention logits, which is 1 / temperature."""
        return (0.1 * math.log(self.factor) + 1.0) ** 2 if self.kind == "yarn" else 1.0


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
