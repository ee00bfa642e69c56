"""A model on one or several devices, which share the batches of an evaluation."""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from model.language_model import LanguageModel

Batch = TypeVar("Batch")
Result = TypeVar("Result")

WAITING = 2
"""Batches per device that are read ahead: one is computed, the next one is ready."""


class Replicas:
    """Copies of a model, one per device. Each computes in a thread of its own, whole batches at a time."""

    def __init__(self, model: LanguageModel, devices: Sequence[torch.device] | None = None) -> None:
        """Moves `model` to the first device and copies it to the others. By default it stays where it is, alone."""
        devices = devices or [device_of(model)]
        self.models = [model.to(devices[0]), *(copy.deepcopy(model).to(device) for device in devices[1:])]

    def map(self, work: Callable[[LanguageModel, Batch], Result], batches: Iterable[Batch]) -> Iterator[Result]:
        """Yields `work(model, batch)` of every batch, in order. Reads few batches ahead."""
        if len(self.models) == 1:
            yield from (work(self.models[0], batch) for batch in batches)
            return
        threads = [ThreadPoolExecutor(1) for _ in self.models]
        pending: deque[Future[Result]] = deque()
        try:
            for number, batch in enumerate(batches):
                if len(pending) == WAITING * len(threads):
                    yield pending.popleft().result()
                turn = number % len(threads)
                pending.append(threads[turn].submit(work, self.models[turn], batch))
            while pending:
                yield pending.popleft().result()
        finally:
            for thread in threads:
                thread.shutdown(cancel_futures=True)


def device_of(model: LanguageModel) -> torch.device:
    """The device that a model is on."""
    return model.embedding.weight.device
