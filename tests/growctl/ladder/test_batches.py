"""Ladders whose stages have other batches and contexts: plans, controls, conditions, specs, and places in the data."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.conditions import comparison_conditions
from growctl.ladder.controls import plan_controls
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_run, plan_stages, stage_positions
from growctl.launch.resolve import uneven_batch
from growctl.schedule.blocks import Schedule, StageBatch
from growctl.schedule.errors import ScheduleError
from model.flops import forward_flops_per_token, training_flops_per_token
from stages.data.samples import TrainingSamples
from tests.growctl.ladder import spec_of
from tests.growctl.ladders import ladder
from tests.growctl.schedules import changed, parse
from tests.stages.data.test_dataset import write_dataset

SHORT: tuple[dict[str, Any], ...] = ({"sequence_length": 4, "batch_size": 8}, {"sequence_length": 8}, {})
"""Of training's 8 sequences of 16 tokens: a quarter of the tokens, then all of them in shorter sequences."""
SMALL: dict[str, Any] = {"attention_tokens": 4, "ffn_tokens": 8}


def changing(*changes: dict[str, Any], **blocks: Any) -> Schedule:
    plain = ladder((5, 6, 20)).model_dump(mode="json")["stages"]
    stages = [stage | change for stage, change in zip(plain, changes or SHORT, strict=True)]
    return ladder(stages=stages, **blocks)


def of_sizes(*stages: dict[str, Any], **blocks: Any) -> Schedule:
    return ladder(stages=[{"name": f"s{i}", "train_steps": 10} | stage for i, stage in enumerate(stages)], **blocks)


@pytest.mark.parametrize(
    ("changes", "batches", "longest"),
    [
        ({}, [(8, 16), (8, 16)], 16),
        ({"stages.1.sequence_length": 32, "stages.1.batch_size": 3}, [(8, 16), (3, 32)], 32),
        ({"stages.0.sequence_length": 4}, [(32, 4), (8, 16)], 16),
    ],
)
def test_a_stage_has_trainings_batch_or_at_another_context_its_tokens_per_step(changes, batches, longest):
    schedule = parse(changed({"launch.micro_batch_size": "auto"} | changes))
    assert [schedule.batch_of(index) for index in range(2)] == batches
    assert schedule.longest_context == longest


def test_tokens_flops_and_position_are_those_of_each_stages_own_batch_and_context() -> None:
    plans = plan_stages(changing())
    assert [plan.budget_tokens for plan in plans] == [5 * 32, 6 * 128, 20 * 128]
    assert [(plan.first_token, plan.first_sample) for plan in plans] == [(0, 0), (160, 20), (160 + 768, 58)]
    for plan in plans:
        own = plan.batch.sequence_length
        assert plan.flops.total == pytest.approx(training_flops_per_token(plan.model, own).total * plan.budget_tokens)
        assert plan.evaluation_flops_per_token == forward_flops_per_token(plan.model, 16).total
        own_flops = None if own == 16 else forward_flops_per_token(plan.model, own).total
        assert plan.own_evaluation_flops_per_token == own_flops
    plans = plan_stages(changing({"sequence_length": 4, "batch_size": 1}, {"batch_size": 1}, {"sequence_length": 8}))
    assert [plan.first_token for plan in plans] == [0, 32, 128], "a longer context begins at its next whole sequence"


def test_workers_read_windows_of_the_longest_context_and_are_judged_at_the_last() -> None:
    schedule = changing({"sequence_length": 4}, {"sequence_length": 32}, {}, launch={"devices": 1})
    specs = [spec_of(schedule, index) for index in range(3)]
    assert [each.sequence_length for each in specs] == [4, 32, 16]
    assert {(each.window_length, each.evaluation_length) for each in specs} == {(32, 16)}
    limited = specs[0].model_copy(update={"evaluation_sequences": 5})
    assert limited.own_evaluation_sequences == 20, "about as many tokens"
    planned = [(stage.micro_batch_size, stage.sequence_length) for stage in make_plan(schedule).stages]
    assert planned == [(32, 4), (4, 32), (8, 16)]


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("sqrt", 0.5), ("linear", 0.25)])
def test_the_learning_rate_follows_the_batch_as_asked(scaling: str, factor: float) -> None:
    rate = {"peak": 1e-3, "warmup_steps": 2}
    plain, scaled = (
        plan_run(changing(learning_rate=rate | {"batch_scaling": each}, releases="all")) for each in ("none", scaling)
    )
    assert [part.learning_rate.scale for part in scaled] == [factor, factor, 1.0, 1.0, 1.0]
    for part, other in zip(scaled, plain, strict=True):
        for step in range(part.num_steps):
            assert part.learning_rate.at(step) == part.learning_rate.scale * other.learning_rate.at(step)


