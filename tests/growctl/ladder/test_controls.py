"""The controls that growctl generates from a schedule, and the decoder of the size of a Tokenformer."""

import math
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from growctl.ladder.checks import check_combinations
from growctl.ladder.controls import CLOSE, control_name, equal_size_decoder, plan_controls
from growctl.ladder.stage_plans import StagePlan, plan_stages, total_flops
from growctl.schedule.blocks import ControlBlock, Schedule
from model.policy import GrowthPolicy
from model.shapes import num_parameters
from model.tokenformer_config import TokenformerConfig, tokenformer_config
from tests.growctl.ladders import ladder as small_ladder
from tests.growctl.schedules import message_of

EVERY_KIND = ("tokenformer-scratch", "decoder-scratch", "best-scratch", "single-jump", "official-growth")


def ladder(
    *kinds: str, steps: tuple[int, ...] = (40, 60, 90), budgets: tuple[float, ...] = (1.0,), **blocks: Any
) -> Schedule:
    """A ladder with these controls, whose stages have 4, 8, 12, ... attention tokens."""
    controls = [{"kind": kind, "budgets": list(budgets)} for kind in kinds]
    return small_ladder(steps, **{"controls": controls, "learning_rate": {"peak": 1e-3, "warmup_steps": 3}} | blocks)


def decoder_ladder(*kinds: str) -> Schedule:
    """A ladder of decoders, stacked to twice and four times the depth."""
    stages = [{"name": f"d{2**i}", "num_layers": 2 * 2**i, "train_steps": 50} for i in range(3)]
    stages[0]["ffn_tokens"] = 128
    model = {"family": "decoder", "num_layers": 2, "hidden_size": 32, "num_heads": 2}
    return ladder(*kinds, model=model, stages=stages, growth={"depth": "copy-stack", "allow_jump": True})


def plans_of(schedule: Schedule, steps_done: tuple[int, ...] = ()) -> dict[str, list[StagePlan]]:
    """The plans of each control, by its name without the ladder's."""
    controls = plan_controls(schedule, steps_done)
    return {each.name.removeprefix("s-control-"): plan_stages(each.schedule) for each in controls}


@pytest.mark.slow
@settings(max_examples=30)
@given(
    steps=st.lists(st.integers(30, 300), min_size=3, max_size=4).map(tuple),
    budget=st.sampled_from([1.0, 1.5, 2.0, 3.0]),
)
def test_a_control_costs_its_budget_and_differs_only_in_shape_and_growth(steps: tuple[int, ...], budget: float) -> None:
    schedule = ladder(*EVERY_KIND, steps=steps, budgets=(budget,))
    ladder_plans, controls = plan_stages(schedule), plan_controls(schedule)
    assert {control.kind for control in controls} == set(EVERY_KIND)
    for control in controls:
        plans = plan_stages(control.schedule)
        rounding = sum(plan.step_flops.total for plan in plans)
        budget_flops = budget * total_flops(ladder_plans).total
        assert abs(total_flops(plans).total - budget_flops) <= 0.5 * rounding * (1 + 1e-9)
        assert {plan.learning_rate.total_steps for plan in plans} == {sum(plan.num_steps for plan in plans)}
        assert check_combinations(control.schedule) == []
        for field in Schedule.model_fields.keys() - {"name", "model", "stages", "controls", "growth"}:
            assert getattr(control.schedule, field) == getattr(schedule, field)
        assert (control.schedule.name, control.schedule.controls) == (control.name, [])
        if control.kind in ("tokenformer-scratch", "decoder-scratch"):
            [plan] = plans
            assert (plan.name, plan.model.family) == (ladder_plans[-1].name, control.kind.removesuffix("-scratch"))
            tolerance = 0.05 * (plan.model.family == "decoder")
            assert plan.num_parameters == pytest.approx(ladder_plans[-1].num_parameters, rel=tolerance)


def test_a_control_trains_a_step_at_least_and_its_name_has_the_budget() -> None:
    plans = plans_of(ladder("tokenformer-scratch", budgets=(0.001, 1.0, 2.5), steps=(1, 2)))
    assert list(plans) == ["tokenformer-scratch-0.001x", "tokenformer-scratch", "tokenformer-scratch-2.5x"]
    assert plans["tokenformer-scratch-0.001x"][0].num_steps == 1


def test_names_of_stages_budgets_and_peaks_give_every_control_a_name_of_its_own() -> None:
    endings = ("", "-0.5x", "-.5", "-1x", "-1", "-0.5x-1x", "-2x", "-peak2x", "-1x-peak2x", "-peak2x-1x")
    runs = product("ab", endings, (0.5, 1.0, 2.0), (0.5, 1.0, 2.0))
    named = [control_name(ladder(), "best-scratch", letter + ending, *each) for letter, ending, *each in runs]
    assert len(set(named)) == len(named)
    assert control_name(ladder(), "best-scratch", "a-0.5x", 1.0).endswith("-a-0.5x-1x")


