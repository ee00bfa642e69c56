"""What one rank reads of the dataset of a stage, whatever the task.

Each micro-batch is read while the previous one is computed.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from stages.metrics import Record
from stages.spec import TrainSpec
from stages.train.skipped_data import consumed, position

EXPECTED_SAMPLES = 64
"""Samples of which remote tokens are fetched ahead: several for each request that is under way at a time."""

Arrays = tuple[npt.NDArray[Any], ...]
"""Inputs and targets in host memory."""

Batch = tuple[Tensor, Tensor]
"""Inputs and targets on the device."""


class RankData(ABC):
    """A task as its worker sees it: what a batch is, what is measured, and what a checkpoint says of the data."""

    fingerprint: str
    """Of the dataset."""

    tokenizer: Path | None = None
    """The tokenizer that a finished checkpoint holds too; None for a task without text."""

    def __init__(self, spec: TrainSpec, rank: int, world_size: int, device: torch.device) -> None:
        self.spec, self.rank, self.world_size, self.device = spec, rank, world_size, device
        self._wait_seconds = 0.0

    @abstractmethod
    def read(self, first_sample: int) -> Arrays:
        """The inputs and targets of a micro-batch that begins at this sample."""

    @abstractmethod
    def evaluation(self, run: Callable[..., Tensor], step: int) -> Record:
        """What an EvaluationLine says after `step` steps. `run` calls the model as it is. Collective.

        The loss is that at the context of the ladder's last stage, so that the losses of all stages compare.
        """

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """The fields of a checkpoint's manifest that say what the model reads."""

    @abstractmethod
    def expect(self, first_sample: int) -> None:
        """Begins to fetch a micro-batch that will be read soon."""

    def micro_batches(self, step: int) -> Generator[Batch]:
        """Yields this rank's inputs and targets on the device, from `step` to the stage's end."""
        spec, size = self.spec, self.spec.micro_batch_size
        firsts = (
            spec.samples_seen + position(number, spec.left_out) * spec.batch_size
            for number in range(step, spec.num_steps)
        )
        own = range(self.rank * size, spec.batch_size, self.world_size * size)
        positions = (first + offset for first in firsts for offset in own)
        num_expected = max(1, EXPECTED_SAMPLES // size)
        return read_ahead(
            self.read, positions, self.device, expect=self.expect, num_expected=num_expected, on_wait=self._waited
        )

    def take_wait_seconds(self) -> float:
        """How long this rank has waited for training data since the last call."""
        seconds, self._wait_seconds = self._wait_seconds, 0.0
        return seconds

    def _waited(self, seconds: float) -> None:
        self._wait_seconds += seconds

    def manifest_fields(self, step: int) -> dict[str, Any]:
        """What the manifest of a checkpoint says of the data after `step` steps."""
        spec = self.spec
        return {
            "samples_seen": spec.samples_seen + consumed(step, spec.left_out) * spec.batch_size,
            "seed": spec.seed,
            "dataset_fingerprint": self.fingerprint,
            **self.facts(),
        }


def read_ahead(
    read: Callable[[int], Arrays],
    positions: Iterable[int],
    device: torch.device,
    *,
    expect: Callable[[int], None] = lambda position: None,
    num_expected: int = 0,
    on_wait: Callable[[float], None] = lambda seconds: None,
) -> Generator[Batch]:
    """Yields inputs and targets on `device`, from what `read` returns at each of `positions`.

    A thread calls `read` one position ahead. An exception from `read` is raised here when its micro-batch is requested.
    `expect` gets each position `num_expected` positions before that, so that remote tokens are fetched in time.
    `on_wait` gets the seconds that each micro-batch was waited for. The thread ends with the generator; use
    `contextlib.closing` if the generator may not be exhausted. On CUDA, copies are asynchronous, from pinned memory.
    """
    on_cuda = device.type == "cuda"

    def on_host(array: npt.NDArray[Any]) -> Tensor:
        # Copy with numpy: torch would start a second set of OpenMP threads that compete with the model's.
        dtype = torch.int64 if array.dtype.kind == "i" else torch.float32
        tensor = torch.empty(array.shape, dtype=dtype, pin_memory=on_cuda)
        tensor.numpy()[...] = array
        return tensor

    def prepared(position: int) -> Batch:
        inputs, targets = read(position)
        return on_host(inputs), on_host(targets)

    # A new thread uses CUDA's first device, not this rank's. Pinning memory there would create a context on it.
    initial: dict[str, Any] = {"initializer": torch.cuda.set_device, "initargs": (device,)} if on_cuda else {}
    rest = iter(positions)
    expected: deque[int] = deque()

    def following() -> list[int]:
        for place in islice(rest, num_expected + 1 - len(expected)):
            expect(place)
            expected.append(place)
        return [expected.popleft()] if expected else []

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead", **initial) as thread:
        ahead = [thread.submit(prepared, position) for position in following()]
        while ahead:
            start = time.perf_counter()
            inputs, targets = ahead.pop().result()
            on_wait(time.perf_counter() - start)
            ahead = [thread.submit(prepared, position) for position in following()]
            yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
