"""Triton kernels for the `l2_norm_gelu` scores of a Pattention, between its matrix products.

`model/kernels/launch.py` launches the kernels and imports this module on first use, because it imports triton.

Names: A scores, Z = tau A / |A|, S = gelu(Z); dS, dZ and dA are their gradients. Unit scores are A / |A|, or 0 if |A|
is 0. Rows of scores have `stride` elements in memory, a multiple of 64, because only aligned rows can be read and
masked in wide words; elements beyond the last parameter token are zero, and the kernels compute with them. Each program
processes one row: it reads the row from memory once and then from the cache.
"""

import triton
import triton.language as tl

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether triton interprets the kernels on CPU tensors. TRITON_INTERPRET=1 turns this on when triton is imported."""


@triton.jit
def normal_cdf(z: tl.tensor) -> tl.tensor:
    """The normal distribution function at z. GELU is z times this."""
    return 0.5 + 0.5 * tl.math.erf(z * 0.7071067811865476)


@triton.jit
def gelu_slope(z: tl.tensor, cdf: tl.tensor) -> tl.tensor:
    """The derivative of GELU at z; `cdf` is `normal_cdf(z)`."""
    return cdf + z * 0.3989422804014327 * tl.exp(-0.5 * z * z)


@triton.jit
def gelu_rows(
    score_ptr: tl.tensor, norm_ptr: tl.tensor, factor_ptr: tl.tensor, tau: float, stride: int, TOKENS: tl.constexpr
) -> None:
    """Computes the norm of a row of A, and S."""
    row = tl.cast(tl.program_id(0), tl.int64)
    tokens = tl.arange(0, TOKENS)
    squares = tl.zeros((TOKENS,), tl.float32)
    for token in range(0, stride, TOKENS):
        score = tl.load(score_ptr + row * stride + token + tokens, mask=token + tokens < stride, other=0.0)
        squares += score.to(tl.float32) * score.to(tl.float32)
    norm = tl.sqrt_rn(tl.sum(squares, axis=0))
    tl.store(norm_ptr + row, norm)
    scale = tl.where(norm > 0, tau / norm, 0.0)
    for token in range(0, stride, TOKENS):
        inside = token + tokens < stride
        score = tl.load(score_ptr + row * stride + token + tokens, mask=inside, other=0.0)
        z = score.to(tl.float32) * scale
        tl.store(factor_ptr + row * stride + token + tokens, (z * normal_cdf(z)).to(score.dtype), mask=inside)


@triton.jit
def score_gradient_rows(
    score_ptr: tl.tensor,
    norm_ptr: tl.tensor,
    grad_ptr: tl.tensor,
    factor_ptr: tl.tensor,
    tau: float,
    stride: int,
    TOKENS: tl.constexpr,
) -> None:
    """Computes S for a row and replaces dS by dA; dZ is stored there in between."""
    row = tl.cast(tl.program_id(0), tl.int64)
    tokens = tl.arange(0, TOKENS)
    norm = tl.load(norm_ptr + row)
    inverse = tl.where(norm > 0, 1.0 / norm, 0.0)
    overlaps = tl.zeros((TOKENS,), tl.float32)
    for token in range(0, stride, TOKENS):
        inside = token + tokens < stride
        score = tl.load(score_ptr + row * stride + token + tokens, mask=inside, other=0.0)
        grad = tl.load(grad_ptr + row * stride + token + tokens, mask=inside, other=0.0)
        unit = score.to(tl.float32) * inverse
        z = unit * tau
        cdf = normal_cdf(z)
        grad = (grad.to(tl.float32) * gelu_slope(z, cdf)).to(grad.dtype)
        tl.store(factor_ptr + row * stride + token + tokens, (z * cdf).to(score.dtype), mask=inside)
        tl.store(grad_ptr + row * stride + token + tokens, grad, mask=inside)
        overlaps += grad.to(tl.float32) * unit
    overlap = tl.sum(overlaps, axis=0)
    tl.debug_barrier()  # another thread may read back what this one wrote
    for token in range(0, stride, TOKENS):
        inside = token + tokens < stride
        score = tl.load(score_ptr + row * stride + token + tokens, mask=inside, other=0.0)
        grad = tl.load(grad_ptr + row * stride + token + tokens, mask=inside, other=0.0)
        grad_score = (grad.to(tl.float32) - score.to(tl.float32) * inverse * overlap) * (tau * inverse)
        tl.store(grad_ptr + row * stride + token + tokens, grad_score.to(grad.dtype), mask=inside)
