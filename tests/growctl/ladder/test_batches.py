"""Ladders whose stages have other batches and contexts: their plans, controls, conditions and worker specs."""

from typing import Any

import pytest

from growctl.ladder.conditions import comparison_conditions
from growctl.ladder.controls import plan_controls
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_run, plan_stages, worker_spec
from growctl.launch.resolve import uneven_batch
from growctl.schedule.blocks import Schedule, StageBatch, longest_context, stage_batch
from growctl.schedule.errors import ScheduleError
from model.flops import forward_flops_per_token, training_flops_per_token
from stages.spec import TrainSpec
from tests.growctl.ladders import ladder
from tests.growctl.schedules import changed, parse

SHORT: tuple[dict[str, Any], ...] = ({"sequence_length": 4, "batch_size": 8}, {"sequence_length": 8}, {})
"""Of training's 8 sequences of 16 tokens: a quarter of the tokens, then all of them in shorter sequences."""


def changing(*changes: dict[str, Any], steps: tuple[int, ...] = (5, 6, 7), **blocks: Any) -> Schedule:
    plain = ladder(steps).model_dump(mode="json")["stages"]
    stages = [stage | change for stage, change in zip(plain, changes or SHORT, strict=True)]
    return ladder(steps, stages=stages, **blocks)


def spec(schedule: Schedule, index: int) -> TrainSpec:
    unused = {"directory": "", "dataset": "", "initial": None, "resume": None}
    plan = plan_stages(schedule)[index]
    return worker_spec(schedule, plan, attempt=1, samples_seen=0, micro_batch_size=1, launched_at=0.0, **unused)


def test_tokens_flops_and_position_are_those_of_each_stages_own_batch_and_context() -> None:
    plans = plan_stages(changing())
    assert [plan.batch for plan in plans] == [(8, 4), (16, 8), (8, 16)]
    assert [plan.budget_tokens for plan in plans] == [5 * 32, 6 * 128, 7 * 128]
    assert [plan.first_token for plan in plans] == [0, 160, 160 + 768]
    assert [plan.first_sample for plan in plans] == [0, 20, 58]
    for plan in plans:
        own = plan.batch.sequence_length
        assert plan.flops.total == pytest.approx(training_flops_per_token(plan.model, own).total * plan.budget_tokens)
        assert plan.evaluation_flops_per_token == forward_flops_per_token(plan.model, 16).total
        own_flops = None if own == 16 else forward_flops_per_token(plan.model, own).total
        assert plan.own_evaluation_flops_per_token == own_flops


def test_a_stage_with_a_longer_context_begins_at_its_next_whole_sequence() -> None:
    plans = plan_stages(changing({"sequence_length": 4, "batch_size": 1}, {"batch_size": 1}, {"sequence_length": 8}))
    assert [(plan.first_token, plan.first_sample) for plan in plans] == [(0, 0), (32, 2), (128, 16)]


def test_workers_read_windows_of_the_longest_context_and_are_judged_at_the_last() -> None:
    schedule = changing({"sequence_length": 4}, {"sequence_length": 32}, {})
    specs = [spec(schedule, index) for index in range(3)]
    assert [(each.sequence_length, each.window_length, each.evaluation_length) for each in specs] == [
        (4, 32, 16), (32, 32, 16), (16, 32, 16)
    ]  # fmt: skip
    limited = specs[0].model_copy(update={"evaluation_sequences": 5})
    assert limited.own_evaluation_sequences == 20, "about as many tokens"


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("sqrt", 0.5), ("linear", 0.25)])
def test_the_learning_rate_follows_the_batch_as_asked(scaling: str, factor: float) -> None:
    rate = {"peak": 1e-3, "warmup_steps": 2, "batch_scaling": scaling}
    schedule = changing(learning_rate=rate, releases="all", steps=(5, 6, 20))
    parts = plan_run(schedule)
    plain = plan_run(changing(learning_rate=rate | {"batch_scaling": "none"}, releases="all", steps=(5, 6, 20)))
    assert [part.learning_rate.scale for part in parts] == [factor, factor, 1.0, 1.0, 1.0]
    for part, other in zip(parts, plain, strict=True):
        rates = [part.learning_rate.at(step) for step in range(part.num_steps)]
        assert rates == [part.learning_rate.scale * other.learning_rate.at(step) for step in range(part.num_steps)]