def test_a_control_from_scratch_trains_at_the_last_stages_batch_and_context() -> None:
    kinds = ("tokenformer-scratch", "best-scratch", "single-jump", "official-growth")
    grown = {"single-jump": [(8, 4), (8, 16)], "official-growth": [(8, 4), (16, 8), (8, 16)]}
    controls = plan_controls(changing(controls=[{"kind": kind} for kind in kinds]))
    assert {control.kind for control in controls} == set(kinds)
    for control in controls:
        batches = [plan.batch for plan in plan_stages(control.schedule)]
        assert batches == grown.get(control.kind, [(8, 16)]), control.name


def test_the_batches_and_contexts_of_the_stages_are_conditions_however_they_are_set() -> None:
    conditions = comparison_conditions(changing())
    assert [conditions[f"stages.{index}.sequence_length"] for index in range(3)] == [4, 8, 16]
    assert [conditions[f"stages.{index}.batch_size"] for index in range(3)] == [8, 16, 8]
    of_training = [{"batch_size": size, "sequence_length": 16} for size in (4, 16)]
    small, large = (comparison_conditions(changing(*[{"batch_size": 4}] * 3, training=each)) for each in of_training)
    assert small == large != comparison_conditions(changing({"batch_size": 8}, {}, {}, training=of_training[0]))


def test_a_stage_of_the_same_size_trains_on_without_a_growth() -> None:
    growth = {"ramp": 0.3, "lr_scale": [1.0, 0.5], "rewarmup": {"steps": 3}}
    others = {"batch_size": 4}, {"ffn_tokens": 16}, {"sequence_length": 8}
    schedule = of_sizes(SMALL, *others, growth=growth, releases="all")
    plans = plan_stages(schedule)
    found = [
        (plan.is_grown, plan.has_initial, plan.ramp_steps, len(plan.generations), plan.model.newest_generation)
        for plan in plans
    ]
    assert found == [(False, False, 0, 0, 0), (False, True, 0, 0, 0), (True, True, 3, 2, 1), (False, True, 0, 0, 1)]
    assert (plans[0].model, plans[2].model) == (plans[1].model, plans[3].model)
    assert not any(part.is_grown for part in plan_run(schedule) if part.branch_of)


def test_controls_train_each_size_once_and_a_single_jump_replaces_two_growths_or_more() -> None:
    two = ({"batch_size": 4}, {"ffn_tokens": 16}, {"sequence_length": 8}, {"ffn_tokens": 24})
    kinds = ("best-scratch", "single-jump", "official-growth")
    controls = plan_controls(of_sizes(SMALL, *two, controls=[{"kind": kind} for kind in kinds]))
    assert [control.name.removeprefix("s-control-") for control in controls] == [
        *("best-scratch-s1", "best-scratch-s3", "best-scratch-s4", "single-jump", "official-growth")
    ]
    *_, jump, official = (plan_stages(control.schedule) for control in controls)
    assert [plan.is_grown for plan in jump] == [False, True]
    assert [plan.is_grown for plan in official] == [False, False, True, False, True]
    for kind, stages in (("single-jump", two[:3]), ("official-growth", two[:1])):
        with pytest.raises(ScheduleError, match=rf"controls\.0\.kind = '{kind}': needs"):
            of_sizes(SMALL, *stages, controls=[{"kind": kind}])


def test_a_batch_that_the_ranks_cannot_share_names_its_stage_and_an_unused_one_does_not_count() -> None:
    longer = changed({"stages.1.sequence_length": 64, "launch.micro_batch_size": "auto"})
    assert str(uneven_batch(parse(longer), 4)).startswith("stages.1.sequence_length: makes 2 sequences")
    others = {"stages.0.batch_size": 12, "stages.1.batch_size": 24, "launch.micro_batch_size": "auto"}
    assert uneven_batch(parse(changed(others)), 12) is None


WINDOW, NUM_TOKENS = 12, 1000
OF_AN_EPOCH = NUM_TOKENS // WINDOW * WINDOW
LADDERS = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=5
)
"""(context, batch, steps) of the stages."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset") / "one", [700, 300], [100])


@settings(max_examples=30)
@given(LADDERS, st.integers(0, 2**63))
def test_no_token_is_an_input_twice_in_an_epoch(dataset: Path, ladder: list[tuple[int, int, int]], seed: int) -> None:
    batches = [StageBatch(batch, context) for context, batch, _ in ladder]
    positions, inputs, skipped, end = stage_positions(batches, [steps for *_, steps in ladder]), [], 0, 0
    for (context, batch, steps), position in zip(ladder, positions, strict=True):
        assert position % context == 0
        assert 0 <= position - end < context, "less than a sequence is skipped"
        skipped, end = skipped + position - end, position + batch * steps * context
        samples, first = TrainingSamples(dataset, context, seed, window_length=WINDOW), position // context
        inputs += samples.batch(first, batch * steps)[:, :-1].flatten().tolist()
    of_first_epoch = inputs[: OF_AN_EPOCH - skipped]
    assert len(set(of_first_epoch)) == len(of_first_epoch)
    assert max(Counter(inputs).values()) <= math.ceil(end / OF_AN_EPOCH) + 1
