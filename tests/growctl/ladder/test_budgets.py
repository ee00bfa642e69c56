"""The steps of stages that share one budget: training.ladder_tokens or training.ladder_flops."""

from math import floor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.checks import check_combinations
from growctl.ladder.conditions import comparison_conditions
from growctl.ladder.controls import plan_controls
from growctl.ladder.stage_plans import in_steps, plan_stages, stage_steps, total_flops
from growctl.schedule.blocks import Schedule
from tests.growctl.ladders import ladder

STEP = 8 * 16
"""Data tokens of a step."""
SHARES = st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True).map(lambda found: sorted(found))
KINDS = ("best-scratch", "decoder-scratch", "single-jump", "official-growth", "scratch-of-each-size")


def shared(*shares: float, blocks: dict[str, Any] | None = None, **budget: Any) -> Schedule:
    """A ladder whose stages end at these shares of `budget`, and then at its end; each grows."""
    ends = [{"until": share} for share in shares]
    stages = [
        {"name": f"stage-{i}", "attention_tokens": 4 * (i + 1), "ffn_tokens": 8 * (i + 1)} | end
        for i, end in enumerate([*ends, {}])
    ]
    training = {"sequence_length": 16, "batch_size": 8} | budget
    rate = {"peak": 1e-3, "warmup_steps": 5, "decay": 0.1}
    return ladder(stages=stages, training=training, learning_rate=rate, **blocks or {})


@settings(max_examples=40)
@given(SHARES, st.integers(100 * STEP, 10_000 * STEP))
def test_stages_end_at_the_steps_nearest_to_their_shares_of_the_tokens_and_add_up_to_all(
    percent: list[int], tokens: int
) -> None:
    steps = stage_steps(shared(*(each / 100 for each in percent), ladder_tokens=tokens))
    for index, share in enumerate([*percent, 100], 1):
        assert abs(sum(steps[:index]) * STEP - share / 100 * tokens) <= STEP / 2 + 1e-6
    assert sum(steps) == floor(tokens / STEP + 0.5)


def test_stages_end_at_their_shares_of_the_flops_although_a_step_of_each_costs_more() -> None:
    schedule = shared(0.5, 0.8, ladder_flops=3e9)
    plans = plan_stages(schedule)
    assert plans[0].num_steps > plans[1].num_steps > plans[2].num_steps
    for count, share in ((1, 0.5), (2, 0.8), (3, 1.0)):
        assert abs(total_flops(plans[:count]).total - share * 3e9) <= plans[count - 1].step_flops.total / 2
    steps = stage_steps(schedule)
    assert steps == [plan.num_steps for plan in plans]
    resolved = in_steps(schedule, steps)
    assert check_combinations(resolved) == []
    assert plan_stages(resolved) == plans


@pytest.mark.parametrize("budget", [{"ladder_tokens": 1000 * STEP}, {"ladder_flops": 1e10}])
def test_a_stage_that_ends_early_leaves_its_tokens_or_flops_to_the_next(budget: dict[str, Any]) -> None:
    schedule = shared(0.5, 0.8, **budget)
    whole, early = plan_stages(schedule), plan_stages(schedule, [10])
    assert early[0].num_steps == 10
    assert early[1].num_steps > whole[1].num_steps
    assert early[2].num_steps == whole[2].num_steps
    unit = (lambda plan: plan.budget_tokens) if "ladder_tokens" in budget else (lambda plan: plan.flops.total)
    most = max(unit(plan) / plan.num_steps for plan in whole)
    assert abs(sum(map(unit, early)) - sum(map(unit, whole))) <= most


@pytest.mark.parametrize("budget", [{"ladder_tokens": 600 * STEP}, {"ladder_flops": 5e9}])
def test_controls_have_steps_of_their_own_that_cost_their_multiple_of_the_ladder(budget: dict[str, Any]) -> None:
    controls = [{"kind": kind, "budgets": [1.0, 1.5]} for kind in KINDS]
    schedule = shared(0.4, 0.8, blocks={"controls": controls, "releases": "all"}, **budget)
    total, conditions = total_flops(plan_stages(schedule)).total, comparison_conditions(schedule)
    assert {control.kind for control in plan_controls(schedule)} == set(KINDS)
    for control in plan_controls(schedule):
        training, plans = control.schedule.training, plan_stages(control.schedule)
        assert check_combinations(control.schedule) == []
        assert (training.ladder_tokens, training.ladder_flops) == (None, None)
        assert {stage.until for stage in control.schedule.stages} == {None}
        if control.kind != "scratch-of-each-size":
            wanted = total * (1.5 if control.name.endswith("1.5x") else 1)
            assert total_flops(plans).total == pytest.approx(wanted, abs=sum(p.step_flops.total for p in plans))
        own = comparison_conditions(control.schedule)
        assert not [key for key in conditions if key.startswith("training") and own[key] != conditions[key]]
