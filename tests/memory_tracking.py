"""Measures the memory of tensors by tracking every storage that an operation creates, until it is freed."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryTracking(TorchDispatchMode):
    """While it is active: bytes of all living tensors that were made since, and the most there ever were.

    Storages are counted once, however many tensors view them. What a kernel takes inside is not seen.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._storages: dict[int, tuple[int, Any]] = {}
        for tensor in known:
            self._count(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta":
                self._count(leaf)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self._storages:
            return
        self._storages[key] = num_bytes, weakref.ref(storage, lambda _: self._forget(key))
        self.live += num_bytes
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        self.live -= self._storages.pop(key)[0]