def test_a_control_from_scratch_trains_at_the_last_stages_batch_and_context() -> None:
    kinds = ("tokenformer-scratch", "best-scratch", "single-jump", "official-growth")
    schedule = changing(controls=[{"kind": kind} for kind in kinds])
    conditions = comparison_conditions(schedule)
    assert [conditions[f"stages.{index}.sequence_length"] for index in range(3)] == [4, 8, 16]
    assert [conditions[f"stages.{index}.batch_size"] for index in range(3)] == [8, 16, 8]
    for control in plan_controls(schedule):
        batches = [plan.batch for plan in plan_stages(control.schedule)]
        jumps = {"single-jump": [(8, 4), (8, 16)], "official-growth": [(8, 4), (16, 8), (8, 16)]}
        assert batches == jumps.get(control.kind, [(8, 16)]), control.name


def test_stages_of_other_batches_are_other_conditions() -> None:
    own = [{"batch_size": 4}] * 3
    small, large = (
        comparison_conditions(changing(*own, training={"batch_size": size, "sequence_length": 16})) for size in (4, 16)
    )
    assert small == large, "every stage sets its own"
    assert small != comparison_conditions(
        changing({"batch_size": 8}, *own[1:], training={"batch_size": 4, "sequence_length": 16})
    )


def test_the_plan_has_memory_and_micro_batches_of_each_context() -> None:
    hardware = {"flops": "1T", "memory": "1GB"}
    schedule = changing({"sequence_length": 4}, {}, {}, launch={"devices": 1, "hardware": hardware})
    first, second, _ = make_plan(schedule).trunk
    assert (first.micro_batch_size, second.micro_batch_size) == (32, 8)
    assert [stage.sequence_length for stage in make_plan(schedule).stages] == [4, 16, 16]


SMALL: dict[str, Any] = {"attention_tokens": 4, "ffn_tokens": 8}


def of_sizes(*stages: dict[str, Any], **blocks: Any) -> Schedule:
    entries = [{"name": f"s{i}", "train_steps": 10} | stage for i, stage in enumerate(stages)]
    return ladder(stages=entries, **blocks)


def test_a_stage_of_the_same_size_trains_on_without_a_growth() -> None:
    schedule = of_sizes(
        SMALL, {"batch_size": 4}, {"ffn_tokens": 16}, {"sequence_length": 8},
        growth={"ramp": 0.3, "lr_scale": [1.0, 0.5], "rewarmup": {"steps": 3}}, releases="all",
    )  # fmt: skip
    plans = plan_stages(schedule)
    assert [plan.is_grown for plan in plans] == [False, False, True, False]
    assert [plan.ramp_steps for plan in plans] == [0, 0, 3, 0]
    assert [len(plan.generations) for plan in plans] == [0, 0, 2, 0]
    assert [plan.model.newest_generation for plan in plans] == [0, 0, 1, 1]
    assert plans[0].model == plans[1].model
    assert plans[2].model == plans[3].model
    assert not any(part.is_grown for part in plan_run(schedule) if part.branch_of)
    assert all(plan.has_initial for plan in plans[1:])


