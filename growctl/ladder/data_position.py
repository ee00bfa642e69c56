"""Says where in the data each stage begins.

A position in the data is a number of data tokens, counted from the ladder's first token in the order of
stages/data/window_pieces.py. A stage begins at the first whole sequence of its own context from there on, so one with a
longer context than the stage before may skip part of a window; nothing is read twice.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from growctl.schedule.batches import StageBatch

if TYPE_CHECKING:
    from stages.checkpoint.manifest import Manifest


def first_sample(position: int, sequence_length: int) -> int:
    """The first whole sequence at or after `position`, counted in sequences of that context."""
    return -(-position // sequence_length)


def position_after(manifest: "Manifest") -> int:
    """The position at which the training of a checkpoint stopped. One that was not trained is at 0."""
    return manifest.samples_seen * (manifest.text.context_length or 0)


def stage_positions(batches: Sequence[StageBatch], steps: Sequence[int], start: int = 0) -> list[int]:
    """Where stages with these batches and steps begin, if the first one continues from `start`."""
    positions, position = [], start
    for batch, num_steps in zip(batches, steps, strict=True):
        position = first_sample(position, batch.sequence_length) * batch.sequence_length
        positions.append(position)
        position += num_steps * batch.tokens
    return positions
