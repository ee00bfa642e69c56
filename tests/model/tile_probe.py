"""A kernel that reports the position of each element of a tile.

Imports Triton, so tests run it in a new process.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.kernels.products import _tile


@triton.jit
def _probe(pointer, offset_ptr, row, column, stride, TRANSPOSED: tl.constexpr):
    pointers, _ = _tile(pointer, row, column, row + 2, column + 4, stride, 2, 4, TRANSPOSED)
    offsets = (pointers.to(tl.int64) - pointer.to(tl.int64)) // 2
    tl.store(offset_ptr + tl.arange(0, 8), tl.reshape(offsets, (8,)))


def tile_offsets(row: int, column: int, stride: int, transposed: bool) -> Tensor:
    """Offsets of a 2 x 4 tile's elements from the first element of a bfloat16 matrix. The matrix does not exist."""
    offsets = torch.empty(8, dtype=torch.int64)
    _probe[(1,)](torch.empty(1, dtype=torch.bfloat16), offsets, row, column, stride, TRANSPOSED=transposed)
    return offsets
