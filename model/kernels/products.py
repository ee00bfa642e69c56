"""Triton kernels that compute the products of an `l2_norm_gelu` Pattention, with the score work fused in.

`model/kernels/launch.py` launches the kernels and imports this module on first use, because it imports triton.

Names: A scores, Z = tau A / |A|, S = gelu(Z); dS, dZ and dA are their gradients. Unit scores are A / |A|, or 0 if |A|
is 0. Sizes: num_rows data tokens, num_tokens parameter tokens, width of an input, output, key or value.

Matrices with the shape of the scores have rows of `stride` elements in memory. Elements beyond the last parameter token
are zero, and the kernels compute with them: `stride` is a multiple of 64, and only aligned rows can be read and masked
in wide words.

If an operand is computed, not just loaded, it is always the right operand of its product; if necessary, the whole
product is transposed. On Hopper, a computed left operand is read from registers while the next one is computed. triton
before 3.7 may overwrite registers that are still being read, and so may the ptxas that comes with 3.7. A right operand
goes through shared memory, with a wait.
"""

from typing import Any

import triton
import triton.language as tl

from model.kernels.rows import gelu_slope, normal_cdf

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Whether triton interprets the kernels on CPU tensors. TRITON_INTERPRET=1 turns this on when triton is imported."""

STATISTIC_TOKENS = 32 if INTERPRETED else 128
"""Parameter tokens per partial sum of a row. Not tuned: the size of the buffer of partial sums depends on it."""

SPLIT_ROWS = 32 if INTERPRETED else 256
"""Programs that share a sum over data tokens take a multiple of this number each. Every DEPTH divides it."""

FLOAT32_DEPTH = 16
"""DEPTH of the tiles for float32; no other tiles have it. Without tensor cores, large tiles overflow the registers."""

ACROSS_SCORES = (
    (64, 256, 32, 8, 3),
    (64, 256, 64, 8, 2),
    (64, 256, 32, 4, 3),
    (64, 128, 64, 4, 3),
    (128, 256, 64, 8, 3),
    (64, 64, FLOAT32_DEPTH, 8, 3),
)
"""Tiles of the products that compute an operand from scores. They recompute it for each tile of COLUMNS, so COLUMNS is
wide. All but one leave room for two programs per Hopper multiprocessor: one can compute while the other multiplies."""


def _fitting(configs: list[triton.Config], arguments: dict[str, Any], **_: Any) -> list[triton.Config]:
    is_float32 = arguments["score_ptr"].element_size() == 4
    return [config for config in configs if (config.kwargs["DEPTH"] == FLOAT32_DEPTH) == is_float32]


def _tuned(*tiles: tuple[int, int, int, int, int]) -> Any:
    """Autotunes a kernel over tiles (ROWS, COLUMNS, DEPTH, warps, stages).

    It tunes once for each width, dtype and power of 2 of rows.

    Tuning runs the kernel many times and waits for the device, so it must not happen while a CUDA graph is captured.
    The results are the same as after a single run, because no kernel reads its own output. triton's cache keeps the
    choices for later processes.
    """
    configs = [
        triton.Config({"ROWS": rows, "COLUMNS": columns, "DEPTH": depth}, num_warps=warps, num_stages=stages)
        for rows, columns, depth, warps, stages in ([(16, 32, 16, 1, 1)] if INTERPRETED else tiles)
    ]
    key = ["bucket", "num_tokens", "width", "GRADIENT"]
    return triton.autotune(configs, key, prune_configs_by={"early_config_prune": _fitting}, cache_results=True)


@triton.jit
def _tile(
    pointer: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    num_rows: int,
    num_columns: int,
    stride: int,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Pointers to the tile at (row, column) of a row-major matrix, and a mask of those inside the matrix."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside_rows, inside_columns = row + rows < num_rows, column + columns < num_columns
    corner = pointer + (tl.cast(row, tl.int64) * stride + column)  # rows times tokens may exceed 2**31
    if TRANSPOSED:
        pointers = corner + (columns[:, None] + rows[None, :] * stride)
        inside = inside_columns[:, None] & inside_rows[None, :]
    else:
        pointers = corner + (rows[:, None] * stride + columns[None, :])
        inside = inside_rows[:, None] & inside_columns[None, :]
    return pointers, inside


@triton.jit
def _load(
    pointer: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    num_rows: int,
    num_columns: int,
    stride: int,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
) -> tl.tensor:
    """A tile, (ROWS, COLUMNS) or transposed (COLUMNS, ROWS), with zeros outside the matrix."""
    pointers, inside = _tile(pointer, row, column, num_rows, num_columns, stride, ROWS, COLUMNS, TRANSPOSED)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def _multiply_add(left: tl.tensor, right: tl.tensor, total: tl.tensor) -> tl.tensor:
    if INTERPRETED:  # the interpreter would multiply the bit patterns of bfloat16 numbers
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, total, input_precision="ieee")


@triton.jit
def _inverse(norm_ptr: tl.tensor, rows: tl.tensor, num_rows: int) -> tl.tensor:
    """1 / norm, or 0 if the norm is 0."""
    norm = tl.load(norm_ptr + rows, mask=rows < num_rows, other=0.0)
    return tl.where(norm > 0, 1.0 / norm, 0.0)


@triton.jit
def _factor(
    score_ptr: tl.tensor,
    grad_ptr: tl.tensor,
    inverse: tl.tensor,
    overlap: tl.tensor,
    tau: float,
    row: tl.tensor,
    token: tl.tensor,
    num_rows: int,
    stride: int,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    GRADIENT: tl.constexpr,
) -> tl.tensor:
    """A tile of S or, with GRADIENT, of dA from dZ, in the dtype of the scores.

    `inverse` holds 1 / norm, `overlap` the row sums of dZ times the unit scores. Both broadcast along the tile's rows.
    """
    score = _load(score_ptr, row, token, num_rows, stride, stride, ROWS, TOKENS, TRANSPOSED)
    unit = score.to(tl.float32) * inverse
    if GRADIENT:
        grad = _load(grad_ptr, row, token, num_rows, stride, stride, ROWS, TOKENS, TRANSPOSED)
        factor = (grad.to(tl.float32) - unit * overlap) * (tau * inverse)
    else:
        z = unit * tau
        factor = z * normal_cdf(z)
    return factor.to(score.dtype)


@triton.jit
def _score_tile(num_rows: int, stride: int, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The row and column where this program's tile of scores starts.

    Neighbouring programs form blocks 8 tiles high, so that they share their reads in the cache.
    """
    HEIGHT: tl.constexpr = 8
    down, across = tl.cdiv(num_rows, ROWS), tl.cdiv(stride, COLUMNS)
    block, within = tl.program_id(0) // (HEIGHT * across), tl.program_id(0) % (HEIGHT * across)
    height = tl.minimum(down - block * HEIGHT, HEIGHT)
    return (block * HEIGHT + within % height) * ROWS, within // height * COLUMNS


