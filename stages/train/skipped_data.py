"""Computes which data each update of a stage reads, given what rollbacks skipped.

Imports no torch.

A rollback after an anomaly is (first_step, num_steps): the stage returns to the checkpoint of `first_step` and skips
`num_steps` steps' worth of data from there on: just past the data that caused the anomaly. A rollback stays valid until
a later one returns to an earlier step, after which the steps read other data.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from stages.checkpoint.manifest import Manifest

LeftOut = tuple[int, int]
"""(step, number of steps): the data skipped just before the stage's update `step`, counted from 0, in steps' worth."""


def skipped_ranges(rollbacks: Iterable[tuple[int, int]]) -> tuple[LeftOut, ...]:
    """The data that the stage skips, given the rollbacks of all its attempts, oldest first."""
    left_out: list[LeftOut] = []
    for first_step, num_steps in rollbacks:
        left_out = [*(entry for entry in left_out if entry[0] <= first_step), (first_step, num_steps)]
    return tuple(left_out)


def rollbacks_in_place(rollbacks: Iterable[tuple[int, int]]) -> int:
    """How many of the newest rollbacks returned to the same step without reaching the next checkpoint."""
    steps = [first_step for first_step, _ in rollbacks]
    return next((number for number, step in enumerate(reversed(steps)) if step != steps[-1]), len(steps))


def position(step: int, left_out: Sequence[LeftOut]) -> int:
    """Where update `step`, counted from 0, reads its data: an offset into the stage's data, in steps' worth."""
    return step + sum(num_steps for first_step, num_steps in left_out if first_step <= step)


def trained_ranges(step: int, left_out: Sequence[LeftOut]) -> Iterator[tuple[int, int]]:
    """What the first `step` updates trained on, as (first position, number of steps), in order."""
    starts = sorted({0, *(first_step for first_step, _ in left_out if first_step < step)})
    for first, stop in pairwise([*starts, step]):
        yield position(first, left_out), stop - first


def consumed(step: int, left_out: Sequence[LeftOut]) -> int:
    """Steps' worth of data used up by the first `step` updates: trained on, or skipped between them."""
    return step + sum(num_steps for first_step, num_steps in left_out if first_step < step)


def trained_without(left_out: Sequence[LeftOut], checkpoint: Manifest) -> bool:
    """Whether a checkpoint within the stage skipped exactly the data in `left_out` that precedes its step."""
    training = checkpoint.lineage.training
    return [entry for entry in (training.left_out if training else ()) if entry[0] < checkpoint.step] == [
        entry for entry in left_out if entry[0] < checkpoint.step
    ]
