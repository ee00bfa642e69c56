"""Score functions: what a Pattention makes of A = X K^T before it multiplies the values, and the gradient of that.

Both work in the memory they are given, a few rows at a time on a CPU, where those stay in its cache. Statistics of rows
are in at least float32. Shapes: M data tokens, N parameter tokens.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from model.config import ScoreFunction

NORM_FLOOR = 1e-30
"""Below this norm a row of scores counts as zeros: its factors are zeros, and no gradient goes through it."""

ELEMENTS_AT_ONCE = 2**20
"""On a CPU. Fewer cost more in calls than they win in the cache; all at once cost a tenth more (4096 x 8560)."""

_gelu_ = torch.ops.aten.gelu_
_gelu_backward = torch.ops.aten.gelu_backward.grad_input
_softmax_backward = torch.ops.aten._softmax_backward_data.out


def score_factors(score_MN: Tensor, tau: Tensor, function: ScoreFunction, factor_MN: Tensor) -> Tensor | None:
    """Writes each parameter token's factor at each data token into `factor_MN`, which may be the scores themselves.

    - `l2_norm_gelu`: gelu(tau A / |A|_2), the paper's equation 4 and the default
    - `gelu_l2_norm`: tau gelu(A) / |gelu(A)|_2
    - `softmax`: tau exp(A) / |exp(A)|_1

    GELU is the exact one. Returns the L2 norms (M, 1), None for softmax, which leaves its probabilities in `score_MN`
    where that is not `factor_MN`.
    """
    if function == "softmax":
        for score, factor in _rows(score_MN, factor_MN):
            torch.softmax(score, dim=-1, out=score)
            torch.mul(score, tau, out=factor)
        return None
    norm_M1 = score_MN.new_empty((len(score_MN), 1), dtype=_statistics_dtype(score_MN))
    for score, factor, norm in _rows(score_MN, factor_MN, norm_M1):
        if function == "l2_norm_gelu":
            norm.copy_(_norm(score))
            torch.mul(score, _row_scale(norm, tau, score.dtype), out=factor)
            _gelu_(factor)
        else:
            torch.ops.aten.gelu.out(score, out=factor)
            norm.copy_(_norm(factor))
            factor.mul_(_row_scale(norm, tau, score.dtype))
    return norm_M1


def score_gradients(
    saved_MN: Tensor, norm_M1: Tensor | None, tau: Tensor, function: ScoreFunction, grad_MN: Tensor
) -> Tensor:
    """Turns the gradient of the factors, in `grad_MN`, into that of the scores; returns the factors, made anew.

    `saved_MN` and `norm_M1` are what `score_factors` left behind; they stay as they are.
    """
    factor_MN = torch.empty_like(saved_MN)
    norms = saved_MN.new_empty((len(saved_MN), 0)) if norm_M1 is None else norm_M1
    for saved, factor, grad, norm in _rows(saved_MN, factor_MN, grad_MN, norms):
        if function == "softmax":
            torch.mul(saved, tau, out=factor)
            _softmax_backward(grad, saved, -1, saved.dtype, grad_input=grad)
            grad.mul_(tau)
            continue
        scale = _row_scale(norm, tau, saved.dtype)
        if function == "l2_norm_gelu":
            torch.mul(saved, scale, out=factor)
            _gelu_backward(grad, factor, grad_input=grad)
            _normalisation_gradient(factor, scale, norm, grad)
            _gelu_(factor)
        else:
            torch.ops.aten.gelu.out(saved, out=factor)
            factor.mul_(scale)
            _normalisation_gradient(factor, scale, norm, grad)
            _gelu_backward(grad, saved, grad_input=grad)
    return factor_MN


def _normalisation_gradient(normalised: Tensor, scale: Tensor, norm: Tensor, grad: Tensor) -> None:
    """From the gradient of y = s a, s = tau / |a|, to that of a, in place: s (dy - y (y . dy) / |y|^2).

    |y| is s |a| with s as it was rounded, not tau: else what is left along y is no longer small beside the rest.
    """
    length = (scale * norm).square().clamp_min(torch.finfo(norm.dtype).tiny)
    along = (grad * normalised).sum(dim=-1, keepdim=True, dtype=norm.dtype) / length
    grad.addcmul_(normalised, along.to(grad.dtype), value=-1).mul_(scale)


def _row_scale(norm: Tensor, tau: Tensor, dtype: torch.dtype) -> Tensor:
    return (tau / norm).masked_fill_(norm < NORM_FLOOR, 0).to(dtype)


def _norm(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=_statistics_dtype(rows))


def _statistics_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _rows(first: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of all, as many at once as the device likes."""
    if not first.is_cpu or torch.compiler.is_compiling():
        yield first, *others
        return
    at_once = max(1, ELEMENTS_AT_ONCE // max(1, first.shape[-1]))
    yield from zip(*(tensor.split(at_once) for tensor in (first, *others)), strict=True)
