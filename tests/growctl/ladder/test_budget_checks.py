"""Mistakes in the budgets of stages, in the shares of one budget, and slopes that can never end a stage."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.budget_checks import check_trigger
from growctl.ladder.stage_plans import plan_stages, slope_trigger
from growctl.schedule.blocks import EvaluationBlock
from tests.growctl.ladders import ladder
from tests.growctl.schedules import changed, message_of, parse

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
    ("changes", "problem"),
    [
        (
            {"training.ladder_flops": 1e12},
            "training: has both ladder_tokens and ladder_flops; drop one (as an override: ~training.ladder_flops)",
        ),
        ({"stages.0.until": 0}, "stages.0.until = 0: must be above 0"),
        (
            {"stages.0.until": 80},
            "stages.0.until = 80: must be a share, above 0 and 1 at most; write 0.8 for 80 %",
        ),
        (
            {"stages.0.until": "80%"},
            "stages.0.until = '80%': must be a share, above 0 and 1 at most; write 0.8 for 80 %",
        ),
        ({"stages.0.until": 800}, "stages.0.until = 800: must be 1 or less"),
        (
            {"stages.0.until": 1},
            "stages.0.until = 1: must be below 1, so that the stages after it have a share of training.ladder_tokens "
            "too",
        ),
        (
            {"stages.0.until": None},
            "stages.0.until: is missing; with training.ladder_tokens, each stage but the last ends at a share of the "
            "whole budget",
        ),
        (
            {"stages.1.until": 0.9},
            "stages.1.until = 0.9: must be 1 in the last stage, which ends the ladder; leave it out",
        ),
        (
            {"stages": [SMALL | {"until": 0.8}, MEDIUM | {"until": 0.5}, LARGE], "training.ladder_tokens": "20k"},
            "stages.1.until = 0.5: must be above 0.8, where the stage before ends",
        ),
        (
            {"training.ladder_tokens": None, "stages.1.train_steps": 20},
            "stages.0.until = 0.8: is a share of the whole ladder's budget, which is missing; set "
            "training.ladder_tokens or training.ladder_flops",
        ),
        (
            {"training.ladder_tokens": None, "stages.1.train_steps": 20, "stages.0.train_steps": 20},
            "stages.0.until = 0.8: is a share of the whole ladder's budget, which is missing; drop it (as an override: "
            "~stages.0.until), or drop train_steps and set a budget for the whole ladder",
        ),
        (
            {"stages.0.train_tokens": "2k", "stages.1.train_steps": 20},
            "training.ladder_tokens = 20000: is the budget of all stages together, so stages.0.train_tokens, "
            "stages.1.train_steps must go (as an override: ~stages.0.train_tokens); each stage but the last needs an "
            "until instead",
        ),
        (
            {"training.ladder_tokens": 600},
            "training.ladder_tokens = 600: leaves stage large 0.2 of it, less than one step of 128 tokens; must be 640 "
            "or more",
        ),
        (
            {"training.ladder_tokens": None, "training.ladder_flops": 1e7},
            "training.ladder_flops = 10000000: leaves stage large 0.2 of it, less than one step of 12091392 FLOPs; "
            "must be 60456960 or more",
        ),
        (
            {"training.ladder_tokens": None, "training.ladder_flops": 1e40},
            "training.ladder_flops = 1.00e40: gives a stage more than 100T steps; lower it",
        ),
        ({"training.ladder_tokens": 0}, "training.ladder_tokens = 0: must be above 0"),
        ({"training.ladder_flops": "lots"}, "training.ladder_flops = 'lots': must be a number"),
    ],
)
def test_a_mistake_in_the_shares_of_a_budget_gives_one_line(changes: dict[str, Any], problem: str) -> None:
    data = changed(changes | {"controls": []}) if "stages" in changes else changed(SHARED | changes)
    assert message_of(parse, data) == f"s.yaml: {problem}"


def test_a_slope_that_can_never_end_a_stage_is_one_error_with_the_interval_that_would_do() -> None:
    slope = {"when": "slope", "slope": 1e-12}
    with pytest.raises(ValueError, match="growth") as caught:
        ladder(growth=slope, evaluation={"every": 5})
    assert str(caught.value) == (
        "s: growth.when = 'slope': can never end stage stage-0 early: its slope is fitted through growth.slope_window "
        "= 5 evaluations, and evaluation.every = 5 leaves 3 between step 5, when warm-up, ramp, annealing and freezing "
        "are over, and the end of the stage's 20 steps; set evaluation.every to 3 or less"
    )
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
    said = list(check_trigger(schedule))
    assert len(said) == bool(never)
    assert not never or f"can never end stage {never[0]} early" in said[0]
