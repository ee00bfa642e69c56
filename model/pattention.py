"""Pattention: attention of data tokens over learnable parameter tokens (arXiv 2410.23168, section 3.1, equations 3, 4).

Shapes: B batch, T sequence, D model width, N parameter tokens of all generations.
"""

from collections.abc import Iterator, Sequence

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
    return token_scores(x_BTD, key_ND, tau, score_function) @ value_ND


def token_scores(x_BTD: Tensor, key_ND: Tensor, tau: float, score_function: ScoreFunction) -> Tensor:
    """The factor of each parameter token's value at each data token, (B, T, N) in x's dtype: theta(X K^T)."""
    score_BTN = x_BTD @ key_ND.mT
    if score_function == "l2_norm_gelu":
        return F.gelu(score_BTN * _inverse_norm(score_BTN, tau))
    if score_function == "gelu_l2_norm":
        score_BTN = F.gelu(score_BTN)
        return score_BTN * _inverse_norm(score_BTN, tau)
    return torch.softmax(score_BTN, dim=-1) * tau


def _inverse_norm(score_BTN: Tensor, tau: float) -> Tensor:
    dtype = torch.promote_types(score_BTN.dtype, torch.float32)
    norm_BT1 = torch.linalg.vector_norm(score_BTN, dim=-1, keepdim=True, dtype=dtype)
    return (tau / norm_BT1.clamp_min(NORM_FLOOR)).to(score_BTN.dtype)


class Pattention(nn.Module):
    """The layer that stands where a Transformer has a linear one.

    Keys and values are one parameter per generation, named by its number (`key_tokens.0`, `key_tokens.1`, ...), each
    (num_tokens, width), so that growth appends and never touches what is there. tau, key ramps and value shares are
    plain numbers set from the configuration, not buffers: engines cast or drop those.
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
        """Takes tau, key ramps and value shares from `config`, whose generations must be those of the layer."""
        sizes = {str(generation.number): generation.num_tokens for generation in config.generations}
        if sizes != self._sizes:
            raise ValueError(f"generations of {sizes} tokens do not fit a layer of {self._sizes}")
        self.config = config

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) in, (B, T, D) out, in x's dtype."""
        out_BTD, *others = (
            pattend(x_BTD, key_ND, value_ND, tau, self.score_function) for key_ND, value_ND, tau in self.norm_groups()
        )
        for other_BTD in others:
            out_BTD = out_BTD + other_BTD
        return out_BTD

    def norm_groups(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Keys and values, each (N, D), as they act, and tau: of the generations that share one norm, then of others.

        Keys carry their ramp, values their share.
        """
        tokens = zip(self.key_tokens.values(), self.value_tokens.values(), strict=True)
        scales = zip(self.config.generations, self.config.value_shares, strict=True)
        shared: list[tuple[Tensor, Tensor]] = []
        apart: list[tuple[Tensor, Tensor, float]] = []
        for (key_ND, value_ND), (generation, share) in zip(tokens, scales, strict=True):
            key_ND = key_ND if generation.key_ramp == 1 else key_ND * generation.key_ramp
            value_ND = value_ND if share == 1 else value_ND * share
            if generation.tau is None:
                shared.append((key_ND, value_ND))
            else:
                apart.append((key_ND, value_ND, generation.tau))
        keys, values = zip(*shared, strict=True)
        yield _joined(keys), _joined(values), self.config.tau
        yield from apart

    def scores(self, x_BTD: Tensor) -> dict[int, Tensor]:
        """Scores of the input on each generation's tokens, by its number: (B, T, n_g) each, in x's dtype."""
        groups = [token_scores(x_BTD, key_ND, tau, self.score_function) for key_ND, _, tau in self.norm_groups()]
        generations = sorted(self.config.generations, key=lambda generation: generation.tau is not None)
        parts = torch.cat(groups, dim=-1).split([generation.num_tokens for generation in generations], dim=-1)
        return {generation.number: part for generation, part in zip(generations, parts, strict=True)}

    def extra_repr(self) -> str:
        """Sizes by generation, tau and ramps, for print(model)."""
        ramps = tuple(generation.key_ramp for generation in self.config.generations)
        return f"generations={self._sizes}, tau={self.config.tau:.4g}, key_ramps={ramps}"


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
