"""Mistakes in the budgets of stages, in the shares of one budget, and slopes that can never end a stage."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.checks import check_combinations
from growctl.ladder.stage_plans import plan_stages, slope_trigger
from growctl.schedule.training_blocks import EvaluationBlock
from tests.growctl.ladders import ladder
from tests.growctl.schedules import changed, parse, paths_of

SHARED: dict[str, Any] = {
    "training.ladder_tokens": "20k",
    "stages.0.train_tokens": None,
    "stages.1.train_steps": None,
    "stages.0.until": 0.8,
    "controls": [],
}


SMALL, MEDIUM, LARGE = (
    {"name": name, "attention_tokens": 4 * size, "ffn_tokens": 8 * size} for size, name in enumerate(("s", "m", "l"), 1)
)


def test_each_stage_but_the_last_ends_at_a_share_of_the_ladders_budget() -> None:
    assert [plan.num_steps for plan in plan_stages(parse(changed(SHARED)))] == [125, 31]
    explicit = parse(changed(SHARED | {"stages.1.until": 1.0}))
    assert [plan.num_steps for plan in plan_stages(explicit)] == [125, 31]


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"training.ladder_flops": 1e12}, "training.ladder_flops"),
        ({"stages.0.until": 0}, "stages.0.until"),
        ({"stages.0.until": 80}, "stages.0.until"),
        ({"stages.0.until": "80%"}, "stages.0.until"),
        ({"stages.0.until": 800}, "stages.0.until"),
        ({"stages.0.until": 1}, "stages.0.until"),
        ({"stages.0.until": None}, "stages.0.until"),
        ({"stages.1.until": 0.9}, "stages.1.until"),
        (
            {"stages": [SMALL | {"until": 0.8}, MEDIUM | {"until": 0.5}, LARGE], "training.ladder_tokens": "20k"},
            "stages.1.until",
        ),
        ({"training.ladder_tokens": None, "stages.1.train_steps": 20}, "stages.0.until"),
        ({"training.ladder_tokens": None, "stages.1.train_steps": 20, "stages.0.train_steps": 20}, "stages.0.until"),
        ({"stages.0.train_tokens": "2k", "stages.1.train_steps": 20}, "stages.0.train_tokens stages.1.train_steps"),
        ({"training.ladder_tokens": 600}, "training.ladder_tokens"),
        ({"training.ladder_tokens": None, "training.ladder_flops": 1e7}, "training.ladder_flops"),
        ({"training.ladder_tokens": None, "training.ladder_flops": 1e40}, "training.ladder_flops"),
        ({"training.ladder_tokens": 0}, "training.ladder_tokens"),
        ({"training.ladder_flops": "lots"}, "training.ladder_flops"),
    ],
)
def test_a_mistake_in_the_shares_of_a_budget_gives_one_line(changes: dict[str, Any], paths: str) -> None:
    data = changed(changes | {"controls": []}) if "stages" in changes else changed(SHARED | changes)
    assert paths_of(parse, data) == paths


def test_a_slope_that_can_never_end_a_stage_is_one_error_with_the_interval_that_would_do() -> None:
    slope = {"when": "slope", "slope": 1e-12}
    with pytest.raises(ValueError, match="growth") as caught:
        ladder(growth=slope, evaluation={"every": 5})
    assert "evaluation.every = 5 leaves 3; set evaluation.every to 3 or less" in str(caught.value)
    ladder(growth=slope, evaluation={"every": 3})
    with pytest.raises(ValueError, match="train the stage longer"):
        ladder((9, 30, 50), growth=slope, evaluation={"every": 1})


@settings(max_examples=40)
@given(
    steps=st.lists(st.integers(5, 60), min_size=2, max_size=3).map(tuple),
    growth=st.fixed_dictionaries(
        {"slope_window": st.integers(2, 6)},
        optional={
            "ramp": st.floats(0.01, 1.0),
            "old_tokens": st.one_of(st.just("freeze"), st.builds(lambda n: {"freeze_for": n}, st.integers(1, 20))),
            "rewarmup": st.builds(lambda n: {"steps": n}, st.integers(0, 20)),
        },
    ),
    warmup=st.integers(0, 40),
    every=st.integers(1, 9),
)
def test_exactly_the_slopes_that_can_never_be_fitted_are_errors(
    steps: tuple[int, ...], growth: dict[str, Any], warmup: int, every: int
) -> None:
    rate = {"peak": 1e-3, "warmup_steps": warmup, "decay": 0.0}
    slope = {"when": "slope", "slope": 1e-9}
    fixed = ladder(steps, growth=growth, learning_rate=rate)
    block = fixed.growth.model_copy(update=slope)
    schedule = fixed.model_copy(update={"growth": block, "evaluation": EvaluationBlock(every=every)})
    never = []
    for plan in plan_stages(schedule)[:-1]:
        trigger = slope_trigger(schedule, plan)
        assert trigger is not None
        losses = [(step, 1.0) for step in range(every, plan.num_steps, every)]
        if trigger.fitted(losses, plan.settled_step) is None:
            never.append(plan.name)
    problems = check_combinations(schedule)
    assert [line.partition("stage ")[2].partition(" early")[0] for line in problems] == never
