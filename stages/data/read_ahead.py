"""Reads each micro-batch while the previous one is computed.

Shapes: B micro-batch, T sequence.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from stages.data.tokens import Int64Array

EXPECTED_SAMPLES = 64
"""Samples of which remote tokens are fetched ahead: several for each request that is under way at a time."""


def read_ahead(
    read: Callable[[int], Int64Array],
    positions: Iterable[int],
    device: torch.device,
    *,
    expect: Callable[[int], None] = lambda position: None,
    num_expected: int = 0,
    on_wait: Callable[[float], None] = lambda seconds: None,
) -> Generator[tuple[Tensor, Tensor]]:
    """Yields inputs and targets, each (B, T) int64 on `device`, from the (B, T + 1) tokens at each of `positions`.

    A thread calls `read` one position ahead. An exception from `read` is raised here when its micro-batch is requested.
    `expect` gets each position `num_expected` positions before that, so that remote tokens are fetched in time.
    `on_wait` gets the seconds that each micro-batch was waited for. The thread ends with the generator; use
    `contextlib.closing` if the generator may not be exhausted. On CUDA, copies are asynchronous, from pinned memory.
    """
    on_cuda = device.type == "cuda"

    def on_host(tokens_BT: Int64Array) -> Tensor:
        # Copy with numpy: torch would start a second set of OpenMP threads that compete with the model's.
        tensor_BT = torch.empty(tokens_BT.shape, dtype=torch.int64, pin_memory=on_cuda)
        tensor_BT.numpy()[...] = tokens_BT
        return tensor_BT

    def prepared(position: int) -> tuple[Tensor, Tensor]:
        tokens_BT = read(position)
        return on_host(tokens_BT[:, :-1]), on_host(tokens_BT[:, 1:])

    # A new thread uses CUDA's first device, not this rank's. Pinning memory there would create a context on it.
    initial: dict[str, Any] = {"initializer": torch.cuda.set_device, "initargs": (device,)} if on_cuda else {}
    rest = iter(positions)
    expected: deque[int] = deque()

    def following() -> list[int]:
        for position in islice(rest, num_expected + 1 - len(expected)):
            expect(position)
            expected.append(position)
        return [expected.popleft()] if expected else []

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead", **initial) as thread:
        ahead = [thread.submit(prepared, position) for position in following()]
        while ahead:
            start = time.perf_counter()
            input_ids_BT, targets_BT = ahead.pop().result()
            on_wait(time.perf_counter() - start)
            ahead = [thread.submit(prepared, position) for position in following()]
            yield input_ids_BT.to(device, non_blocking=True), targets_BT.to(device, non_blocking=True)
