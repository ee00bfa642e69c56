"""Launches the fused GPU kernels of a Pattention with `l2_norm_gelu` scores, forward and backward.

Shapes: M data tokens, D width of the input, N parameter tokens, O width of the output. A matrix named `_MN` has the
shape of the scores; its rows may be longer than N in memory (`score_matrix`).

With A = x key^T, Z = tau A / |A| and S = gelu(Z), all of them (M, N), a Pattention's output is S value. cuBLAS computes
the two matrix products forward and the four backward. One pass over the scores between them does the rest, forward and
backward. Kernels that fuse GELU into the products would recompute it for each tile of the width; from a width of 256
on, by calculation, that costs more than the memory traffic it saves.

The forward pass saves A in x's dtype and the norms. The backward pass needs memory for two (M, N) matrices. Sums are
computed in float32 and in a fixed order.
"""

import functools
import importlib.util
import math
import os
from types import ModuleType

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

ROW_ELEMENTS = 64
"""The length of score rows is a multiple of this: 128 bytes in half precision, so that rows start on cache lines."""


def usable(x: Tensor) -> bool:
    """Whether the kernels support tensors like `x`: half or single precision, triton installed, Ampere or a newer GPU.

    They support CPU tensors if triton interprets its kernels: set TRITON_INTERPRET=1 before triton is first imported.
    """
    if x.dtype not in DTYPES or not _triton_is_there():
        return False
    if x.is_cuda:
        return torch.cuda.get_device_capability(x.device) >= (8, 0)
    return x.device.type == "cpu" and "TRITON_INTERPRET" in os.environ and bool(_kernels().INTERPRETED)


def forward(x_MD: Tensor, key_ND: Tensor, value_NO: Tensor, tau: float) -> tuple[Tensor, Tensor, Tensor]:
    """The output (M, O) and the scores A (M, N), both in x's dtype, and the norms of the scores (M,) in float32.

    `backward` needs the scores and norms. A row of zero scores gives an output of zeros. Raises ValueError if sizes,
    dtypes or devices do not match, or if a tensor is not contiguous.
    """
    _check(x_MD=(x_MD, "MD"), key_ND=(key_ND, "ND"), value_NO=(value_NO, "NO"))
    with torch.cuda.device_of(x_MD):
        score_MN = torch.mm(x_MD, key_ND.mT, out=score_matrix(x_MD, len(key_ND)))
        factor_MN, norm_M = gelu_of_normalised(score_MN, tau)
        return factor_MN @ value_NO, score_MN, norm_M


def backward(
    grad_out_MO: Tensor, x_MD: Tensor, key_ND: Tensor, value_NO: Tensor, score_MN: Tensor, norm_M: Tensor, tau: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (M, D), keys (N, D) and values (N, O), in the inputs' dtype.

    `score_MN` and `norm_M` are from `forward`. A row of zero scores contributes no gradient to its
    x or to the keys. Raises ValueError as `forward` does.
    """
    _check(grad_out_MO=(grad_out_MO, "MO"), x_MD=(x_MD, "MD"), key_ND=(key_ND, "ND"), value_NO=(value_NO, "NO"))
    num_tokens = len(key_ND)
    if score_MN.shape != (len(x_MD), num_tokens) or score_MN.dtype != x_MD.dtype or norm_M.shape != (len(x_MD),):
        raise ValueError(f"score_MN: {score_MN.dtype} {tuple(score_MN.shape)} is not what forward returned")
    if score_MN.stride() not in ((num_tokens, 1), (_row_elements(num_tokens), 1)):
        raise ValueError(f"score_MN: strides {score_MN.stride()} are not what forward returned")
    with torch.cuda.device_of(x_MD):
        grad_MN = torch.mm(grad_out_MO, value_NO.mT, out=score_matrix(x_MD, num_tokens, score_MN.stride(0)))
        factor_MN = score_gradient_(grad_MN, score_MN, norm_M, tau)
        grad_value_NO = factor_MN.mT @ grad_out_MO
        del factor_MN
        return grad_MN @ key_ND, grad_MN.mT @ x_MD, grad_value_NO


def score_matrix(x_MD: Tensor, num_tokens: int, row_elements: int | None = None) -> Tensor:
    """An uninitialised (M, N) matrix in x's dtype. Its rows are `row_elements` long in memory; the padding is zero."""
    rows = x_MD.new_empty(len(x_MD), row_elements or _row_elements(num_tokens))
    if rows.shape[1] > num_tokens:
        rows[:, num_tokens:].zero_()
    return rows[:, :num_tokens]


def gelu_of_normalised(score_MN: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """S (M, N) and the norms (M,), in one pass over A: all the work between the forward products."""
    (num_rows, num_tokens), stride = score_MN.shape, score_MN.stride(0)
    factor_MN = score_MN.new_empty(num_rows, stride)[:, :num_tokens]
    norm_M = score_MN.new_empty(num_rows, dtype=torch.float32)
    tokens = _row_tile(stride)
    _kernels().gelu_rows[(num_rows,)](
        score_MN, norm_M, factor_MN, tau, stride, TOKENS=tokens, num_warps=_row_warps(tokens)
    )
    return factor_MN, norm_M


def score_gradient_(grad_MN: Tensor, score_MN: Tensor, norm_M: Tensor, tau: float) -> Tensor:
    """Replaces dS in `grad_MN` by dA and returns S (M, N), in one pass: all the work between the backward products."""
    (num_rows, num_tokens), stride = score_MN.shape, score_MN.stride(0)
    factor_MN = score_MN.new_empty(num_rows, stride)[:, :num_tokens]
    tokens = _row_tile(stride)
    _kernels().score_gradient_rows[(num_rows,)](
        score_MN, norm_M, grad_MN, factor_MN, tau, stride, TOKENS=tokens, num_warps=_row_warps(tokens)
    )
    return factor_MN


def _row_elements(num_tokens: int) -> int:
    return math.ceil(num_tokens / ROW_ELEMENTS) * ROW_ELEMENTS


def _row_tile(stride: int) -> int:
    """Elements that a program reads at once from its row."""
    return min(1 << (stride - 1).bit_length(), 2048)


def _row_warps(tokens: int) -> int:
    """Warps for a row tile: each thread gets eight elements, 16 bytes in half precision."""
    return max(tokens // 256, 1)


def _check(**matrices: tuple[Tensor, str]) -> None:
    """Raises ValueError unless the matrices match. Each comes with its name and the letters of its dimensions."""
    sizes: dict[str, int] = {}
    first, _ = next(iter(matrices.values()))
    for name, (matrix, letters) in matrices.items():
        if matrix.dtype not in DTYPES or matrix.dtype != first.dtype or matrix.device != first.device:
            raise ValueError(
                f"{name}: {matrix.dtype} on {matrix.device} does not match {first.dtype} on {first.device}"
            )
        if matrix.dim() != 2 or not matrix.is_contiguous() or matrix.numel() == 0:
            raise ValueError(f"{name}: {tuple(matrix.shape)} is not a contiguous, non-empty matrix")
        for letter, size in zip(letters, matrix.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(f"{name}: {tuple(matrix.shape)} does not match {letter} = {sizes[letter]}")


@functools.cache
def _triton_is_there() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _kernels() -> ModuleType:
    """The module of the kernels. It is imported on first use, because it imports triton."""
    return importlib.import_module("model.kernels.rows")
