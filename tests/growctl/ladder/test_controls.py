"""The controls that growctl generates from a schedule."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder import checks
from growctl.ladder.checks import check_combinations, check_controls
from growctl.ladder.controls import control_name, plan_controls
from growctl.ladder.load import parse_schedule
from growctl.ladder.stage_plans import plan_stages, total_flops
from growctl.schedule.blocks import ControlBlock, Schedule
from growctl.schedule.errors import ScheduleError
from model.policy import GrowthPolicy

EVERY_KIND = ("tokenformer-scratch", "transformer-scratch", "best-scratch", "single-jump", "official-growth")


def ladder(
    *kinds: str, steps: tuple[int, ...] = (40, 60, 90), budgets: tuple[float, ...] = (1.0,), **blocks: Any
) -> Schedule:
    """A ladder with these controls, whose stages have 8, 16, 24, ... attention tokens."""
    stages = [
        {"name": f"s{i}", "attention_tokens": 8 * (i + 1), "ffn_tokens": 32 * (i + 1), "train_steps": num_steps}
        for i, num_steps in enumerate(steps)
    ]
    data = {
        "name": "ladder",
        "data": {"source": "text", "vocab_size": 300},
        "model": {"num_layers": 2, "hidden_size": 16, "num_heads": 2},
        "stages": stages,
        "training": {"sequence_length": 16, "batch_size": 8},
        "learning_rate": {"peak": 1e-3, "warmup_steps": 3},
        "controls": [{"kind": kind, "budgets": list(budgets)} for kind in kinds],
    }
    return parse_schedule(data | blocks, label="s.yaml", default_name="ladder")


def transformer_ladder(*kinds: str) -> Schedule:
    """A ladder of Transformers, stacked to twice and four times the depth."""
    stages = [{"name": f"d{2**i}", "num_layers": 2 * 2**i, "train_steps": 50} for i in range(3)]
    model = {"family": "transformer", "num_layers": 2, "hidden_size": 16, "num_heads": 2}
    return ladder(*kinds, model=model, stages=stages, growth={"depth": "copy-stack", "allow_jump": True})


@settings(max_examples=30)
@given(
    steps=st.lists(st.integers(30, 300), min_size=3, max_size=4).map(tuple),
    budget=st.sampled_from([1.0, 1.5, 2.0, 3.0]),
)
def test_every_control_costs_its_budget_within_one_step_per_stage(steps: tuple[int, ...], budget: float) -> None:
    schedule = ladder(*EVERY_KIND, steps=steps, budgets=(budget,))
    total = total_flops(plan_stages(schedule)).total
    controls = plan_controls(schedule)
    assert {control.kind for control in controls} == set(EVERY_KIND)
    for control in controls:
        plans = plan_stages(control.schedule)
        rounding = sum(plan.step_flops.total for plan in plans)
        assert abs(total_flops(plans).total - budget * total) <= 0.5 * rounding * (1 + 1e-9)
        assert check_combinations(control.schedule) == []


@pytest.mark.parametrize("tau", ["ramp", "anneal"])
def test_every_control_of_a_ladder_with_ramp_steps_is_valid(tau: str) -> None:
    kinds = get_args(ControlBlock.model_fields["kind"].annotation)
    stages = [stage.model_dump(exclude_none=True) for stage in ladder().stages]
    stages[-1]["ramp_steps"] = 6
    growth = {"tau": tau, "init": "zero-key" if tau == "anneal" else "matched"}
    schedule = ladder(*kinds, stages=stages, growth=growth, releases="all")
    assert {control.kind for control in plan_controls(schedule)} == set(kinds)
    assert check_controls(schedule) == []


def test_a_control_that_cannot_be_run_is_to_be_left_out_and_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "plan_controls", lambda schedule: [SimpleNamespace(schedule=schedule)])
    schedule = ladder("official-growth")
    stages = [stage.model_copy(update={"ramp_steps": 6}) for stage in schedule.stages]
    [line] = check_controls(schedule.model_copy(update={"stages": stages}))
    assert line == (
        "controls.0.kind = 'official-growth': cannot be run for this ladder, leave it out: stages.0.ramp_steps = 6: "
        "is for a stage that adds parameter tokens with growth.tau ramp or anneal; leave it out"
    )


def test_every_control_differs_from_its_ladder_only_in_model_stages_and_growth() -> None:
    schedule = ladder(*EVERY_KIND, budgets=(1.0, 2.0))
    size = plan_stages(schedule)[-1].num_parameters
    for control in plan_controls(schedule):
        for field in Schedule.model_fields.keys() - {"name", "model", "stages", "controls", "growth"}:
            assert getattr(control.schedule, field) == getattr(schedule, field)
        assert control.schedule.controls == []
        assert control.schedule.name == control.name
        if control.kind.endswith("former-scratch"):
            [plan] = plan_stages(control.schedule)
            assert (plan.name, plan.model.family) == ("s2", control.kind.removesuffix("-scratch"))
            assert plan.num_parameters == pytest.approx(size, rel=0.05 * (plan.model.family == "transformer"))


def test_best_scratch_is_every_size_of_the_ladder_alone() -> None:
    schedule = ladder("best-scratch", budgets=(1.0, 2.0))
    sizes = [plan.num_parameters for plan in plan_stages(schedule)]
    controls = plan_controls(schedule)
    assert [control.name for control in controls] == [
        *(f"ladder-control-best-scratch-s{i}" for i in range(3)),
        *(f"ladder-control-best-scratch-s{i}-2x" for i in range(3)),
    ]
    assert [plan_stages(control.schedule)[0].num_parameters for control in controls] == sizes * 2
    assert all(len(control.schedule.stages) == 1 for control in controls)


LADDER = ladder()


@pytest.mark.slow
@settings(max_examples=200)
@given(
    names=st.lists(st.from_regex(r"[ab](-(0?\.?5|1|2|1e-05)x?){0,2}", fullmatch=True), min_size=2, unique=True),
    budgets=st.lists(st.sampled_from([0.001, 0.5, 1.0, 2.0, 1000.0]), min_size=1, unique=True),
)
def test_every_control_has_a_unique_name(names: list[str], budgets: list[float]) -> None:
    named = [control_name(LADDER, "best-scratch", stage, budget) for stage in names for budget in budgets]
    assert len(set(named)) == len(named)


def test_a_stage_named_like_another_at_half_budget_gets_a_different_control_name() -> None:
    stages = [
        {"name": name, "attention_tokens": tokens, "ffn_tokens": tokens, "train_steps": 40}
        for name, tokens in (("a", 8), ("a-0.5x", 16))
    ]
    controls = plan_controls(ladder("best-scratch", stages=stages, budgets=(0.5, 1.0)))
    assert [control.name.removeprefix("ladder-control-best-scratch-") for control in controls] == [
        *("a-0.5x", "a-0.5x-0.5x", "a", "a-0.5x-1x"),
    ]


def test_best_scratch_skips_runs_that_another_control_trains() -> None:
    both = plan_controls(ladder("tokenformer-scratch", "best-scratch"))
    assert [control.name for control in both] == [
        "ladder-control-tokenformer-scratch",
        "ladder-control-best-scratch-s0",
        "ladder-control-best-scratch-s1",
    ]


def test_a_single_jump_trains_the_first_stage_and_then_the_last_size() -> None:
    schedule = ladder("single-jump")
    (control,) = plan_controls(schedule)
    first, last = plan_stages(control.schedule)
    ladder_plans = plan_stages(schedule)
    assert first.model == ladder_plans[0].model
    assert first.num_steps == ladder_plans[0].num_steps
    assert last.num_parameters == ladder_plans[-1].num_parameters
    assert last.growth.attention_tokens == (16, 16)
    assert last.num_steps > ladder_plans[-1].num_steps
    assert control.schedule.growth == schedule.growth


@settings(max_examples=30)
@given(
    growth=st.fixed_dictionaries(
        {},
        optional={
            "ramp": st.just(0.1),
            "lr_scale": st.just([1.0, 0.5]),
            "weight_decay": st.just([0.2, 0.0]),
            "rewarmup": st.just({"steps": 5, "of": "new"}),
            "old_tokens": st.sampled_from(["freeze", {"freeze_for": 4}]),
            "moments": st.just("reset"),
        },
    )
)
def test_official_growth_differs_from_its_ladder_only_in_the_growth_policy(growth: dict[str, Any]) -> None:
    schedule = ladder("official-growth", growth=growth)
    (control,) = plan_controls(schedule)
    ladders, its = flattened(schedule.model_dump()), flattened(control.schedule.model_dump())
    differing = {key for key in ladders.keys() | its.keys() if ladders.get(key) != its.get(key)}
    policy = {"growth.preset", "growth.init", "growth.tau", "growth.moments", "growth.allow_jump"}
    assert differing - {"name", "controls"} == policy - ({"growth.moments"} if "moments" in growth else set())
    assert control.schedule.growth.policy() == GrowthPolicy.of("official")


def test_official_growth_of_copies_adds_no_noise() -> None:
    growth = {"init": "copy", "tau": "recompute", "copy_noise": 0.5, "allow_jump": True}
    stages = [{"name": f"s{n}", "attention_tokens": 8 * n, "ffn_tokens": 16 * n, "train_steps": 30} for n in (1, 2, 4)]
    (control,) = plan_controls(ladder("official-growth", growth=growth, stages=stages))
    assert control.schedule.growth.policy() == GrowthPolicy.of("official")
    assert check_combinations(control.schedule) == []


def flattened(value: Any, path: str = "") -> dict[str, Any]:
    """Every value of nested blocks and of the list of stages, by its dotted path."""
    if isinstance(value, list) and path != "stages":
        return {path: value}
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if entries is None:
        return {path: value}
    return {
        key: leaf for name, below in entries for key, leaf in flattened(below, f"{path}.{name}".lstrip(".")).items()
    }


def test_controls_of_a_ladder_ended_by_a_slope_use_its_actual_steps() -> None:
    slope = {"when": "slope", "slope": 1e-9}
    rate = {"peak": 1e-3, "decay": 0.3}
    schedule = ladder("single-jump", "official-growth", growth=slope, learning_rate=rate, evaluation={"every": 5})
    jump, official = plan_controls(schedule, steps_done=[20, 30])
    assert plan_stages(jump.schedule)[0].num_steps == 20
    assert [plan.num_steps for plan in plan_stages(official.schedule)] == [20, 30, 90]
    assert {jump.schedule.growth.when, official.schedule.growth.when} == {"fixed"}


def test_controls_run_on_the_machines_of_their_ladders_stages() -> None:
    schedule = ladder(*EVERY_KIND, launch={"nodes": [1, 2, 4]})
    nodes = {
        control.name.removeprefix("ladder-control-"): control.schedule.launch.nodes
        for control in plan_controls(schedule)
    }
    assert nodes == {
        "tokenformer-scratch": [4],
        "transformer-scratch": [4],
        "best-scratch-s0": [1],
        "best-scratch-s1": [2],
        "single-jump": [1, 4],
        "official-growth": [1, 2, 4],
    }


def test_a_transformers_controls_have_its_own_sizes() -> None:
    schedule = transformer_ladder("transformer-scratch", "best-scratch", "single-jump")
    depths = {
        control.name.removeprefix("ladder-control-"): [plan.model.num_layers for plan in plan_stages(control.schedule)]
        for control in plan_controls(schedule)
    }
    assert depths == {
        "transformer-scratch": [8],
        "best-scratch-d1": [2],
        "best-scratch-d2": [4],
        "single-jump": [2, 8],
    }
    assert all(check_combinations(control.schedule) == [] for control in plan_controls(schedule))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ladder("single-jump", steps=(9, 9)), "kind = 'single-jump': needs three stages or more"),
        (lambda: ladder("official-growth", steps=(9,)), "kind = 'official-growth': needs a tokenformer that grows"),
        (lambda: ladder("official-growth", growth={"preset": "official"}), "'official-growth': needs"),
        (lambda: transformer_ladder("official-growth"), "'official-growth': needs a tokenformer"),
        (lambda: ladder("best-scratch", "best-scratch"), "'best-scratch': is already in the list"),
    ],
)
def test_a_senseless_control_is_rejected(make: Any, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        make()
    assert message in str(caught.value)


def test_a_single_jump_whose_first_stage_takes_the_whole_budget_is_rejected() -> None:
    [line] = check_controls(ladder("single-jump", budgets=(0.1,)))
    assert line.endswith("the stages before the last take the whole budget; give it a larger one")


def test_scratch_of_each_size_trains_every_finished_model_alone_at_that_models_own_cost() -> None:
    schedule = ladder("scratch-of-each-size", budgets=(0.5, 1.0), releases="all")
    stages = plan_stages(schedule)
    costs = [total_flops(stages[: i + 1]).total for i in range(3)]
    costs = [cost + stage.step_flops.total * steps for cost, stage, steps in zip(costs, stages, (4, 6, 0), strict=True)]
    controls = plan_controls(schedule)
    assert [control.name for control in controls] == [
        *(f"ladder-control-scratch-of-each-size-s{i}-0.5x" for i in range(3)),
        *(f"ladder-control-scratch-of-each-size-s{i}" for i in range(3)),
    ]
    for control, cost in zip(controls, [0.5 * cost for cost in costs] + costs, strict=True):
        [plan] = plan_stages(control.schedule)
        assert plan.num_parameters == stages[int(plan.name[1:])].num_parameters
        assert abs(plan.flops.total - cost) <= 0.5 * plan.step_flops.total
        rate = plan.learning_rate
        assert (rate.warmup_steps, rate.total_steps) == (3, plan.num_steps)
        assert rate.decay_steps == round(0.2 * plan.num_steps), "its own full decay"


def test_scratch_of_each_size_leaves_the_last_size_to_a_control_that_trains_it_already() -> None:
    for twin in ("tokenformer-scratch", "best-scratch"):
        schedule = ladder("scratch-of-each-size", twin, budgets=(1.0,), releases="all")
        names = [control.name for control in plan_controls(schedule) if control.kind == "scratch-of-each-size"]
        assert names == [f"ladder-control-scratch-of-each-size-s{i}" for i in range(2)]


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ({}, "needs a ladder with finished models of two sizes or more; set releases to all"),
        (
            {"releases": "all", "learning_rate": {"peak": 1e-3, "decay": 0.0}},
            "needs learning_rate.decay above 0, so that controls decay",
        ),
    ],
)
def test_scratch_of_each_size_needs_finished_models_and_a_decay(blocks: dict[str, Any], reason: str) -> None:
    with pytest.raises(ScheduleError) as error:
        ladder("scratch-of-each-size", **blocks)
    assert str(error.value) == f"s.yaml: controls.0.kind = 'scratch-of-each-size': {reason}"


def test_a_ladder_whose_stages_decay_on_their_own_has_finished_models_without_releases() -> None:
    schedule = ladder("scratch-of-each-size", learning_rate={"peak": 1e-3, "shape": "cosine", "span": "stage"})
    assert len(plan_controls(schedule)) == 3
