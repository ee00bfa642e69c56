"""Score functions: how a Pattention normalizes A = X K^T before it multiplies the values, with gradients.

Both work in place. On a CPU they take a few rows at a time, which stay in its cache. Row statistics are in at least
float32. Shapes: M data tokens, N parameter tokens.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from model.tokenformer_config import ScoreFunction

NORM_FLOOR = 1e-30
"""A row of scores with a norm below this counts as zero: its factors are zero, and no gradient flows through it."""

ELEMENTS_AT_ONCE = 2**20
"""Scores per slice on a CPU. With smaller slices, the calls cost more than the cache saves. All rows at once took 10 %
longer (4096 x 8560)."""

_gelu_ = torch.ops.aten.gelu_
_gelu_backward = torch.ops.aten.gelu_backward.grad_input
_softmax_backward = torch.ops.aten._softmax_backward_data.out


def score_factors(score_MN: Tensor, tau: Tensor, function: ScoreFunction, factor_MN: Tensor) -> Tensor | None:
    """Writes each parameter token's factor at each data token into `factor_MN`, which may be `score_MN` itself.

    - `l2_norm_gelu`: gelu(tau A / |A|_2), the paper's equation 4 and the default
    - `gelu_l2_norm`: tau gelu(A) / |gelu(A)|_2
    - `softmax`: tau exp(A) / |exp(A)|_1

    GELU is the exact one, not the tanh approximation. Returns the L2 norms (M, 1). Softmax returns None and leaves its
    probabilities in `score_MN`, unless that is `factor_MN`.
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
    """Replaces the gradient of the factors in `grad_MN` by the gradient of the scores. Returns the recomputed factors.

    `saved_MN` is `score_MN` as `score_factors` left it, `norm_M1` what it returned. Neither changes.
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
    """Replaces the gradient dy of y = s a, s = tau / |a|, by the gradient of a: s (dy - y (y . dy) / |y|^2).

    |y| is computed as s |a| with the rounded s, not as tau. Otherwise the part along y would not cancel well enough.
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
    """Splits all tensors into the same slices of rows: all rows at once, or as many as fit a CPU's cache."""
    if not first.is_cpu or torch.compiler.is_compiling():
        yield first, *others
        return
    at_once = max(1, ELEMENTS_AT_ONCE // max(1, first.shape[-1]))
    yield from zip(*(tensor.split(at_once) for tensor in (first, *others)), strict=True)
