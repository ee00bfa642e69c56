"""Rollbacks and skipped data: over all attempts, no sample is trained on twice or left out."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.checkpoint.lineage import Lineage, TrainingRecord
from stages.checkpoint.manifest import Manifest
from stages.train.skipped_data import consumed, position, rollbacks_in_place, skipped_ranges, trained_without
from tests.stages.checkpoints import small_config

CHECKPOINT_EVERY, NUM_STEPS = 5, 40


def checkpoint(step: int, left_out) -> Manifest:
    return Manifest(
        kind="engine", model=small_config(), step=step, group_steps={}, samples_seen=0, seed=0,
        dataset_fingerprint=None, tokenizer_sha256=None, files={},
        lineage=Lineage(operation="train", training=TrainingRecord(left_out=list(left_out))),
    )  # fmt: skip


class Course:
    """Simulates how the runner and its workers train a stage, attempt after attempt: the data read, and the saves."""

    def __init__(self) -> None:
        self.rollbacks: list[tuple[int, int]] = []
        self.checkpoints: dict[int, tuple[Manifest, list[int]]] = {}
        """By step: the checkpoint, and the positions that its weights were trained on, in order."""

    def attempt(self, bad_positions: set[int], killed_at: int | None, extra_save: int | None) -> list[int] | None:
        """Trains from the newest usable checkpoint to the stage's end and returns the positions trained on, or None
        if the attempt ended early.

        Data at `bad_positions` causes a rollback; `killed_at` and `extra_save` are steps.
        """
        left_out = skipped_ranges(self.rollbacks)
        usable = [step for step, (saved, _) in self.checkpoints.items() if trained_without(left_out, saved)]
        step = max(usable, default=0)
        learnt = list(self.checkpoints[step][1]) if usable else []
        while step < NUM_STEPS:
            where = position(step, left_out)
            if where in bad_positions:
                first = step - step % CHECKPOINT_EVERY
                self.rollbacks.append((first, where + 1 - position(first, left_out)))
                return None
            learnt.append(where)
            step += 1
            assert consumed(step, left_out) == where + 1
            if step % CHECKPOINT_EVERY == 0 or step == extra_save:
                self.checkpoints[step] = checkpoint(step, left_out), list(learnt)
            if step == killed_at:
                return None
        return learnt

    def to_the_end(self, bad_positions: set[int]) -> list[int]:
        """Runs attempts without faults. Every rollback skips a bad position, so that the stage ends."""
        for _ in range(2 * NUM_STEPS):
            learnt = self.attempt(bad_positions, None, None)
            if learnt is not None:
                return learnt
        raise AssertionError("the stage rolls back again and again")


steps = st.none() | st.integers(1, NUM_STEPS - 1)
nothing: st.SearchStrategy[set[int]] = st.just(set())
lost = nothing | st.sets(st.integers(0, NUM_STEPS // CHECKPOINT_EVERY), max_size=3)
happenings = st.lists(st.tuples(steps, steps, nothing)) | st.lists(st.tuples(steps, steps, lost))


@given(st.sets(st.integers(0, 2 * NUM_STEPS), max_size=12), happenings)
def test_no_kill_extra_save_or_lost_checkpoint_makes_a_stage_repeat_or_reread_skipped_data(bad, happened):
    course, undisturbed = Course(), Course()
    for killed_at, extra_save, lost in happened:
        course.attempt(bad, killed_at, extra_save)
        for number in lost:
            course.checkpoints.pop(number * CHECKPOINT_EVERY, None)
    learnt = course.to_the_end(bad)
    assert len(learnt) == NUM_STEPS
    assert all(before < after for before, after in pairwise(learnt))
    assert not bad & set(learnt)
    if not any(lost for *_, lost in happened):  # kills and saves alone change nothing
        assert learnt == undisturbed.to_the_end(bad)
        assert skipped_ranges(course.rollbacks) == skipped_ranges(undisturbed.rollbacks)


def test_a_rollback_is_valid_until_a_later_one_returns_to_an_earlier_step():
    first, second, third = (10, 3), (20, 4), (10, 12)
    assert skipped_ranges([first]) == ((10, 3),)
    assert skipped_ranges([first, second]) == ((10, 3), (20, 4))
    assert skipped_ranges([first, second, third]) == ((10, 3), (10, 12))


def test_only_the_newest_rollbacks_to_the_same_step_are_counted():
    rollbacks = [(0, 1), (10, 3), (10, 2), (10, 1)]
    assert [rollbacks_in_place(rollbacks[:end]) for end in range(5)] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("skipped", "step", "known", "used"),
    [
        ((20, 5), 20, [], True),
        ((20, 5), 23, [], False),
        ((20, 5), 30, [(20, 5)], True),
        ((10, 6), 30, [(20, 5)], False),
        ((20, 5), 15, [(20, 5)], True),  # it precedes the data that is skipped later
    ],
)
def test_a_checkpoint_trained_on_since_skipped_data_is_not_used(skipped, step, known, used):
    assert trained_without([skipped], checkpoint(step, known)) == used
    assert trained_without([], checkpoint(step, []).model_copy(update={"lineage": Lineage(operation="train")}))
