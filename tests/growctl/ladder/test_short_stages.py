"""Settings that need more steps than there are get a warning with the steps and what to set."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.load import load_schedule, shipped_schedules
from growctl.ladder.short_stages import short_stage_warnings
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
        "learning_rate.warmup_steps = 2000: the ladder trains 100 steps, no more than the 2,000 of the warm-up: its "
        "learning rate never reaches its peak; set it to 2, 2 % of them, or train longer."
    ]
    [warning] = warnings(**rate(warmup_steps=100))
    assert "its learning rate never decays; " in warning


def test_a_warm_up_as_long_as_the_shortest_stage_is_reported_if_each_stage_has_its_own() -> None:
    assert warnings(**rate(warmup_steps=16, span="stage")) == []
    assert warnings(**rate(warmup_steps=25, span="stage")) == [
        "learning_rate.warmup_steps = 25: stage stage-0 trains 20 steps, no more than the 25 of the warm-up: its "
        "learning rate never reaches its peak; set it to 1, or train longer."
    ]


def test_a_decay_that_the_warm_up_leaves_less_than_half_of_its_steps_is_reported() -> None:
    assert warnings(**rate(warmup_steps=60, decay=0.8)) == []
    assert warnings(**rate(warmup_steps=61, decay=0.8)) == [
        "learning_rate.decay = 0.8: the ladder trains 100 steps, 61 of them warm-up: its decay takes 39 steps instead "
        "of 80; set it to 0.39 or less, or learning_rate.warmup_steps to 20 or less."
    ]
    assert warnings(**rate(warmup_steps=61, decay=0.8, shape="cosine")) == []


def test_only_a_shorter_warm_up_is_advised_where_it_leaves_no_useful_share_to_the_decay() -> None:
    assert warnings(steps=(100, 100), **rate(warmup_steps=199, decay=0.2)) == [
        "learning_rate.warmup_steps = 199: the ladder trains 200 steps, 199 of them warm-up: its decay takes 1 step "
        "instead of 40; set it to 160 or less, or train longer."
    ]


def test_a_single_step_is_advised_to_have_no_warm_up() -> None:
    assert warnings(steps=(1, 30), **rate(warmup_steps=5, span="stage")) == [
        "learning_rate.warmup_steps = 5: stage stage-0 trains 1 step, no more than the 5 of the warm-up: its learning "
        "rate never reaches its peak; set it to 0, or train longer."
    ]


@settings(max_examples=40)
@given(
    steps=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    warmup_steps=st.integers(0, 200),
    decay=st.sampled_from([0.0, 0.01, 0.2, 0.8, 1.0]),
    span=st.sampled_from(["ladder", "stage"]),
)
def test_whoever_takes_the_advice_is_not_warned_again(
    steps: list[int], warmup_steps: int, decay: float, span: str
) -> None:
    values = {"warmup_steps": warmup_steps, "decay": decay, "span": span}
    for warning in warnings(steps=tuple(steps), evaluation={"every": 1}, checkpoint={"every": 1}, **rate(**values)):
        advised = re.findall(r"set it to ([\d.]+)|warmup_steps to (\d+)", warning)
        key = warning.partition(" = ")[0].removeprefix("learning_rate.")
        for this, warmup in advised:
            taken = values | (
                {key: float(this) if key == "decay" else int(this)} if this else {"warmup_steps": int(warmup)}
            )
            again = warnings(steps=tuple(steps), evaluation={"every": 1}, checkpoint={"every": 1}, **rate(**taken))
            assert again == []


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
