"""The plan computed from a schedule: sizes, steps of shared budgets too, FLOPs, rates, and the worker's optimizer."""

import math
from itertools import pairwise
from math import floor
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from growctl.ladder.checks import check_combinations
from growctl.ladder.conditions import comparison_conditions
from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import StagePlan, in_steps, plan_stages, stage_steps, total_flops
from growctl.schedule.blocks import Schedule
from model.flops import training_flops_per_token
from tests.growctl.ladder import spec_of
from tests.growctl.ladders import ladder
from tests.growctl.schedules import changed, parse

MUON = {"optimizer.name": "muon"}


def rates(plans: list[StagePlan]) -> list[float]:
    """The learning rate of every step, stage after stage."""
    return [plan.learning_rate.at(step) for plan in plans for step in range(plan.num_steps)]


@given(st.integers(1, 50_000), st.integers(1, 64), st.integers(1, 256))
def test_tokens_become_the_nearest_whole_number_of_steps(train_tokens: int, batch: int, length: int) -> None:
    assume(train_tokens >= batch * length)
    stages = [{"name": "a", "attention_tokens": 4, "ffn_tokens": 8, "train_tokens": train_tokens}]
    (plan,) = plan_stages(ladder(stages=stages, training={"batch_size": batch, "sequence_length": length}))
    assert plan.num_steps >= 1
    assert abs(plan.budget_tokens - train_tokens) <= batch * length / 2
    assert plan.budget_tokens == plan.num_steps * batch * length


@pytest.mark.slow
@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.floats(0.001, 1.0))
def test_steps_flops_and_ramps_add_up_over_the_stages(steps: list[int], ramp: float) -> None:
    plans = plan_stages(ladder(tuple(steps), growth={"ramp": ramp}))
    assert [plan.num_steps for plan in plans] == steps
    assert [plan.first_step for plan in plans] == [sum(steps[:i]) for i in range(len(steps))]
    for plan in plans:
        assert plan.flops.total == pytest.approx(plan.budget_tokens * training_flops_per_token(plan.model, 16).total)
        assert (plan.ramp_steps == 0) == (plan.index == 0 or plan.num_steps == 1)
        assert plan.ramp_steps < plan.num_steps  # the last update is at the published formula
    assert total_flops(plans).total == pytest.approx(sum(plan.flops.total for plan in plans))


def test_a_window_is_in_the_model_and_the_flops_of_every_stage_and_control() -> None:
    windowed = parse(changed({"model.attention_window": 8, "model.full_attention_every": 2}))
    for schedule in (windowed, *(control.schedule for control in plan_controls(windowed))):
        for plan in plan_stages(schedule):
            share = {None: 1.0, 8: 0.5}
            attended = sum(share[window] for window in plan.model.windows(16)) / plan.model.num_layers
            plain = plan.model.model_copy(update={"attention_window": None, "full_attention_every": None})
            whole = plan.budget_tokens * training_flops_per_token(plain, 16).attention
            assert plan.flops.attention == pytest.approx(attended * whole)
            assert attended < 1


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.integers(0, 40),
    st.floats(0.0, 1.0),
    st.sampled_from(["wsd", "cosine"]),
    st.sampled_from([0.0, 1e-4]),
)
def test_a_ladder_wide_rate_warms_up_once_and_does_not_jump_between_stages(steps, warmup, decay, shape, final):
    total = sum(steps)
    block = {"peak": 1e-3, "final": final, "shape": shape, "warmup_steps": warmup, "decay": decay}
    curve = rates(plan_stages(ladder(tuple(steps), learning_rate=block)))
    assert curve[:warmup] == pytest.approx([1e-3 * (i + 1) / warmup for i in range(min(warmup, total))])
    assert curve == rates(plan_stages(ladder((total,), learning_rate=block))), "the split into stages does not matter"
    after = curve[warmup:]
    if not after:
        return
    assert max(after) == pytest.approx(1e-3)
    assert all(later <= earlier for earlier, later in pairwise(after))
    if shape == "wsd":
        decay_steps = min(round(decay * total), total - warmup)
        assert after[: total - warmup - decay_steps] == [1e-3] * (total - warmup - decay_steps)
        falls = [earlier - later for earlier, later in pairwise(after) if later < earlier]
        assert falls == pytest.approx([(1e-3 - final) / max(1, decay_steps)] * max(0, decay_steps - 1))


@pytest.mark.parametrize("shape", ["wsd", "cosine"])
def test_with_span_stage_every_stage_warms_up_and_decays(shape: str) -> None:
    block = {"peak": 1e-3, "shape": shape, "span": "stage", "warmup_steps": 5, "decay": 0.2}
    plans = plan_stages(ladder((20, 40), learning_rate=block))
    for plan in plans:
        curve = rates([plan])
        assert curve[:6] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3, 1e-3])
        assert curve[-1] < 3e-4
    expected = 0.5 * (1 + math.cos(math.pi * 17 / 35)) if shape == "cosine" else 1.0
    assert rates(plans)[20 + 5 + 17] == pytest.approx(1e-3 * expected)  # halfway through the 35 steps after warm-up


def test_muon_trains_without_clipping_on_every_zero_stage_that_keeps_its_momentum_exact() -> None:
    launches: tuple[dict[str, Any], ...] = ({"launch.zero_stage": 1}, {"launch.zero_stage": 3})
    for changes in (*launches, {"launch.zero_stage": 2, "training.precision": "fp32"}):
        assert parse(changed(MUON | changes)).optimizer.gradient_clipping == 0
        assert parse(changed(changes)).optimizer.gradient_clipping == 1
    for name in ("quickstart", "pile_1.4b"):  # without and with shipped values of the optimizer
        assert load_schedule(name, ["optimizer=muon"]).optimizer.gradient_clipping == 0


def test_muons_rate_is_by_default_the_one_at_which_its_updates_are_as_large_as_adamws() -> None:
    usual = 0.2 * math.sqrt(parse(changed({})).model.hidden_size)
    for changes, expected in (({}, 1.0), (MUON, usual), (MUON | {"optimizer.muon_lr_scale": 30}, 30.0)):
        schedule = parse(changed(changes))
        optimizer = spec_of(schedule).optimizer
        assert (optimizer.name, optimizer.muon_lr_scale) == (schedule.optimizer.name, pytest.approx(expected))


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
def test_stages_end_nearest_to_their_shares_of_the_tokens_and_add_up(percent: list[int], tokens: int) -> None:
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