@triton.jit
def _product_of_rows(
    left_ptr: tl.tensor,
    right_ptr: tl.tensor,
    row: tl.tensor,
    token: tl.tensor,
    num_rows: int,
    num_tokens: int,
    width: int,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> tl.tensor:
    """A tile of left right^T in float32, with zeros beyond the last parameter token."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for depth in range(0, width, DEPTH):
        left = _load(left_ptr, row, depth, num_rows, width, width, ROWS, DEPTH, False)
        right = _load(right_ptr, token, depth, num_tokens, width, width, COLUMNS, DEPTH, True)
        total = _multiply_add(left, right, total)
    return total


@triton.jit
def _store_shares(
    pointer: tl.tensor, shares: tl.tensor, row: tl.tensor, block: tl.tensor, num_rows: int, ROWS: tl.constexpr
) -> None:
    """Stores the partial row sums of a block of STATISTIC_TOKENS as one row of the buffer, for the caller to add up."""
    rows = row + tl.arange(0, ROWS)
    first = tl.cast(block, tl.int64) * num_rows
    tl.store(pointer + first + rows, shares, mask=rows < num_rows)


@_tuned(
    (128, STATISTIC_TOKENS, 64, 8, 3),
    (128, STATISTIC_TOKENS, 64, 4, 3),
    (256, STATISTIC_TOKENS, 64, 8, 3),
    (64, STATISTIC_TOKENS, 64, 4, 4),
    (64, STATISTIC_TOKENS, FLOAT32_DEPTH, 8, 3),
)
@triton.jit(do_not_specialize=["num_rows", "num_tokens", "bucket"])
def score_product(
    x_ptr: tl.tensor,
    key_ptr: tl.tensor,
    score_ptr: tl.tensor,
    square_ptr: tl.tensor,
    num_rows: int,
    num_tokens: int,
    width: int,
    stride: int,
    bucket: int,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """A = x key^T, and the partial sums of squares of its rows."""
    row, token = _score_tile(num_rows, stride, ROWS, COLUMNS)
    total = _product_of_rows(x_ptr, key_ptr, row, token, num_rows, num_tokens, width, ROWS, COLUMNS, DEPTH)
    score = total.to(score_ptr.dtype.element_ty)
    pointers, inside = _tile(score_ptr, row, token, num_rows, stride, stride, ROWS, COLUMNS, False)
    tl.store(pointers, score, mask=inside)
    kept = score.to(tl.float32)
    _store_shares(square_ptr, tl.sum(kept * kept, axis=1), row, token // COLUMNS, num_rows, ROWS)


@_tuned(
    (64, STATISTIC_TOKENS, 64, 4, 3),
    (64, STATISTIC_TOKENS, 32, 4, 4),
    (128, STATISTIC_TOKENS, 64, 8, 3),
    (128, STATISTIC_TOKENS, 32, 8, 4),
    (64, STATISTIC_TOKENS, FLOAT32_DEPTH, 8, 3),
)
@triton.jit(do_not_specialize=["num_rows", "num_tokens", "bucket"])
def slope_product(
    grad_out_ptr: tl.tensor,
    value_ptr: tl.tensor,
    score_ptr: tl.tensor,
    norm_ptr: tl.tensor,
    grad_ptr: tl.tensor,
    overlap_ptr: tl.tensor,
    tau: float,
    num_rows: int,
    num_tokens: int,
    width: int,
    stride: int,
    bucket: int,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """dZ = (grad_out value^T) gelu'(Z), and the partial row sums of dZ times the unit scores."""
    row, token = _score_tile(num_rows, stride, ROWS, COLUMNS)
    total = _product_of_rows(grad_out_ptr, value_ptr, row, token, num_rows, num_tokens, width, ROWS, COLUMNS, DEPTH)
    inverse = _inverse(norm_ptr, row + tl.arange(0, ROWS), num_rows)
    score = _load(score_ptr, row, token, num_rows, stride, stride, ROWS, COLUMNS, False)
    unit = score.to(tl.float32) * inverse[:, None]
    z = unit * tau
    grad = (total * gelu_slope(z, normal_cdf(z))).to(score.dtype)
    pointers, inside = _tile(grad_ptr, row, token, num_rows, stride, stride, ROWS, COLUMNS, False)
    tl.store(pointers, grad, mask=inside)
    _store_shares(overlap_ptr, tl.sum(grad.to(tl.float32) * unit, axis=1), row, token // COLUMNS, num_rows, ROWS)


@_tuned(*ACROSS_SCORES)
@triton.jit(do_not_specialize=["num_rows", "num_tokens", "bucket"])
def sum_over_tokens(
    score_ptr: tl.tensor,
    grad_ptr: tl.tensor,
    norm_ptr: tl.tensor,
    overlap_ptr: tl.tensor,
    token_ptr: tl.tensor,
    out_ptr: tl.tensor,
    tau: float,
    num_rows: int,
    num_tokens: int,
    width: int,
    stride: int,
    bucket: int,
    GRADIENT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """S value or, with GRADIENT, dA key: (num_rows, width)."""
    across = tl.cdiv(width, COLUMNS)
    row, column = tl.program_id(0) // across * ROWS, tl.program_id(0) % across * COLUMNS
    rows = row + tl.arange(0, ROWS)
    inverse = _inverse(norm_ptr, rows, num_rows)[None, :]
    overlap = inverse
    if GRADIENT:
        overlap = tl.load(overlap_ptr + rows, mask=rows < num_rows, other=0.0)[None, :]
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for token in range(0, stride, DEPTH):
        tokens = _load(token_ptr, token, column, num_tokens, width, width, DEPTH, COLUMNS, True)
        factor = _factor(
            score_ptr, grad_ptr, inverse, overlap, tau, row, token, num_rows, stride, ROWS, DEPTH, True, GRADIENT
        )
        total = _multiply_add(tokens, factor, total)
    pointers, inside = _tile(out_ptr, row, column, num_rows, width, width, ROWS, COLUMNS, True)
    tl.store(pointers, total.to(out_ptr.dtype.element_ty), mask=inside)


@_tuned(*ACROSS_SCORES)
@triton.jit(do_not_specialize=["num_rows", "rows_per_split", "num_tokens", "bucket"])
def sum_over_rows(
    score_ptr: tl.tensor,
    grad_ptr: tl.tensor,
    norm_ptr: tl.tensor,
    overlap_ptr: tl.tensor,
    row_ptr: tl.tensor,
    out_ptr: tl.tensor,
    tau: float,
    num_rows: int,
    rows_per_split: int,
    num_tokens: int,
    width: int,
    stride: int,
    bucket: int,
    GRADIENT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """S^T grad_out or, with GRADIENT, dA^T x: (num_tokens, width) for each split of the data tokens.

    ROWS counts rows of the result here: parameter tokens.
    """
    across = tl.cdiv(width, COLUMNS)
    token, column = tl.program_id(0) // across * ROWS, tl.program_id(0) % across * COLUMNS
    first = tl.program_id(1) * rows_per_split
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for row in range(first, tl.minimum(first + rows_per_split, num_rows), DEPTH):
        rows = row + tl.arange(0, DEPTH)
        inverse = _inverse(norm_ptr, rows, num_rows)[:, None]
        overlap = inverse
        if GRADIENT:
            overlap = tl.load(overlap_ptr + rows, mask=rows < num_rows, other=0.0)[:, None]
        other = _load(row_ptr, row, column, num_rows, width, width, DEPTH, COLUMNS, True)
        factor = _factor(
            score_ptr, grad_ptr, inverse, overlap, tau, row, token, num_rows, stride, DEPTH, ROWS, False, GRADIENT
        )
        total = _multiply_add(other, factor, total)
    split_ptr = out_ptr + tl.cast(tl.program_id(1), tl.int64) * num_tokens * width
    pointers, inside = _tile(split_ptr, token, column, num_tokens, width, width, ROWS, COLUMNS, True)
    tl.store(pointers, total.to(out_ptr.dtype.element_ty), mask=inside)
