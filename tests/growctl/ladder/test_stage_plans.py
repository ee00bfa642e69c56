"""The plan computed from a schedule: sizes, steps, FLOPs, learning rates, and the worker's optimizer."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import StagePlan, plan_stages, total_flops
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


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.integers(0, 40),
    st.floats(0.0, 1.0),
    st.sampled_from(["wsd", "cosine"]),
    st.sampled_from([0.0, 1e-4]),
)
def test_a_ladder_wide_rate_warms_up_once_and_does_not_jump_between_stages(
    steps: list[int], warmup: int, decay: float, shape: str, final: float
) -> None:
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
