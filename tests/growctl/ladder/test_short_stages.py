"""Settings that need more steps than there are get a warning with the steps and what to set."""

from typing import Any

import pytest

from growctl.ladder.short_stages import short_stage_warnings
from growctl.schedule.load import load_schedule, shipped_schedules
from tests.growctl.ladders import ladder


def warnings(**blocks: Any) -> list[str]:
    return short_stage_warnings(ladder(**blocks))


def rate(**values: Any) -> dict[str, Any]:
    return {"learning_rate": {"peak": 1e-3} | values}


@pytest.mark.parametrize("name", shipped_schedules())
def test_no_shipped_schedule_asks_for_more_steps_than_it_has(name: str) -> None:
    assert short_stage_warnings(load_schedule(name)) == []


def test_a_warm_up_as_long_as_the_ladder_is_reported() -> None:
    assert warnings(**rate(warmup_steps=80)) == []
    assert warnings(**rate(warmup_steps=2000)) == [
        "learning_rate.warmup_steps = 2000: the ladder trains 100 steps, so the rate never reaches its peak; set it to "
        "2, 2 % of them, or train longer."
    ]
    [warning] = warnings(**rate(warmup_steps=100))
    assert "so the rate never decays; " in warning


def test_a_warm_up_as_long_as_the_shortest_stage_is_reported_if_each_stage_has_its_own() -> None:
    assert warnings(**rate(warmup_steps=16, span="stage")) == []
    assert warnings(**rate(warmup_steps=25, span="stage")) == [
        "learning_rate.warmup_steps = 25: stage stage-0 trains 20 steps, so the rate never reaches its peak; set it to "
        "1, 2 % of them, or train longer."
    ]


def test_a_decay_that_the_warm_up_leaves_too_few_steps_is_reported() -> None:
    assert warnings(**rate(warmup_steps=30, decay=0.7)) == []
    assert warnings(**rate(warmup_steps=30, decay=0.8)) == [
        "learning_rate.decay = 0.8: the ladder trains 100 steps, of which the decay asks for 80 and the warm-up takes "
        "30, so the rate decays over 70; set it to 0.7 or less, or learning_rate.warmup_steps lower."
    ]
    assert warnings(**rate(warmup_steps=30, decay=1.0)) == [], "a decay over all steps after the warm-up"
    assert warnings(**rate(warmup_steps=30, decay=0.8, shape="cosine")) == []


@pytest.mark.parametrize(
    ("key", "then"),
    [
        ("evaluation", "so the loss is only measured at the end"),
        ("checkpoint", "so a stop loses the whole stage"),
    ],
)
def test_an_interval_beyond_a_stage_is_reported(key: str, then: str) -> None:
    assert warnings(**{key: {"every": 19}}) == []
    assert warnings(**{key: {"every": 20}}) == [
        f"{key}.every = 20: stage stage-0 (20 steps) has none in between, {then}; set it to 5, or anything below 20."
    ]
    assert warnings(**{key: {"every": 40}}) == [
        f"{key}.every = 40: stages stage-0 (20 steps), stage-1 (30 steps) have none in between, {then}; set it to 5, "
        "or anything below 20."
    ]


def test_a_stage_of_one_step_needs_no_interval() -> None:
    assert warnings(steps=(1, 30, 50)) == []
