"""A tensor of an export that is computed when its file is written, so that one file at a time is in memory."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class LazyTensor(NamedTuple):
    """A tensor that is computed when it is needed."""

    shape: tuple[int, ...]
    value: Callable[[], Tensor]

    @classmethod
    def unchanged(cls, tensor: Tensor) -> "LazyTensor":
        """A tensor as it is."""
        return cls(tuple(tensor.shape), lambda: tensor)
