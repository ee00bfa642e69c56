"""The weights of a mixture along a run, and in the controls that it is compared with."""

from pathlib import Path
from typing import Any

from growctl.ladder.controls import plan_controls
from growctl.ladder.datasets import mixture_spans
from growctl.ladder.load import parse_schedule
from growctl.ladder.stage_plans import plan_stages, stage_weights
from growctl.run.requests import first_difference
from growctl.schedule.blocks import Schedule
from stages.spec import MixtureSpan
from tests.growctl.mixed import SCHEDULE, mixed_schedule

BASE, BOOKS, CODE = {"books": 3.0, "code": 1.0}, {"books": 1.0}, {"books": 1.0, "code": 3.0}


def mixed(**blocks: Any) -> Schedule:
    return parse_schedule(mixed_schedule(Path("/texts"), **blocks), label="s", default_name="s")


def spans(*weights: tuple[int, dict[str, float]]) -> tuple[MixtureSpan, ...]:
    return tuple(MixtureSpan(first_window=first, weights=each) for first, each in weights)


def at(*windows: int) -> list[int]:
    """The positions at which these windows of 16 tokens begin."""
    return [window * 16 for window in windows]


def stages(*weights: dict[str, float] | None, **last: Any) -> list[dict[str, Any]]:
    entries = [{**stage, "mixture": each} for stage, each in zip(SCHEDULE["stages"], weights, strict=True)]
    return [*entries[:-1], entries[-1] | last]


def test_a_stage_changes_the_weights_at_the_sample_at_which_it_really_begins() -> None:
    assert mixture_spans(mixed(), at(0, 20)) == spans((0, BASE), (20, BOOKS))
    assert mixture_spans(mixed(), at(0, 20, 52)) == spans((0, BASE), (20, BOOKS), (52, CODE))


def test_a_stage_that_begins_inside_a_window_changes_the_weights_at_the_next_one() -> None:
    shorter = [{**stage, "sequence_length": 4} for stage in stages(None, BOOKS, None)[:2]]
    schedule = mixed(stages=[*shorter, stages(None, BOOKS, CODE)[2]])
    assert mixture_spans(schedule, [0, 20 * 16 + 4]) == spans((0, BASE), (21, BOOKS))
    assert mixture_spans(schedule, [0, 20 * 16 + 4, 20 * 16 + 8]) == spans((0, BASE), (21, CODE)), "never reached"


def test_a_stage_with_the_shares_of_the_one_before_goes_on_in_its_order() -> None:
    assert mixture_spans(mixed(stages=stages(None, {"books": 0.3, "code": 0.1}, CODE)), at(0, 20, 52)) == spans(
        (0, BASE), (52, CODE)
    )
    paused = stages(BOOKS, BOOKS | {"code": 0.0}, CODE)
    assert mixture_spans(mixed(stages=paused), at(0, 20)) == spans((0, BOOKS))


def test_a_run_from_a_checkpoint_reads_on_after_what_the_checkpoint_has_read() -> None:
    assert mixture_spans(mixed(), at(80), spans((0, CODE), (40, BASE))) == spans((0, CODE), (40, BASE))
    assert mixture_spans(mixed(), at(80), spans((0, CODE))) == spans((0, CODE), (80, BASE))
    assert mixture_spans(mixed(), at(80)) == spans((0, BASE))


def test_a_schedule_without_a_mixture_has_no_weights() -> None:
    plain = mixed(data={"source": __file__, "vocab_size": 261}, stages=[SCHEDULE["stages"][0]])
    assert mixture_spans(plain, [0]) == ()
    assert stage_weights(plain, 0) == []


def test_a_control_from_scratch_changes_the_weights_at_the_same_shares_of_its_own_samples() -> None:
    schedule = mixed(controls=[{"kind": "tokenformer-scratch", "budgets": [1.0, 3.0]}])
    for control in plan_controls(schedule):
        [plan] = plan_stages(control.schedule)
        first, second, third = mixture_spans(control.schedule, [plan.first_token])
        assert [dict(span.weights) for span in (first, second, third)] == [BASE, BOOKS, CODE]
        for span, share in ((first, 0), (second, 6 / 20), (third, 12 / 20)):
            assert abs(span.first_window - share * plan.num_steps * 4) <= 2  # half a step of 4 samples


def test_a_control_of_one_finished_size_follows_only_the_stages_up_to_it() -> None:
    of_a, *_ = plan_controls(mixed(controls=[{"kind": "scratch-of-each-size"}], releases="all"))
    assert (of_a.schedule.stages[0].mixture, of_a.schedule.stages[0].followed) == (BASE, None)


def test_a_single_jump_reads_the_ladders_first_stage_and_then_follows_the_others() -> None:
    [jump] = plan_controls(mixed(controls=[{"kind": "single-jump"}]))
    first, last = jump.schedule.stages
    assert (first.mixture, first.train_steps) == (None, 6)
    assert last.followed
    assert last.followed[0].first_step == 0
    assert [dict(each.weights) for each in last.followed] == [BOOKS | {"code": 0.0}, CODE]
    share = last.followed[1].first_step / plan_stages(jump.schedule)[1].num_steps
    assert abs(share - 6 / 14) < 0.1


def test_official_growth_keeps_the_weights_of_each_stage() -> None:
    schedule = mixed(controls=[{"kind": "official-growth"}])
    [official] = plan_controls(schedule)
    assert [stage_weights(official.schedule, i) for i in range(3)] == [stage_weights(schedule, i) for i in range(3)]


def test_a_run_keeps_its_weights() -> None:
    old = mixed(stages=stages(None, BOOKS, CODE))
    later = mixed(stages=stages(None, BOOKS, {"books": 1, "code": 2}))
    assert first_difference(old, later) == "stages.2.mixture.code = 2.0, but it was started with 3.0"
    sized = old.data.model_copy(update={"mixture": [
        each.model_copy(update={"approximate_tokens": 5}) for each in old.data.mixture
    ]})  # fmt: skip
    assert first_difference(old, old.model_copy(update={"data": sized})) is None