@pytest.mark.parametrize("tau", ["ramp", "anneal"])
def test_every_control_of_a_ladder_with_ramp_steps_is_valid(tau: str) -> None:
    kinds = [kind for kind in get_args(ControlBlock.model_fields["kind"].annotation) if kind != "ungrown"]
    stages = [stage.model_dump(exclude_none=True) for stage in ladder().stages]
    stages[-1]["ramp_steps"] = 6
    growth = {"tau": tau, "init": "zero-key" if tau == "anneal" else "matched"}
    schedule = ladder(*kinds, stages=stages, growth=growth, releases="all")
    controls = plan_controls(schedule)
    assert {control.kind for control in controls} == set(kinds)
    assert all(check_combinations(control.schedule) == [] for control in controls)


NO_DECAY = {"releases": "all", "learning_rate": {"peak": 1e-3, "decay": 0.0}}


@pytest.mark.parametrize(
    ("make", "kind", "blocks", "needed"),
    [
        (ladder, "single-jump", {"steps": (9, 9)}, "three stages or more"),
        (ladder, "ungrown", {}, "a start checkpoint"),
        (ladder, "official-growth", {"growth": {"preset": "official"}}, "a tokenformer that grows"),
        (decoder_ladder, "official-growth", {}, "a tokenformer that grows"),
        (ladder, "scratch-of-each-size", {}, "a ladder with finished models of two sizes or more"),
        (ladder, "scratch-of-each-size", NO_DECAY, "learning_rate.decay above 0"),
    ],
)
def test_a_control_names_what_it_needs_of_its_ladder(make: Any, kind: str, blocks: Any, needed: str) -> None:
    message = message_of(lambda: make(kind, **blocks))
    assert message.startswith(f"s: controls.0.kind = '{kind}': needs {needed}")


def test_controls_of_a_ladder_ended_by_a_slope_use_its_actual_steps() -> None:
    slope, rate = {"when": "slope", "slope": 1e-9}, {"peak": 1e-3, "decay": 0.3}
    schedule = ladder("single-jump", "official-growth", growth=slope, learning_rate=rate, evaluation={"every": 5})
    plans = plans_of(schedule, (20, 30))
    assert plans["single-jump"][0].num_steps == 20
    assert [plan.num_steps for plan in plans["official-growth"]] == [20, 30, 90]
    assert {control.schedule.growth.when for control in plan_controls(schedule)} == {"fixed"}


def test_controls_run_on_the_machines_of_their_ladders_stages() -> None:
    controls = plan_controls(ladder(*EVERY_KIND, launch={"nodes": [1, 2, 4]}))
    nodes = [control.schedule.launch.nodes for control in controls]
    assert nodes == [[4], [4], [1], [2], [1, 4], [1, 2, 4]]


def test_a_decoders_controls_have_its_own_sizes() -> None:
    schedule = decoder_ladder("decoder-scratch", "best-scratch", "single-jump")
    depths = {name: [plan.model.num_layers for plan in plans] for name, plans in plans_of(schedule).items()}
    assert list(depths) == ["decoder-scratch", "best-scratch-d1", "best-scratch-d2", "single-jump"]
    assert list(depths.values()) == [[8], [2], [4], [2, 8]]
    assert all(check_combinations(control.schedule) == [] for control in plan_controls(schedule))


def test_best_scratch_is_every_size_of_the_ladder_alone_but_those_that_another_control_trains() -> None:
    schedule = ladder("best-scratch", budgets=(1.0, 2.0))
    plans = plans_of(schedule)
    assert list(plans) == [f"best-scratch-stage-{i}{budget}" for budget in ("", "-2x") for i in range(3)]
    sizes = [plan.num_parameters for plan in plan_stages(schedule)]
    assert [[plan.num_parameters for plan in alone] for alone in plans.values()] == [[size] for size in sizes] * 2
    assert list(plans_of(ladder("tokenformer-scratch", "best-scratch"))) == [
        *("tokenformer-scratch", "best-scratch-stage-0", "best-scratch-stage-1")
    ]


OTHER_GROWTH = {"ramp": 0.1, "lr_scale": [1.0, 0.5], "weight_decay": [0.2, 0.0], "old_tokens": {"freeze_for": 4}}
COPIES = {"init": "copy", "tau": "recompute", "copy_noise": 0.5, "allow_jump": True}


@pytest.mark.parametrize("growth", [{}, OTHER_GROWTH, {"moments": "reset", "rewarmup": {"steps": 5}}, COPIES], ids=str)
def test_official_growth_differs_from_its_ladder_only_in_the_growth_policy(growth: dict[str, Any]) -> None:
    stages = [{"name": f"s{n}", "attention_tokens": 8 * n, "ffn_tokens": 16 * n, "train_steps": 30} for n in (1, 2, 4)]
    schedule = ladder("official-growth", growth=growth, stages=stages)
    [control] = plan_controls(schedule)
    before, after = schedule.growth.model_dump(), control.schedule.growth.model_dump()
    differing = {key for key in before if before[key] != after[key]}
    assert differing <= {"preset", "init", "tau", "moments", "allow_jump", "copy_noise"}
    assert control.schedule.growth.policy() == GrowthPolicy.of("official")
    unchanged = {"name": "s", "controls": schedule.controls, "growth": schedule.growth}
    assert control.schedule.model_copy(update=unchanged) == schedule
    assert check_combinations(control.schedule) == []


