"""The spec's values for each step: learning rates by generation, ramps, annealing, and the stage's end."""

import math
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from model.config import TransformerConfig
from model.initialization import build_model
from model.parameter_groups import parameter_groups
from model.parameter_names import generation_of
from model.policy import GrowthPolicy, anneal_config, grow_config, ramp_config
from stages.checkpoint.lineage import TrainingRecord
from stages.spec import GenerationRule, LearningRate, SlopeTrigger, TrainSpec, progress_at
from stages.train.anomaly_guard import Guard
from stages.train.worker import Worker
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec


def rate(**changes) -> LearningRate:
    values: dict[str, Any] = {"shape": "wsd", "peak": 1.0, "final": 0.0, "warmup_steps": 10, "decay_steps": 20}
    return LearningRate(**(values | {"total_steps": 100, "first_step": 0} | changes))


def test_both_shapes_warm_up_and_decay_to_one_step_above_the_end():
    r = rate()
    assert [r.at(s) for s in (0, 4, 9, 90, 99, 100)] == [0.1, 0.5, 1.0, 0.5, 0.05, 0.0]
    assert {r.at(s) for s in range(9, 81)} == {1.0}
    r = rate(shape="cosine", final=0.1)
    assert [r.at(s) for s in (10, 55, 100)] == pytest.approx([1.0, 0.55, 0.1])


@given(st.sampled_from(["wsd", "cosine"]), st.integers(1, 99))
def test_a_span_cut_into_stages_has_the_rates_of_one_stage(shape, cut):
    whole = rate(shape=shape)
    second = rate(shape=shape, first_step=cut)
    assert [whole.at(s) for s in range(100)] == [whole.at(s) for s in range(cut)] + [
        second.at(s) for s in range(100 - cut)
    ]


@given(st.integers(1, 50))
def test_a_ramp_is_above_zero_at_once_and_one_right_after_its_steps(ramp_steps):
    ramps = [progress_at(step, ramp_steps) for step in range(ramp_steps + 3)]
    assert 0 < ramps[0] < 1
    assert ramps[ramp_steps - 1] < 1
    assert ramps[ramp_steps:] == [1.0, 1.0, 1.0]
    assert ramps == sorted(ramps)


# How the generations learn


def factors(steps: int = 12, **changes) -> list[float]:
    rule = GenerationRule(**changes)
    return [rule.factor(step) for step in range(steps)]


def test_a_generation_rests_then_warms_up_then_learns_at_its_own_scale():
    assert factors() == [1.0] * 12
    assert factors(lr_scale=0.25) == [0.25] * 12
    assert factors(lr_scale=0.0, warmup_steps=3) == [0.0] * 12
    assert factors(frozen_steps=3) == [0.0] * 3 + [1.0] * 9
    assert factors(warmup_steps=4) == [0.25, 0.5, 0.75] + [1.0] * 9
    assert factors(frozen_steps=2, warmup_steps=4, lr_scale=4.0) == [0, 0, 1, 2, 3, *[4.0] * 7]
    assert factors(frozen_steps=12, warmup_steps=2) == [0.0] * 12


@given(st.floats(0.001, 10), st.integers(0, 30), st.integers(0, 30))
def test_a_factor_is_zero_while_frozen_then_rises_to_the_scale_as_a_warm_up_does_to_the_peak(scale, frozen, warmup):
    found = factors(frozen + warmup + 3, lr_scale=scale, frozen_steps=frozen, warmup_steps=warmup)
    assert found[:frozen] == [0.0] * frozen
    warm_up = rate(peak=scale, warmup_steps=warmup, decay_steps=0)
    assert found[frozen:] == [warm_up.at(step) for step in range(warmup + 3)]
    assert found[frozen + max(0, warmup - 1) :] == pytest.approx([scale] * (4 if warmup else 3))
    assert found[frozen] > 0
    assert found == pytest.approx(sorted(found))


def grown_twice():
    once = grow_config(small_config(), attention_tokens=2, ffn_tokens=4)
    return grow_config(once, attention_tokens=3, ffn_tokens=4)


