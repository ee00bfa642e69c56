"""Reading ahead yields the same micro-batches in order, raises errors on time, and leaks no thread."""

import threading
from contextlib import closing

import numpy as np
import pytest
import torch

from stages.train.rank_data import read_ahead
from tests.workers import HANG_SECONDS

CPU = torch.device("cpu")


def tokens(position: int) -> np.ndarray:
    return np.arange(position, position + 6, dtype=np.int64).reshape(2, 3)


def batch(position: int) -> tuple[np.ndarray, np.ndarray]:
    return tokens(position)[:, :-1], tokens(position)[:, 1:]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


@pytest.mark.parametrize("positions", [[], [3], [5, 0, 5, 99, 1, 2, 7]])
def test_batches_come_in_order_and_positions_are_announced_ahead_of_their_reading(positions):
    announced: list[int] = []
    ahead: list[int] = []
    waits: list[float] = []

    def read(position: int) -> tuple[np.ndarray, np.ndarray]:
        ahead.append(len(announced) - len(ahead))
        return batch(position)

    found = list(read_ahead(read, positions, CPU, expect=announced.append, num_expected=3, on_wait=waits.append))
    assert [inputs.tolist() for inputs, _ in found] == [tokens(position)[:, :-1].tolist() for position in positions]
    assert [targets.tolist() for _, targets in found] == [tokens(position)[:, 1:].tolist() for position in positions]
    assert all(tensor.is_contiguous() for batch in found for tensor in batch)
    assert announced == positions
    assert all(known >= min(len(positions) - number, 4) for number, known in enumerate(ahead))
    assert len(waits) == len(positions)
    assert min(waits, default=0) >= 0


def test_a_read_error_is_raised_when_its_micro_batch_is_requested():
    def read(position: int) -> tuple[np.ndarray, np.ndarray]:
        if position == 2:
            raise OSError("no such disk")
        return batch(position)

    batches = read_ahead(read, range(5), CPU)
    assert [next(batches)[0][0, 0].item() for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="no such disk"):
        next(batches)


def test_closing_waits_for_a_read_in_progress_also_after_a_failure():
    slow, ended = threading.Event(), []

    def read(position: int) -> tuple[np.ndarray, np.ndarray]:
        if position:
            slow.wait(HANG_SECONDS)
            ended.append(position)
        return batch(position)

    with pytest.raises(RuntimeError, match="the loss"), closing(read_ahead(read, range(9), CPU)) as batches:  # noqa: PT012
        next(batches)
        threading.Timer(0.05, slow.set).start()
        raise RuntimeError("the loss is nan")
    assert ended == [1]
