"""Reading ahead yields the same micro-batches in order, raises errors on time, and leaks no thread."""

import threading
from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.data.read_ahead import read_ahead
from tests.workers import HANG_SECONDS

CPU = torch.device("cpu")


def tokens(position: int) -> np.ndarray:
    return np.arange(position, position + 6, dtype=np.int64).reshape(2, 3)


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


@settings(max_examples=25)
@given(st.lists(st.integers(0, 99)))
def test_inputs_and_targets_come_in_the_requested_order(positions):
    batches = list(read_ahead(tokens, positions, CPU))
    assert len(batches) == len(positions)
    for position, (input_ids_BT, targets_BT) in zip(positions, batches, strict=True):
        assert input_ids_BT.tolist() == tokens(position)[:, :-1].tolist()
        assert targets_BT.tolist() == tokens(position)[:, 1:].tolist()
        assert input_ids_BT.is_contiguous()
        assert targets_BT.is_contiguous()
    assert readers() == []


def test_positions_are_announced_ahead_of_their_reading_and_waiting_is_measured() -> None:
    announced: list[int] = []
    seen: list[tuple[int, int]] = []
    waits: list[float] = []

    def read(position: int) -> np.ndarray:
        seen.append((position, len(announced)))
        return np.zeros((2, 3), np.int64)

    with closing(
        read_ahead(read, range(7), CPU, expect=announced.append, num_expected=3, on_wait=waits.append)
    ) as batches:
        assert len(list(batches)) == 7
    assert announced == list(range(7))
    assert all(known >= min(7, position + 4) for position, known in seen)
    assert len(waits) == 7
    assert min(waits) >= 0


def test_exactly_one_micro_batch_is_read_ahead():
    begun = {position: threading.Event() for position in range(5)}

    def read(position: int) -> np.ndarray:
        begun[position].set()
        return tokens(position)

    with closing(read_ahead(read, range(5), CPU)) as batches:
        for position in range(3):
            next(batches)
            assert begun[position + 1].wait(HANG_SECONDS)
            assert not begun[position + 2].wait(0.05)
    assert readers() == []
    assert not begun[4].is_set()


def test_a_read_error_is_raised_when_its_micro_batch_is_requested():
    def read(position: int) -> np.ndarray:
        if position == 2:
            raise OSError("no such disk")
        return tokens(position)

    batches = read_ahead(read, range(5), CPU)
    assert [next(batches)[0][0, 0].item() for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="no such disk"):
        next(batches)
    assert readers() == []


def test_closing_waits_for_a_read_in_progress_and_no_thread_outlives_a_failure():
    slow, ended = threading.Event(), []

    def read(position: int) -> np.ndarray:
        if position:
            slow.wait(HANG_SECONDS)
            ended.append(position)
        return tokens(position)

    def train() -> None:
        with closing(read_ahead(read, range(9), CPU)) as batches:
            next(batches)
            threading.Timer(0.05, slow.set).start()
            raise RuntimeError("the loss is nan")

    with pytest.raises(RuntimeError, match="the loss"):
        train()
    assert (ended, readers()) == ([1], [])