def test_rules_go_by_the_generations_number_and_those_without_one_learn_as_the_stage_does():
    first, second = GenerationRule(lr_scale=0.5), GenerationRule(frozen_steps=4)
    spec = small_spec(grown_twice(), generations=(first, second))
    assert [spec.rule(number) for number in range(4)] == [first, second, GenerationRule(), GenerationRule()]
    assert small_spec(grown_twice()).rule(0) == GenerationRule()


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        *((GenerationRule, {key: -1}) for key in ("lr_scale", "frozen_steps", "warmup_steps", "weight_decay")),
        *((SlopeTrigger, wrong) for wrong in ({"slope": 0.0}, {"slope": -1.0}, {"window": 1}, {"step_flops": 0.0})),
    ],
)
def test_rules_are_not_negative_and_a_trigger_needs_a_threshold_above_zero_and_two_points(kind, wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        kind(**({"slope": 1.0, "window": 2, "step_flops": 1.0} if kind is SlopeTrigger else {}) | wrong)


def test_every_generation_has_its_own_decay_on_matrices_and_the_optimizers_where_it_says_nothing():
    model = build_model(grown_twice(), device="meta")
    rules = (GenerationRule(weight_decay=0.0), GenerationRule(weight_decay=0.3))
    groups = parameter_groups(model, small_spec(grown_twice(), generations=rules).weight_decay)
    assert [(g["name"], g["generation"], g["weight_decay"]) for g in groups] == [
        ("generation-0-decay", 0, 0.0),
        ("generation-0-no-decay", 0, 0.0),
        ("generation-1-decay", 1, 0.3),
        ("generation-2-decay", 2, 0.1),
    ]
    decayed_vectors = parameter_groups(
        model, small_spec(grown_twice(), generations=(GenerationRule(weight_decay=0.7),)).weight_decay
    )
    assert [g["weight_decay"] for g in decayed_vectors] == [0.7, 0.0, 0.1, 0.1]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [[names.pop(id(parameter)) for parameter in group["params"]] for group in groups]
    assert names == {}
    for group, members in zip(groups, found, strict=True):
        assert {generation_of(name) for name in members} == {group["generation"]}
        assert members == [name for name, _ in model.named_parameters() if name in members]
    assert found[1] == ["final_norm.weight", "final_norm.bias"]


def test_a_spec_comes_back_from_its_json():
    rules = GenerationRule(lr_scale=0.1, weight_decay=0.0, frozen_steps=3), GenerationRule(warmup_steps=2)
    trigger = SlopeTrigger(slope=1e-18, window=5, step_flops=1e15)
    spec = small_spec(
        grown_twice(), generations=rules, trigger=trigger, ramp_steps=4, anneal_steps=0, left_out=((2, 3),)
    )
    assert TrainSpec.model_validate_json(spec.model_dump_json()) == spec
    assert TrainSpec.model_validate_json(small_spec(small_config()).model_dump_json()).anneal_steps is None


# Ramps and annealing


def test_a_stages_scales_begin_as_grown_and_end_at_the_formula():
    ramped = grown_twice()
    spec = small_spec(ramped, ramp_steps=3)
    assert spec.model_after(0) == ramped
    assert [spec.model_after(step) for step in (1, 2, 3)] == [ramp_config(ramped, g) for g in (0.25, 0.5, 0.75)]
    assert spec.model_after(4) == spec.model_after(9) == ramp_config(ramped, 1.0)
    assert small_spec(ramped, ramp_steps=0).model_after(1) == ramp_config(ramped, 1.0)


def test_tau_moves_only_where_annealing_is_asked_for():
    frozen = grow_config(
        small_config(), attention_tokens=4, ffn_tokens=4, policy=GrowthPolicy(init="zero-key", tau="frozen")
    )
    assert small_spec(frozen).model_after(3) == frozen
    spec = small_spec(frozen, anneal_steps=3)
    assert spec.model_after(0) == frozen
    assert [spec.model_after(step) for step in (1, 3)] == [anneal_config(frozen, share) for share in (0.25, 0.75)]
    assert spec.model_after(4).blocks[0].query.tau == math.sqrt(9)
    assert small_spec(frozen, anneal_steps=0).model_after(1) == anneal_config(frozen, 1.0)
    transformer = TransformerConfig(vocab_size=31, hidden_size=16, num_heads=1, num_layers=1, ffn_size=64)
    assert small_spec(transformer, anneal_steps=3, ramp_steps=3).model_after(2) == transformer


@pytest.mark.parametrize("first_step", [0, 2])  # also where an attempt goes on from within the ramp
def test_the_worker_sets_every_groups_rate_and_the_scales_before_it_computes(first_step):
    config = grown_twice()
    rate = LearningRate(shape="wsd", peak=0.5, final=0, warmup_steps=4, decay_steps=2, total_steps=10, first_step=0)
    rules = GenerationRule(lr_scale=0.5), GenerationRule(frozen_steps=3), GenerationRule(warmup_steps=2)
    spec = small_spec(config, learning_rate=rate, generations=rules, ramp_steps=2, micro_batch_size=2)
    model = build_model(config, seed=0)
    seen = []

    class Engine:
        module = model
        optimizer = SimpleNamespace(param_groups=parameter_groups(model, spec.weight_decay))

        def __call__(self, inputs, targets):
            seen.append((model.config, {g["name"]: g["lr"] for g in self.optimizer.param_groups}))
            return model(inputs, targets)

        backward = step = lambda self, *_: None

    worker: Any = object.__new__(Worker)
    worker.spec, worker.progress, worker.rank, worker.world_size = spec, None, 0, 1
    worker.device, worker.guard, worker.watchdog = torch.device("cpu"), Guard(spec), SimpleNamespace(beat=bool)
    ids = torch.zeros(2, 3, dtype=torch.int64)
    for step in range(first_step, 5):
        worker.train_step(Engine(), step, repeat((ids, ids)))
    assert len(seen) == 2 * (5 - first_step)
    for i, (scales, rates) in enumerate(seen):
        step = first_step + i // 2
        assert scales == ramp_config(config, min(1.0, (step + 1) / 3))
        at = min(0.5, 0.125 * (step + 1))
        assert rates == {
            "generation-0-decay": at / 2,
            "generation-0-no-decay": at / 2,
            "generation-1-decay": 0.0 if step < 3 else at,
            "generation-2-decay": at / 2 if step == 0 else at,
        }


# When a stage is over


def test_a_slope_is_the_fall_of_the_loss_per_flop_through_the_last_evaluations():
    trigger = SlopeTrigger(slope=1.0, window=3, step_flops=4.0)
    assert trigger.fitted([]) is None
    assert trigger.fitted([(10, 3.0), (20, 2.0)]) is None
    assert trigger.fitted([(10, 3.0), (20, 2.0), (30, 1.0)]) == pytest.approx(0.1 / 4)
    assert trigger.fitted([(10, 1.0), (20, 2.0), (30, 3.0)]) == pytest.approx(-0.1 / 4)
    assert trigger.fitted([(10, 5.0), (20, 5.0), (30, 5.0)]) == 0
    # only the last three count, at whatever distances
    assert trigger.fitted([(1, 99.0), (5, -7.0), (10, 4.0), (20, 2.0), (40, -2.0)]) == pytest.approx(0.2 / 4)
    # those before the first step that counts do not
    assert trigger.fitted([(9, 9.0), (10, 3.0), (20, 2.0)], settled_step=10) is None
    assert trigger.fitted([(9, 9.0), (10, 3.0), (20, 2.0), (30, 1.0)], settled_step=10) == pytest.approx(0.1 / 4)
    # least squares, not the ends alone (3 / 40): with x around 50/3 and y around 2, sums are -70 and 2600/3
    assert trigger.fitted([(0, 3.0), (10, 3.0), (40, 0.0)]) == pytest.approx(21 / 260 / 4)


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0.5, 12.0)), min_size=2, max_size=12),
    st.integers(2, 12),
    st.floats(1e6, 1e22),
)
def test_the_slope_is_numpys_line_of_best_fit(gaps_and_losses, window, step_flops):
    steps = numpy.cumsum([gap for gap, _ in gaps_and_losses])
    losses = [(int(step), loss) for step, (_, loss) in zip(steps, gaps_and_losses, strict=True)]
    found = SlopeTrigger(slope=1.0, window=window, step_flops=step_flops).fitted(losses)
    if len(losses) < window:
        assert found is None
        return
    x, y = numpy.array(losses[-window:]).T
    expected = -numpy.polyfit(x - x.mean(), y, 1)[0]
    assert found * step_flops == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_validation_loss_that_is_not_a_number_makes_no_slope():
    trigger = SlopeTrigger(slope=1.0, window=3, step_flops=4.0)
    for wrong in (math.nan, math.inf):
        assert trigger.fitted([(1, 2.0), (2, wrong), (3, 1.0)]) is None
        assert trigger.fitted([(1, wrong), (2, 3.0), (3, 2.0), (4, 1.0)]) == 0.25


