"""Launches the fused GPU kernels of a Pattention with `l2_norm_gelu` scores, forward and backward.

Shapes: M data tokens, D width of the input, N parameter tokens, O width of the output. A matrix named `_MN` has the
shape of the scores; its rows may be longer than N in memory (`score_matrix`).

With A = x key^T, Z = tau A / |A| and S = gelu(Z), all of them (M, N), a Pattention's output is S value. There are two
matrix products forward and four backward. `fusion` decides where the elementwise work on the scores is done:

- `full`: inside the products, as they read and write tiles of scores. S and dA never exist in memory. Elements that
  several tiles read are recomputed for each of them.
- `elementwise`: cuBLAS computes the products. One pass over the scores between them does the rest, forward and
  backward.

The forward pass saves A in x's dtype and the norms. The backward pass needs memory for one (M, N) matrix (`full`) or
two (`elementwise`). Sums are computed in float32 and in a fixed order. Only the first call of each size waits for the
device, because it times the possible tiles: make that call before you capture a CUDA graph.
"""

import functools
import importlib.util
import math
import os
from collections.abc import Callable
from types import ModuleType
from typing import Literal, get_args

import torch
from torch import Tensor

Fusion = Literal["full", "elementwise"]

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
    return x.device.type == "cpu" and "TRITON_INTERPRET" in os.environ and bool(_kernels("products").INTERPRETED)


def forward(
    x_MD: Tensor, key_ND: Tensor, value_NO: Tensor, tau: float, fusion: Fusion = "full"
) -> tuple[Tensor, Tensor, Tensor]:
    """The output (M, O) and the scores A (M, N), both in x's dtype, and the norms of the scores (M,) in float32.

    `backward` needs the scores and norms. A row of zero scores gives an output of zeros. Raises ValueError if sizes,
    dtypes or devices do not match, or if a tensor is not contiguous.
    """
    _check(fusion, x_MD=(x_MD, "MD"), key_ND=(key_ND, "ND"), value_NO=(value_NO, "NO"))
    with torch.cuda.device_of(x_MD):
        if fusion == "full":
            score_MN, norm_M = scores(x_MD, key_ND)
            return weighted_values(score_MN, norm_M, value_NO, tau), score_MN, norm_M
        score_MN = torch.mm(x_MD, key_ND.mT, out=score_matrix(x_MD, len(key_ND)))
        factor_MN, norm_M = gelu_of_normalised(score_MN, tau)
        return factor_MN @ value_NO, score_MN, norm_M