def test_controls_train_each_size_once_and_a_single_jump_replaces_two_growths_or_more() -> None:
    two = ({"batch_size": 4}, {"ffn_tokens": 16}, {"sequence_length": 8}, {"ffn_tokens": 24})
    kinds = ("best-scratch", "single-jump", "official-growth")
    controls = plan_controls(of_sizes(SMALL, *two, controls=[{"kind": kind} for kind in kinds]))
    assert [control.name.removeprefix("s-control-") for control in controls] == [
        "best-scratch-s1", "best-scratch-s3", "best-scratch-s4", "single-jump", "official-growth"
    ]  # fmt: skip
    *_, jump, official = (plan_stages(control.schedule) for control in controls)
    assert [plan.is_grown for plan in jump] == [False, True]
    assert [plan.is_grown for plan in official] == [False, False, True, False, True]
    with pytest.raises(ScheduleError, match="'single-jump': needs three stages or more, with two growths"):
        of_sizes(SMALL, *two[:3], controls=[{"kind": "single-jump"}])
    with pytest.raises(ScheduleError, match="'official-growth': needs a tokenformer that grows"):
        of_sizes(SMALL, two[0], controls=[{"kind": "official-growth"}])


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ({"batch_size": 16}, None),
        ({"sequence_length": 8}, None),
        ({"mixture": {"a": 1, "b": 3}}, None),
        ({"batch_size": 16, "attention_tokens": 4}, None),
        ({"batch_size": 8, "sequence_length": 16}, "stages.1: has the size, batch, context and mixture of the stage"),
        ({"mixture": {"a": 1, "b": 1}}, "stages.1: has the size, batch, context and mixture of the stage"),
        (
            {"batch_size": 16, "ramp_steps": 2},
            "stages.1.ramp_steps = 2: is for a stage that adds parameter tokens",
        ),
    ],
)
@pytest.mark.parametrize("family", ["tokenformer", "transformer"])
def test_something_must_differ_between_two_stages_of_the_same_size(
    family: str, second: dict[str, Any], problem: str | None
) -> None:
    first = SMALL if family == "tokenformer" else {}
    if family == "transformer":
        second = {key: value for key, value in second.items() if key != "attention_tokens"}
    mixture = [{"name": name, "source": __file__, "weight": 1} for name in "ab"]
    blocks = {
        "model": {"family": family, "num_layers": 2, "hidden_size": 32, "num_heads": 2},
        "data": {"vocab_size": 300, "mixture": mixture},
    }
    if problem is None:
        assert [plan.is_grown for plan in plan_stages(of_sizes(first, second, **blocks))] == [False, False]
        return
    with pytest.raises(ScheduleError) as caught:
        of_sizes(first, second, **blocks)
    assert problem in str(caught.value)


def batches(**changes: Any) -> list[StageBatch]:
    schedule = parse(changed({"launch.micro_batch_size": "auto"} | changes))
    return [stage_batch(schedule, index) for index in range(2)]


def test_a_stage_has_the_batch_and_context_of_training_unless_it_says_otherwise() -> None:
    assert batches() == [StageBatch(8, 16), StageBatch(8, 16)]
    assert batches(**{"stages.0.batch_size": 2}) == [StageBatch(2, 16), StageBatch(8, 16)]
    assert batches(**{"stages.1.sequence_length": 32, "stages.1.batch_size": 3})[1] == StageBatch(3, 32)


def test_a_stage_that_sets_only_its_context_keeps_the_tokens_of_a_step() -> None:
    assert batches(**{"stages.0.sequence_length": 4})[0] == StageBatch(32, 4)
    assert batches(**{"stages.1.sequence_length": 64})[1] == StageBatch(2, 64)


def test_the_longest_context_may_be_that_of_any_stage() -> None:
    assert longest_context(parse(changed({"stages.0.sequence_length": 64, "launch.micro_batch_size": 1}))) == 64


@pytest.mark.parametrize(
    ("key", "value", "size", "name"),
    [("stages.0.batch_size", 10, 10, "small"), ("stages.1.sequence_length", 64, 2, "large")],
)
def test_a_batch_that_the_ranks_cannot_share_names_its_stage(key: str, value: int, size: int, name: str) -> None:
    schedule = parse(changed({"launch.micro_batch_size": "auto", key: value}))
    said = f"makes {size} sequences of a step, which must be a multiple of 4, for 4 devices of stage {name}"
    assert uneven_batch(schedule, 4) == f"{key}: {said}"


def test_a_batch_of_training_that_no_stage_has_needs_no_ranks() -> None:
    own = {"stages.0.batch_size": 12, "stages.1.batch_size": 24, "launch.micro_batch_size": "auto"}
    assert uneven_batch(parse(changed(own)), 12) is None