def test_the_trigger_ends_a_stage_at_an_evaluation_whose_slope_is_below_the_threshold():
    worker: Any = object.__new__(Worker)
    records: list[Any] = []
    worker.record = lambda event, step, **values: records.append((event, step, values))
    worker.spec = small_spec(small_config(), trigger=SlopeTrigger(slope=0.05, window=2, step_flops=2.0))
    worker.evaluated = TrainingRecord()
    assert not worker.flat_enough(0)
    worker.evaluated = TrainingRecord(losses=[(10, 5.0)])
    assert not worker.flat_enough(10)
    worker.evaluated.losses.append((20, 3.0))  # 0.1 nats per FLOP
    assert not worker.flat_enough(20)
    worker.evaluated.losses.append((30, 2.5))  # 0.025
    assert not worker.flat_enough(31)  # no evaluation of this step
    assert worker.flat_enough(30)
    worker.evaluated.losses.append((40, 2.6))  # rises
    assert worker.flat_enough(40)
    assert [(event, step, values["fired"]) for event, step, values in records] == [
        ("trigger", 10, False), ("trigger", 20, False), ("trigger", 30, True), ("trigger", 40, True)
    ]  # fmt: skip
    assert records[0][2] == {"slope": None, "threshold": 0.05, "fired": False}
    assert records[2][2]["slope"] == pytest.approx(0.025)
    worker.spec = small_spec(small_config())
    assert not worker.flat_enough(40)
    assert len(records) == 4
    worker.spec = small_spec(small_config(), trigger=SlopeTrigger(slope=0.05, window=2, step_flops=2.0), ramp_steps=25)
    worker.evaluated = TrainingRecord(losses=[(20, 5.0), (30, 5.0)])
    assert not worker.flat_enough(30), "only one loss is from after the ramp"
    worker.evaluated.losses.append((40, 5.0))
    assert worker.flat_enough(40)
