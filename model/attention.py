"""Causal self-attention with partial rotary embedding, shared by Tokenformer and the Transformer baseline.

Shapes: B batch, T sequence, D model width, H heads, E head width, R rotated dimensions of a head.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class RotaryTable(NamedTuple):
    """Cosines and sines of the rotation angles, each (T, R), in at least float32."""

    cos_TR: Tensor
    sin_TR: Tensor


def rotary_table(length: int, width: int, base: float, like: Tensor) -> RotaryTable:
    """The angles position x base^(-2i/R) for `length` positions (RoFormer, arXiv 2104.09864), on `like`'s device.

    Each forward pass computes the table again: it is small, and the engine would cast a module buffer to bf16.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    exponent_R = torch.arange(0, width, 2, device=like.device, dtype=dtype) / max(width, 1)
    position_T = torch.arange(length, device=like.device, dtype=dtype)
    angle_TR = torch.outer(position_T, base**-exponent_R).repeat(1, 2)
    return RotaryTable(angle_TR.cos(), angle_TR.sin())


def rotate(x_BHTE: Tensor, table: RotaryTable) -> Tensor:
    """Rotates the first R dimensions of each head (rotate-half convention), in x's dtype. The rest passes through."""
    width = table.cos_TR.shape[-1]
    if width == 0:
        return x_BHTE
    turned, rest = x_BHTE[..., :width], x_BHTE[..., width:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * table.cos_TR + torch.cat((-second, first), dim=-1) * table.sin_TR
    return torch.cat((turned.to(x_BHTE.dtype), rest), dim=-1)


def causal_attention(q_BTD: Tensor, k_BTD: Tensor, v_BTD: Tensor, num_heads: int, table: RotaryTable) -> Tensor:
    """Causal softmax attention of `num_heads` heads, scaled by 1/sqrt(E): (B, T, D), in the inputs' dtype.

    On a CPU it computes in at least float32: the backward pass of the bf16 kernel is slower there, by a factor of three
    at context 64.
    """

    def heads(x_BTD: Tensor) -> Tensor:
        x_BHTE = x_BTD.unflatten(-1, (num_heads, -1)).transpose(1, 2)
        return x_BHTE.float() if x_BTD.is_cpu and x_BTD.dtype.itemsize < 4 else x_BHTE

    q_BHTE, k_BHTE = rotate(heads(q_BTD), table), rotate(heads(k_BTD), table)
    out_BHTE = F.scaled_dot_product_attention(q_BHTE, k_BHTE, heads(v_BTD), is_causal=True)
    return out_BHTE.transpose(1, 2).flatten(-2).to(q_BTD.dtype)
