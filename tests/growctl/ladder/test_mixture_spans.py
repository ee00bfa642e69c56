"""The weights of a mixture along a run, and in the controls that it is compared with."""

from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.controls import plan_controls
from growctl.ladder.datasets import mixture_spans
from growctl.ladder.load import parse_schedule
from growctl.ladder.stage_plans import plan_stages, stage_weights
from growctl.run.requests import first_difference
from growctl.schedule.blocks import Schedule
from stages.spec import MixtureSpan
from tests.growctl.mixed import SCHEDULE, mixed_schedule

BASE, BOOKS, CODE = {"books": 3.0, "code": 1.0}, {"books": 1.0}, {"books": 1.0, "code": 3.0}
Spans = list[tuple[int, dict[str, float]]]


def mixed(weights: tuple[Any, ...] = (None, BOOKS, CODE), contexts: Any = (16, 16, 16), **blocks: Any) -> Schedule:
    """The ladder on a mixture, with these weights and contexts of its stages."""
    changes = ({"mixture": weight, "sequence_length": each} for weight, each in zip(weights, contexts, strict=True))
    stages = [stage | change for stage, change in zip(SCHEDULE["stages"], changes, strict=True)]
    return parse_schedule(mixed_schedule(Path("/texts"), **{"stages": stages} | blocks), label="s", default_name="s")


def control(kind: str, **blocks: Any) -> Schedule:
    return plan_controls(mixed(controls=[{"kind": kind}], **blocks))[0].schedule


INSIDE = mixed(contexts=(4, 4, 16))


@pytest.mark.parametrize(
    ("schedule", "positions", "before", "expected"),
    [
        (mixed(), [0, 320], [], [(0, BASE), (20, BOOKS)]),
        (mixed(), [0, 320, 832], [], [(0, BASE), (20, BOOKS), (52, CODE)]),
        (INSIDE, [0, 324], [], [(0, BASE), (21, BOOKS)]),  # from the next window on
        (INSIDE, [0, 324, 328], [], [(0, BASE), (21, CODE)]),
        (mixed((None, {"books": 0.3, "code": 0.1}, CODE)), [0, 320, 832], [], [(0, BASE), (52, CODE)]),
        (mixed((BOOKS, BOOKS | {"code": 0.0}, CODE)), [0, 320], [], [(0, BOOKS)]),
        (mixed(), [1280], [(0, CODE), (40, BASE)], [(0, CODE), (40, BASE)]),  # goes on after a start checkpoint
        (mixed(), [1280], [(0, CODE)], [(0, CODE), (80, BASE)]),
        (mixed(), [1280], [], [(0, BASE)]),
        (mixed((None,) * 3, data={"source": __file__, "vocab_size": 261}), [0], [], []),
    ],
)
def test_weights_change_at_the_window_at_which_a_stage_with_other_shares_really_begins(
    schedule: Schedule, positions: list[int], before: Spans, expected: Spans
) -> None:
    spans = mixture_spans(schedule, positions, [MixtureSpan(first_window=n, weights=each) for n, each in before])
    assert [(span.first_window, span.weights) for span in spans] == expected
    assert bool(expected) == bool(stage_weights(schedule, 0))


def test_a_control_from_scratch_changes_the_weights_at_the_same_shares_of_its_own_samples() -> None:
    for each in plan_controls(mixed(controls=[{"kind": "tokenformer-scratch", "budgets": [1.0, 3.0]}])):
        [plan] = plan_stages(each.schedule)
        spans = mixture_spans(each.schedule, [plan.first_token])
        assert [dict(span.weights) for span in spans] == [BASE, BOOKS, CODE]
        for span, share in zip(spans, (0, 6 / 20, 12 / 20), strict=True):
            assert abs(span.first_window - share * plan.num_steps * 4) <= 2  # half a step of 4 samples


def test_controls_follow_the_stages_that_they_stand_for() -> None:
    of_a = control("scratch-of-each-size", releases="all").stages[0]
    assert (of_a.mixture, of_a.followed) == (BASE, None), "only the stages up to its finished size"
    jump = control("single-jump")
    first, last = jump.stages
    assert (first.mixture, first.train_steps) == (None, 6)
    assert last.followed
    assert last.followed[0].first_step == 0
    assert [dict(each.weights) for each in last.followed] == [BOOKS, CODE]
    assert abs(last.followed[1].first_step / plan_stages(jump)[1].num_steps - 6 / 14) < 0.1
    official = control("official-growth")
    assert [stage_weights(official, i) for i in range(3)] == [stage_weights(mixed(), i) for i in range(3)]


def test_a_run_keeps_its_weights() -> None:
    old = mixed()
    later = mixed((None, BOOKS, {"books": 1, "code": 2}))
    assert first_difference(old, later) == "stages.2.mixture.code = 2.0, but it was started with 3.0"
    sized = [each.model_copy(update={"approximate_tokens": 5}) for each in old.data.mixture]
    counted = old.model_copy(update={"data": old.data.model_copy(update={"mixture": sized})})
    assert first_difference(old, counted) is None
