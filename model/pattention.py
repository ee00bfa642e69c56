"""Pattention: attention of data tokens over learnable parameter tokens (arXiv 2410.23168, section 3.1, equations 3, 4).

Shapes: B batch, T sequence, D model width, N parameter tokens of all generations.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import PattentionConfig, ScoreFunction

NORM_FLOOR = 1e-30
"""Smallest norm that a row of scores is divided by: only a row of zeros meets it."""


def pattend(x_BTD: Tensor, key_ND: Tensor, value_ND: Tensor, tau: float, score_function: ScoreFunction) -> Tensor:
    """Scores of the data tokens on the parameter tokens, times the values: theta(X K^T) V, in x's dtype.

    - `l2_norm_gelu`: gelu(tau A / |A|_2), the paper's equation 4 and the default
    - `gelu_l2_norm`: tau gelu(A) / |gelu(A)|_2
    - `softmax`: tau exp(A) / |exp(A)|_1

    with A = X K^T, norms over the parameter tokens and in at least float32. GELU is the exact one.
    """
    score_BTN = x_BTD @ key_ND.mT
    if score_function == "l2_norm_gelu":
        score_BTN = F.gelu(score_BTN * _inverse_norm(score_BTN, tau))
    elif score_function == "gelu_l2_norm":
        score_BTN = F.gelu(score_BTN)
        score_BTN = score_BTN * _inverse_norm(score_BTN, tau)
    else:
        score_BTN = torch.softmax(score_BTN, dim=-1) * tau
    return score_BTN @ value_ND


def _inverse_norm(score_BTN: Tensor, tau: float) -> Tensor:
    dtype = torch.promote_types(score_BTN.dtype, torch.float32)
    norm_BT1 = torch.linalg.vector_norm(score_BTN, dim=-1, keepdim=True, dtype=dtype)
    return (tau / norm_BT1.clamp_min(NORM_FLOOR)).to(score_BTN.dtype)


class Pattention(nn.Module):
    """The layer that stands where a Transformer has a linear one.

    Keys and values are one parameter per generation, named by its number (`key_tokens.0`, `key_tokens.1`, ...), each
    (num_tokens, width), so that growth appends and never touches what is there. tau and the key ramps are plain numbers
    set from the configuration, not buffers: engines cast or drop those.
    """

    def __init__(self, config: PattentionConfig, width: int, score_function: ScoreFunction) -> None:
        super().__init__()
        self.score_function = score_function
        self._sizes = {str(generation.number): generation.num_tokens for generation in config.generations}
        self.key_tokens, self.value_tokens = (
            nn.ParameterDict([(number, nn.Parameter(torch.empty(n, width))) for number, n in self._sizes.items()])
            for _ in ("keys", "values")
        )
        self.set_scale(config)

    def set_scale(self, config: PattentionConfig) -> None:
        """Takes tau and the key ramps from `config`, whose generations are those the layer was built with."""
        sizes = {str(generation.number): generation.num_tokens for generation in config.generations}
        if sizes != self._sizes:
            raise ValueError(f"generations of {sizes} tokens do not fit a layer of {self._sizes}")
        self.tau = config.tau
        self.key_ramps = tuple(generation.key_ramp for generation in config.generations)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) in, (B, T, D) out, in x's dtype."""
        ramped = zip(self.key_tokens.values(), self.key_ramps, strict=True)
        keys = [key_ND if g == 1.0 else key_ND * g for key_ND, g in ramped]
        values = list(self.value_tokens.values())
        key_ND = keys[0] if len(keys) == 1 else torch.cat(keys)
        value_ND = values[0] if len(values) == 1 else torch.cat(values)
        return pattend(x_BTD, key_ND, value_ND, self.tau, self.score_function)

    def extra_repr(self) -> str:
        """Sizes by generation, tau and ramps, for print(model)."""
        return f"generations={self._sizes}, tau={self.tau:.4g}, key_ramps={self.key_ramps}"
