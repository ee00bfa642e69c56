"""Micro-batches, each read while the one before it is computed with. Shapes: B micro-batch, T sequence."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from stages.data.dataset import Int64Array


def read_ahead(
    read: Callable[[int], Int64Array], positions: Iterable[int], device: torch.device
) -> Generator[tuple[Tensor, Tensor]]:
    """Inputs and targets, each (B, T) int64 on `device`, of the (B, T + 1) tokens at each of `positions`, in order.

    One thread calls `read`, one position ahead; what it raises is raised here, where its micro-batch is asked for. The
    thread ends with the generator: `contextlib.closing` is for where it may not be used up. On CUDA the copies start
    from pinned memory and are not waited for.
    """
    on_cuda = device.type == "cuda"

    def on_host(tokens_BT: Int64Array) -> Tensor:
        # numpy's copy: torch's would start a second set of OpenMP threads beside those that compute.
        tensor_BT = torch.empty(tokens_BT.shape, dtype=torch.int64, pin_memory=on_cuda)
        tensor_BT.numpy()[...] = tokens_BT
        return tensor_BT

    def prepared(position: int) -> tuple[Tensor, Tensor]:
        tokens_BT = read(position)
        return on_host(tokens_BT[:, :-1]), on_host(tokens_BT[:, 1:])

    # A new thread is on CUDA's first device, whatever this rank's is: pinning there would start a context on it.
    initial: dict[str, Any] = {"initializer": torch.cuda.set_device, "initargs": (device,)} if on_cuda else {}
    rest = iter(positions)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead", **initial) as thread:
        ahead = [thread.submit(prepared, position) for position in islice(rest, 1)]
        while ahead:
            input_ids_BT, targets_BT = ahead.pop().result()
            ahead = [thread.submit(prepared, position) for position in islice(rest, 1)]
            yield input_ids_BT.to(device, non_blocking=True), targets_BT.to(device, non_blocking=True)
