"""Which data a stage's updates read, given what rollbacks skipped. No torch here.

A rollback is a record of metrics.jsonl (event `anomaly`, action `rollback`): the stage goes back to `first_step`, and
from there on reads `num_steps` steps' worth of data further on than it did, just behind what it stumbled over. It
stands until a later rollback goes back to before it: the steps behind that one read other data than it speaks of.
"""

from collections.abc import Iterable, Sequence

from stages.checkpoint.manifest import Manifest
from stages.metrics import Record

LeftOut = tuple[int, int]
"""(step, number of steps): from the stage's update number `step` on, counted from 0, so much more data lies behind."""


def is_rollback(record: Record) -> bool:
    """Whether a record sends the stage back to a checkpoint."""
    return record["event"] == "anomaly" and record["action"] == "rollback"


def standing(records: Iterable[Record]) -> tuple[LeftOut, ...]:
    """What the stage leaves out after all of its `records`, of every attempt, oldest first."""
    left_out: list[LeftOut] = []
    for record in filter(is_rollback, records):
        first_step = record["first_step"]
        left_out = [*(entry for entry in left_out if entry[0] <= first_step), (first_step, record["num_steps"])]
    return tuple(left_out)


def rollbacks_in_place(records: Iterable[Record]) -> int:
    """How many of the newest rollbacks in a row went back to the same step: none of them got to the next checkpoint."""
    steps = [record["first_step"] for record in records if is_rollback(record)]
    return next((number for number, step in enumerate(reversed(steps)) if step != steps[-1]), len(steps))


def position(step: int, left_out: Sequence[LeftOut]) -> int:
    """Where the update number `step`, counted from 0, reads its data, in steps' worth from the stage's first data."""
    return step + sum(num_steps for first_step, num_steps in left_out if first_step <= step)


def consumed(step: int, left_out: Sequence[LeftOut]) -> int:
    """Steps' worth of data that lie behind after the first `step` updates: trained on, or left out between them."""
    return step + sum(num_steps for first_step, num_steps in left_out if first_step < step)


def of_this_course(left_out: Sequence[LeftOut], checkpoint: Manifest) -> bool:
    """Whether a checkpoint within the stage has seen the data that it should have, now that `left_out` stands."""
    made_with = [tuple(entry) for entry in checkpoint.lineage.details.get("left_out", [])]
    return [entry for entry in made_with if entry[0] < checkpoint.step] == [
        entry for entry in left_out if entry[0] < checkpoint.step
    ]