def test_scratch_of_each_size_trains_every_finished_model_alone_at_that_models_own_cost() -> None:
    schedule = ladder("scratch-of-each-size", budgets=(0.5, 1.0), releases="all")
    stages = plan_stages(schedule)
    costs = [total_flops(stages[: i + 1]).total for i in range(3)]
    costs = [cost + stage.step_flops.total * steps for cost, stage, steps in zip(costs, stages, (4, 6, 0), strict=True)]
    plans = plans_of(schedule)
    assert list(plans) == [f"scratch-of-each-size-stage-{i}{budget}" for budget in ("-0.5x", "") for i in range(3)]
    for [plan], cost in zip(plans.values(), [0.5 * cost for cost in costs] + costs, strict=True):
        assert plan.num_parameters == stages[int(plan.name[-1])].num_parameters
        assert abs(plan.flops.total - cost) <= 0.5 * plan.step_flops.total
        rate = plan.learning_rate
        assert (rate.warmup_steps, rate.total_steps) == (3, plan.num_steps)
        assert rate.decay_steps == round(0.2 * plan.num_steps), "its own full decay"
    for twin in ("tokenformer-scratch", "best-scratch"):
        names = plans_of(ladder("scratch-of-each-size", twin, releases="all"))
        assert "scratch-of-each-size-stage-1" in names
        assert "scratch-of-each-size-stage-2" not in names, "the twin trains it"
    decayed = ladder("scratch-of-each-size", learning_rate={"peak": 1e-3, "shape": "cosine", "span": "stage"})
    assert len(plan_controls(decayed)) == 3, "its stages are finished without releases"


def tokenformer(
    num_layers: int, num_heads: int, head_width: int, attention_tokens: int, ffn_tokens: int, vocab_size: int = 1000
) -> TokenformerConfig:
    width: dict[str, Any] = {"hidden_size": num_heads * head_width, "num_heads": num_heads}
    tokens: dict[str, Any] = {"attention_tokens": attention_tokens, "ffn_tokens": ffn_tokens}
    return tokenformer_config(num_layers=num_layers, vocab_size=vocab_size, **width, **tokens)


def miss(model: TokenformerConfig) -> float:
    return abs(math.log(num_parameters(equal_size_decoder(model)) / num_parameters(model)))


@settings(max_examples=60)
@given(st.integers(2, 24), st.integers(2, 12), st.sampled_from([16, 32, 64]), st.floats(0.5, 10.0))
def test_the_decoder_has_the_usual_proportions(num_layers: int, num_heads: int, head_width: int, factor: float) -> None:
    tokens = math.ceil(num_heads * head_width * factor)
    model = tokenformer(num_layers, num_heads, head_width, tokens, 4 * tokens)
    found = equal_size_decoder(model)
    assert miss(model) <= CLOSE
    assert (found.head_width, found.vocab_size) == (head_width, 1000)
    assert found.hidden_size <= found.ffn_tokens <= 8 * found.hidden_size
    assert 0.25 < (found.hidden_size / found.num_layers) / (model.hidden_size / model.num_layers) < 4


LAYERS, HEADS, WIDTHS = st.integers(1, 24), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([16, 64, 128])


@settings(max_examples=60)
@given(LAYERS, HEADS, WIDTHS, st.floats(0.25, 30.0), st.sampled_from([1, 2, 4, 8]), st.sampled_from([300, 4096]))
@example(24, 1, 128, 0.07, 1, 300)
@example(8, 1, 128, 0.2578, 1, 300)
@example(12, 1, 32, 7.28, 2, 50304)
@example(1, 1, 16, 250.0, 4, 300)
def test_the_decoder_is_within_5_percent_of_any_size(num_layers, num_heads, head_width, factor, ffn_ratio, vocab_size):
    tokens = math.ceil(num_heads * head_width * factor)
    assert miss(tokenformer(num_layers, num_heads, head_width, tokens, ffn_ratio * tokens, vocab_size)) < 0.05


@pytest.mark.parametrize(("tokens", "heads"), [(64, (4, 2)), (128, (5, 5)), (256, (6, 3))])
def test_an_equal_decoder_shares_keys_and_values_as_the_model_does_where_groups_divide_its_heads(tokens, heads):
    shape: dict[str, Any] = {"vocab_size": 1024, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2}
    model = tokenformer_config(num_layers=3, attention_tokens=tokens, ffn_tokens=4 * tokens, **shape)
    found = equal_size_decoder(model)
    assert (found.num_heads, found.num_kv_heads) == heads
