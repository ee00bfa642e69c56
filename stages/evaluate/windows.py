"""Windows over a stream of tokens: what the model reads at once, and which of its predictions count.

Shapes: B batch, T sequence.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import NamedTuple

import numpy as np

from model.loss import IGNORED
from stages.data.tokens import Int64Array


class Window(NamedTuple):
    """Consecutive tokens of a stream. All but the last are inputs, all but the first are targets."""

    tokens: Int64Array
    num_scored: int
    """How many targets count: the last ones. Windows before this one have scored the others."""


class Batch(NamedTuple):
    """Windows of equal length as inputs and targets, each (B, T) int64. Targets that do not count are IGNORED."""

    input_ids_BT: Int64Array
    targets_BT: Int64Array


def sliding_windows(tokens: Iterable[Int64Array], context: int, stride: int) -> Iterator[Window]:
    """Windows of `context` inputs, `stride` tokens apart, over a stream that arrives in arrays of any length.

    Each token but the first is scored once, in the first window that has it as a target: after at least
    `context - stride` tokens of context, except for the start of the stream. The last window may be shorter.
    """
    overlap = context - stride
    held = np.empty(0, np.int64)
    num_held_scored = 0  # targets within `held` that an earlier window has scored
    for arrived in tokens:
        held = np.concatenate((held, arrived))
        start = 0
        while len(held) - start > context:
            yield Window(held[start : start + context + 1], context - num_held_scored)
            start, num_held_scored = start + stride, overlap
        held = held[start:]
    if (left := len(held) - 1 - num_held_scored) > 0:
        yield Window(held, left)


def batches(windows: Iterable[Window], batch_size: int) -> Iterator[Batch]:
    """Groups of up to `batch_size` consecutive windows of equal length."""
    for _, alike in groupby(windows, key=lambda window: len(window.tokens)):
        while group := list(islice(alike, batch_size)):
            yield _batch(group)


def _batch(windows: list[Window]) -> Batch:
    tokens_BT = np.stack([window.tokens for window in windows])
    targets_BT = tokens_BT[:, 1:].copy()
    for targets_T, window in zip(targets_BT, windows, strict=True):
        targets_T[: len(targets_T) - window.num_scored] = IGNORED
    return Batch(tokens_BT[:, :-1], targets_BT)
