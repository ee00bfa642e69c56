"""Self-attention with partial rotary embedding, and the norms, shared by both model families.

Shapes: B batch, T sequence, D model width, H query heads, K heads of keys and values, E head width, R rotated
dimensions of a head, P positions: (T,) or, if the rows of a batch differ, (B, 1, T).
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from model.cache import LayerCache
from model.config import Norm, RotaryScaling
from model.documents import AttentionMask, attention_in_blocks

FAST_TURNS, SLOW_TURNS = 32, 1
"""YaRN's beta and alpha: a pair of dimensions that turns more often than FAST_TURNS in the training length keeps its
frequency; one that turns less often than SLOW_TURNS is interpolated."""


class RotaryTable(NamedTuple):
    """Cosines and sines of the rotation angles, each (P, R), in at least float32."""

    cos_PR: Tensor
    sin_PR: Tensor
    logit_factor: float = 1.0
    """The factor on attention logits; only YaRN's is not 1."""


def rotary_table(
    position_P: Tensor, width: int, base: float, like: Tensor, scaling: RotaryScaling | None = None
) -> RotaryTable:
    """The angles position x base^(-2i/R) of `position_P` (RoFormer, arXiv 2104.09864), on `like`'s device.

    `scaling` changes the frequencies for sequences longer than those of training.

    Each forward pass computes the table again: it is small, and the engine would cast a module buffer to bf16.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    frequency_R = rotary_frequencies(width, base, scaling, dtype=dtype, device=like.device)
    angle_PR = position_P.to(dtype)[..., None] * frequency_R
    angle_PR = torch.cat((angle_PR, angle_PR), dim=-1)
    return RotaryTable(angle_PR.cos(), angle_PR.sin(), scaling.logit_factor if scaling else 1.0)


def rotary_frequencies(
    width: int, base: float, scaling: RotaryScaling | None, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The angle per position of each pair of the `width` rotated dimensions, scaled for sequences longer than those of
    training: (R / 2,)."""
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
        kept_R = _kept_frequencies(width, base, scaling.trained_length, dtype, device)
    return base**-exponent_R * (kept_R + (1 - kept_R) / scaling.factor)


def _kept_frequencies(width: int, base: float, trained_length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """YaRN's ramp: how much of each frequency stays, from 1 for the fast to 0 for the slow ones."""

    def pair_that_turns(turns: float) -> float:
        return width * math.log(trained_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(pair_that_turns(FAST_TURNS)), 0)
    last = min(math.ceil(pair_that_turns(SLOW_TURNS)), width - 1)
    span = max(last - first, 0.001)  # as in the paper's code: a step where the ramp has no room
    pair_R = torch.arange(width // 2, device=device, dtype=dtype)
    return 1 - ((pair_R - first) / span).clamp(0, 1)


def rotate(x_BHTE: Tensor, table: RotaryTable) -> Tensor:
    """Rotates the first R dimensions of each head (rotate-half convention), in x's dtype. The rest passes through."""
    width = table.cos_PR.shape[-1]
    if width == 0:
        return x_BHTE
    turned, rest = x_BHTE[..., :width], x_BHTE[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * table.cos_PR + torch.cat((-second, first), dim=-1) * table.sin_PR
    return torch.cat((turned.to(x_BHTE.dtype), rest), dim=-1)


def attention_dtype(like: Tensor) -> torch.dtype:
    """The dtype that attention computes in: that of `like`, on a CPU at least float32.

    The backward pass of the bf16 kernel is slower on a CPU, by a factor of three at context 64.
    """
    return torch.float32 if like.is_cpu and like.dtype.itemsize < 4 else like.dtype


def normalized(
    x_BTD: Tensor, norm: Norm, epsilon: float, gain_D: Tensor | None = None, bias_D: Tensor | None = None
) -> Tensor:
    """The norm of the residual stream at each position, with what it has of gain and bias."""
    if norm == "rmsnorm":
        return F.rms_norm(x_BTD, x_BTD.shape[-1:], gain_D, epsilon)
    return F.layer_norm(x_BTD, x_BTD.shape[-1:], gain_D, bias_D, epsilon)


def normalized_heads(x_BTD: Tensor, head_width: int, epsilon: float, gain_E: Tensor | None = None) -> Tensor:
    """Queries or keys with an RMSNorm over each head: `qk_norm`."""
    return F.rms_norm(x_BTD.unflatten(-1, (-1, head_width)), (head_width,), gain_E, epsilon).flatten(-2)


def self_attention(
    q_BTD: Tensor,
    k_BTD: Tensor,
    v_BTD: Tensor,
    head_width: int,
    table: RotaryTable,
    mask: AttentionMask | None = None,
    past: LayerCache | None = None,
    is_causal: bool = True,
) -> Tensor:
    """Softmax attention scaled by 1/sqrt(E): (B, T, H E), in the inputs' dtype. Queries see no later keys if it
    `is_causal`, otherwise all.

    With K < H heads of keys and values, each serves H / K query heads in order (grouped queries, arXiv 2305.13245).
    `mask`, (B, H, T, T) or one of blocks (model/documents.py), says instead what the queries may see. With `past`, the
    new keys and values are appended to it, and the queries see what its own mask says, by default all that it returns.
    """
    dtype = attention_dtype(q_BTD)

    def heads(x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (-1, head_width)).transpose(1, 2).to(dtype)

    q_BHTE, k_BKTE, v_BKTE = rotate(heads(q_BTD), table), rotate(heads(k_BTD), table), heads(v_BTD)
    if table.logit_factor != 1.0:
        q_BHTE = q_BHTE * table.logit_factor
    grouped = {"enable_gqa": True} if q_BHTE.shape[1] != k_BKTE.shape[1] else {}
    if past is not None:
        k_BKTE, v_BKTE = past.append(k_BKTE, v_BKTE)
        mask, is_causal = past.mask_BHTC, past.is_causal
    if mask is None or isinstance(mask, Tensor):
        is_causal = is_causal and mask is None
        out_BHTE = F.scaled_dot_product_attention(q_BHTE, k_BKTE, v_BKTE, mask, is_causal=is_causal, **grouped)
    else:
        out_BHTE = attention_in_blocks(q_BHTE, k_BKTE, v_BKTE, mask)
    return out_BHTE.transpose(1, 2).flatten(-2).to(q_BTD.dtype)