def backward(
    grad_out_MO: Tensor,
    x_MD: Tensor,
    key_ND: Tensor,
    value_NO: Tensor,
    score_MN: Tensor,
    norm_M: Tensor,
    tau: float,
    fusion: Fusion = "full",
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (M, D), keys (N, D) and values (N, O), in the inputs' dtype.

    `score_MN` and `norm_M` are from `forward`, with either fusion. A row of zero scores contributes no gradient to its
    x or to the keys. Raises ValueError as `forward` does.
    """
    _check(fusion, grad_out_MO=(grad_out_MO, "MO"), x_MD=(x_MD, "MD"), key_ND=(key_ND, "ND"), value_NO=(value_NO, "NO"))
    num_tokens = len(key_ND)
    if score_MN.shape != (len(x_MD), num_tokens) or score_MN.dtype != x_MD.dtype or norm_M.shape != (len(x_MD),):
        raise ValueError(f"score_MN: {score_MN.dtype} {tuple(score_MN.shape)} is not what forward returned")
    if score_MN.stride() not in ((num_tokens, 1), (_row_elements(num_tokens), 1)):
        raise ValueError(f"score_MN: strides {score_MN.stride()} are not what forward returned")
    with torch.cuda.device_of(x_MD):
        if fusion == "full":
            grad_MN, overlap_M = normalised_gradient(grad_out_MO, value_NO, score_MN, norm_M, tau)
            return (
                input_gradient(score_MN, norm_M, grad_MN, overlap_M, key_ND, tau),
                key_gradient(score_MN, norm_M, grad_MN, overlap_M, x_MD, tau),
                value_gradient(score_MN, norm_M, grad_out_MO, tau),
            )
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


def scores(x_MD: Tensor, key_ND: Tensor) -> tuple[Tensor, Tensor]:
    """A = x key^T and the norms of its rows: product 1 of 6."""
    products = _kernels("products")
    (num_rows, width), num_tokens = x_MD.shape, len(key_ND)
    stride = _row_elements(num_tokens)
    score_MN = x_MD.new_empty(num_rows, stride)[:, :num_tokens]
    squares = _shares(score_MN)
    products.score_product[_score_grid(score_MN)](
        x_MD, key_ND, score_MN, squares, num_rows, num_tokens, width, stride, _bucket(num_rows)
    )
    return score_MN, squares.sum(dim=0).sqrt_()


def weighted_values(score_MN: Tensor, norm_M: Tensor, value_NO: Tensor, tau: float) -> Tensor:
    """S value, (M, O), with S computed on the fly: product 2 of 6."""
    return _sum_over_tokens(score_MN, norm_M, None, None, value_NO, tau)


def normalised_gradient(
    grad_out_MO: Tensor, value_NO: Tensor, score_MN: Tensor, norm_M: Tensor, tau: float
) -> tuple[Tensor, Tensor]:
    """dZ = (grad_out value^T) gelu'(Z), (M, N), and the dot products of its rows with A / |A|, (M,): product 3 of 6."""
    products = _kernels("products")
    (num_rows, width), num_tokens, stride = grad_out_MO.shape, len(value_NO), score_MN.stride(0)
    grad_MN = score_MN.new_empty(num_rows, stride)[:, :num_tokens]
    overlaps = _shares(score_MN)
    products.slope_product[_score_grid(score_MN)](
        grad_out_MO,
        value_NO,
        score_MN,
        norm_M,
        grad_MN,
        overlaps,
        tau,
        num_rows,
        num_tokens,
        width,
        stride,
        _bucket(num_rows),
    )
    return grad_MN, overlaps.sum(dim=0)


def input_gradient(
    score_MN: Tensor, norm_M: Tensor, grad_MN: Tensor, overlap_M: Tensor, key_ND: Tensor, tau: float
) -> Tensor:
    """dA key, (M, D), with dA computed from dZ on the fly: product 4 of 6."""
    return _sum_over_tokens(score_MN, norm_M, grad_MN, overlap_M, key_ND, tau)


def key_gradient(
    score_MN: Tensor, norm_M: Tensor, grad_MN: Tensor, overlap_M: Tensor, x_MD: Tensor, tau: float
) -> Tensor:
    """dA^T x, (N, D), with dA computed from dZ on the fly: product 5 of 6."""
    return _sum_over_rows(score_MN, norm_M, grad_MN, overlap_M, x_MD, tau)


def value_gradient(score_MN: Tensor, norm_M: Tensor, grad_out_MO: Tensor, tau: float) -> Tensor:
    """S^T grad_out, (N, O), with S computed on the fly: product 6 of 6."""
    return _sum_over_rows(score_MN, norm_M, None, None, grad_out_MO, tau)


def gelu_of_normalised(score_MN: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """S (M, N) and the norms (M,), in one pass over A: all the work between the forward products."""
    (num_rows, num_tokens), stride = score_MN.shape, score_MN.stride(0)
    factor_MN = score_MN.new_empty(num_rows, stride)[:, :num_tokens]
    norm_M = score_MN.new_empty(num_rows, dtype=torch.float32)
    tokens = _row_tile(stride)
    _kernels("rows").gelu_rows[(num_rows,)](
        score_MN, norm_M, factor_MN, tau, stride, TOKENS=tokens, num_warps=_row_warps(tokens)
    )
    return factor_MN, norm_M


def score_gradient_(grad_MN: Tensor, score_MN: Tensor, norm_M: Tensor, tau: float) -> Tensor:
    """Replaces dS in `grad_MN` by dA and returns S (M, N), in one pass: all the work between the backward products."""
    (num_rows, num_tokens), stride = score_MN.shape, score_MN.stride(0)
    factor_MN = score_MN.new_empty(num_rows, stride)[:, :num_tokens]
    tokens = _row_tile(stride)
    _kernels("rows").score_gradient_rows[(num_rows,)](
        score_MN, norm_M, grad_MN, factor_MN, tau, stride, TOKENS=tokens, num_warps=_row_warps(tokens)
    )
    return factor_MN


def _sum_over_tokens(
    score_MN: Tensor, norm_M: Tensor, grad_MN: Tensor | None, overlap_M: Tensor | None, token_NW: Tensor, tau: float
) -> Tensor:
    """S token_NW or, given dZ and its overlaps, dA token_NW: (M, W)."""
    (num_rows, num_tokens), width = score_MN.shape, token_NW.shape[1]
    out_MW = score_MN.new_empty(num_rows, width)
    _kernels("products").sum_over_tokens[
        lambda tile: (math.ceil(num_rows / tile["ROWS"]) * math.ceil(width / tile["COLUMNS"]),)
    ](
        score_MN,
        score_MN if grad_MN is None else grad_MN,
        norm_M,
        norm_M if overlap_M is None else overlap_M,
        token_NW,
        out_MW,
        tau,
        num_rows,
        num_tokens,
        width,
        score_MN.stride(0),
        _bucket(num_rows),
        GRADIENT=grad_MN is not None,
    )
    return out_MW


def _sum_over_rows(
    score_MN: Tensor, norm_M: Tensor, grad_MN: Tensor | None, overlap_M: Tensor | None, row_MW: Tensor, tau: float
) -> Tensor:
    """S^T row_MW or, given dZ and its overlaps, dA^T row_MW: (N, W)."""
    products = _kernels("products")
    (num_rows, num_tokens), width = score_MN.shape, row_MW.shape[1]
    rows_per_split = _rows_per_split(num_rows, num_tokens, width, row_MW.device, products.SPLIT_ROWS)
    num_splits = math.ceil(num_rows / rows_per_split)
    dtype = row_MW.dtype if num_splits == 1 else torch.float32
    split_SNW = row_MW.new_empty(num_splits, num_tokens, width, dtype=dtype)
    products.sum_over_rows[
        lambda tile: (math.ceil(num_tokens / tile["ROWS"]) * math.ceil(width / tile["COLUMNS"]), num_splits)
    ](
        score_MN,
        score_MN if grad_MN is None else grad_MN,
        norm_M,
        norm_M if overlap_M is None else overlap_M,
        row_MW,
        split_SNW,
        tau,
        num_rows,
        rows_per_split,
        num_tokens,
        width,
        score_MN.stride(0),
        _bucket(num_rows),
        GRADIENT=grad_MN is not None,
    )
    return split_SNW[0] if num_splits == 1 else split_SNW.sum(dim=0).to(row_MW.dtype)


def _rows_per_split(num_rows: int, num_tokens: int, width: int, device: torch.device, unit: int) -> int:
    """Data tokens that one program sums, a multiple of `unit`. More programs keep a GPU busy."""
    tiles = math.ceil(num_tokens / 128) * math.ceil(width / 256)
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 8
    num_splits = max(processors // tiles, 1)
    return math.ceil(num_rows / num_splits / unit) * unit


def _score_grid(score_MN: Tensor) -> Callable[[dict[str, int]], tuple[int]]:
    num_rows, stride = len(score_MN), score_MN.stride(0)
    return lambda tile: (math.ceil(num_rows / tile["ROWS"]) * math.ceil(stride / tile["COLUMNS"]),)


def _shares(score_MN: Tensor) -> Tensor:
    """A buffer for the partial sums over a row of scores, one per block of parameter tokens."""
    num_blocks = math.ceil(score_MN.stride(0) / _kernels("products").STATISTIC_TOKENS)
    return score_MN.new_empty(num_blocks, len(score_MN), dtype=torch.float32)


def _row_elements(num_tokens: int) -> int:
    return math.ceil(num_tokens / ROW_ELEMENTS) * ROW_ELEMENTS


def _bucket(num_rows: int) -> int:
    """The number of data tokens rounded up to a power of two: autotuning runs once per bucket."""
    return 1 << (num_rows - 1).bit_length()


def _row_tile(stride: int) -> int:
    """Elements that a program reads at once from its row."""
    return min(1 << (stride - 1).bit_length(), 2048)


def _row_warps(tokens: int) -> int:
    """Warps for a row tile: each thread gets eight elements, 16 bytes in half precision."""
    return max(tokens // 256, 1)


def _check(fusion: str, **matrices: tuple[Tensor, str]) -> None:
    """Raises ValueError unless the matrices match. Each comes with its name and the letters of its dimensions."""
    if fusion not in get_args(Fusion):
        raise ValueError(f"fusion: {fusion!r} is unknown; it must be one of {', '.join(get_args(Fusion))}")
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
def _kernels(of: Literal["products", "rows"]) -> ModuleType:
    """The module with these kernels. It is imported on first use, because it imports triton."""
    return importlib.import_module(f"model.kernels.{of}")
