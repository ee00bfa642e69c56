"""The spec's values for each step: learning rates by generation, ramps, annealing, and the stage's end."""

import math
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config_growth import anneal_config, grow_config, ramp_config
from model.decoder_config import decoder_config
from model.initialization import build_model
from model.parameter_groups import parameter_groups
from model.parameter_names import generation_of
from model.policy import GrowthPolicy
from stages.checkpoint.lineage import TrainingRecord
from stages.spec import GenerationRule, LearningRate, SlopeTrigger
from stages.train.anomaly_guard import Guard
from stages.train.worker import Worker
from tests.stages.checkpoints import small_config
from tests.stages.specs import small_spec


def rate(**changes) -> LearningRate:
    values: dict[str, Any] = {"shape": "wsd", "peak": 1.0, "final": 0.0, "warmup_steps": 10, "decay_steps": 20}
    return LearningRate(**(values | {"total_steps": 100, "first_step": 0} | changes))


def test_both_shapes_warm_up_and_decay_to_one_step_above_the_end():
    wsd, cosine = rate(), rate(shape="cosine", final=0.1)
    assert [wsd.at(step) for step in (0, 4, 9, 90, 99, 100)] == [0.1, 0.5, 1.0, 0.5, 0.05, 0.0]
    assert {wsd.at(step) for step in range(9, 81)} == {1.0}
    assert [cosine.at(step) for step in (10, 55, 100)] == pytest.approx([1.0, 0.55, 0.1])


@pytest.mark.parametrize("shape", ["wsd", "cosine"])
@pytest.mark.parametrize("cut", [1, 7, 50, 93])
def test_a_span_cut_into_stages_has_the_rates_of_one_stage(shape, cut):
    whole, second = rate(shape=shape), rate(shape=shape, first_step=cut)
    assert [whole.at(step) for step in range(cut, 100)] == [second.at(step) for step in range(100 - cut)]


@settings(max_examples=30)
@given(st.floats(0.0, 10), st.integers(0, 30), st.integers(0, 30))
def test_a_generation_rests_then_warms_up_to_its_own_scale_as_the_stage_does_to_the_peak(scale, frozen, warmup):
    rule = GenerationRule(lr_scale=scale, frozen_steps=frozen, warmup_steps=warmup)
    warm_up = rate(peak=max(scale, 1e-9), warmup_steps=warmup, decay_steps=0)
    expected = [0.0] * frozen + [warm_up.at(step) for step in range(warmup + 3)]
    assert [rule.factor(step) for step in range(frozen + warmup + 3)] == pytest.approx(expected, abs=1e-8)


def grown_twice():
    once = grow_config(small_config(), attention_tokens=2, ffn_tokens=4)
    return grow_config(once, attention_tokens=3, ffn_tokens=4)


def test_every_generation_has_its_own_decay_on_matrices_and_the_optimizers_where_it_says_nothing():
    model = build_model(grown_twice(), device="meta")
    rules = (GenerationRule(weight_decay=0.7), GenerationRule(weight_decay=0.0))
    groups = parameter_groups(model, small_spec(grown_twice(), generations=rules).weight_decay)
    assert [(group["name"], group["generation"], group["weight_decay"]) for group in groups] == [
        ("generation-0-decay", 0, 0.7),
        ("generation-0-no-decay", 0, 0.0),
        ("generation-1-decay", 1, 0.0),
        ("generation-2-decay", 2, 0.1),
    ]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [[names[id(parameter)] for parameter in group["params"]] for group in groups]
    assert sorted(name for members in found for name in members) == sorted(names.values())
    for group, members in zip(groups, found, strict=True):
        assert {generation_of(name) for name in members} == {group["generation"]}
        assert members == [name for name in names.values() if name in members], "in the model's order"
    assert found[1] == ["final_norm.weight", "final_norm.bias"]


def test_muon_has_the_matrices_of_the_blocks_in_groups_of_their_own_and_only_matrices_decay():
    grown = grow_config(small_config(), attention_tokens=3, ffn_tokens=6)
    decoder = decoder_config(vocab_size=31, hidden_size=16, num_heads=1, num_layers=1, ffn_tokens=64)
    for config, generations in ((grown, 2), (decoder, 1)):
        groups = {group["name"]: group for group in parameter_groups(build_model(config, device="meta"), 0.1, "muon")}
        muon = [f"generation-{number}-muon" for number in range(generations)]
        assert list(groups) == ["generation-0-decay", muon[0], "generation-0-no-decay", *muon[1:]]
        assert [name for name, group in groups.items() if group["use_muon"]] == muon
        assert [tuple(p.shape) for p in groups["generation-0-decay"]["params"]] == [(31, 16)]  # the embedding
        assert all(p.ndim == 2 for name in muon for p in groups[name]["params"])
    for group in parameter_groups(build_model(decoder, device="meta"), 0.1):
        assert {p.ndim for p in group["params"]} == ({2} if group["weight_decay"] else {1})


def test_ramped_keys_begin_as_grown_and_tau_moves_only_where_annealing_is_asked_for():
    ramped, policy = grown_twice(), GrowthPolicy(init="zero-key", tau="frozen")
    frozen = grow_config(small_config(), attention_tokens=4, ffn_tokens=4, policy=policy)
    for config, moved, keys in ((ramped, ramp_config, "ramp_steps"), (frozen, anneal_config, "anneal_steps")):
        expected = [config, *(moved(config, share) for share in (0.25, 0.5, 0.75, 1.0, 1.0))]
        spec = small_spec(config, **{keys: 3})
        assert [spec.model_after(step) for step in range(6)] == expected
        assert small_spec(config, **{keys: 0}).model_after(1) == expected[4]
    assert anneal_config(frozen, 1.0).blocks[0].query.tau == math.sqrt(9)
    assert small_spec(frozen).model_after(3) == frozen
    decoder = decoder_config(vocab_size=31, hidden_size=16, num_heads=1, num_layers=1, ffn_tokens=64)
    assert small_spec(decoder, anneal_steps=3, ramp_steps=3).model_after(2) == decoder


@pytest.mark.parametrize("first_step", [0, 2])  # also where an attempt goes on from within the ramp
def test_the_worker_sets_every_groups_rate_and_the_scales_before_it_computes(first_step):
    config, seen = grown_twice(), []
    rules = GenerationRule(lr_scale=0.5), GenerationRule(frozen_steps=3)  # none for generation 2
    learning_rate = rate(peak=0.5, warmup_steps=4, decay_steps=2, total_steps=10)
    spec = small_spec(config, learning_rate=learning_rate, generations=rules, ramp_steps=2, micro_batch_size=2)
    model = build_model(config, seed=0)

    class Engine:
        module = model
        optimizer = SimpleNamespace(param_groups=parameter_groups(model, spec.weight_decay))

        def __call__(self, inputs, targets):
            seen.append((model.config, [group["lr"] for group in self.optimizer.param_groups]))
            return model(inputs, targets)

        backward = step = lambda self, *_: None

    worker: Any = object.__new__(Worker)
    worker.spec, worker.progress, worker.rank, worker.world_size = spec, None, 0, 1
    worker.device, worker.guard, worker.watchdog = torch.device("cpu"), Guard(spec), SimpleNamespace(beat=bool)
    ids, expected = torch.zeros(2, 3, dtype=torch.int64), []
    for step in range(first_step, 5):
        worker.train_step(Engine(), step, repeat((ids, ids)))
        at = min(0.5, 0.125 * (step + 1))
        rates = [at / 2, at / 2, 0.0 if step < 3 else at, at]
        expected += [(ramp_config(config, min(1.0, (step + 1) / 3)), rates)] * 2  # micro-batches
    assert seen == expected


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0.5, 12.0)), min_size=2, max_size=12),
    st.integers(2, 12),
    st.integers(0, 2),
    st.floats(1e6, 1e22),
)
def test_the_slope_is_numpys_line_of_best_fit_of_the_last_losses(gaps_and_losses, window, num_unsettled, step_flops):
    steps = numpy.cumsum([gap for gap, _ in gaps_and_losses]).tolist()
    losses = [(step, loss) for step, (_, loss) in zip(steps, gaps_and_losses, strict=True)]
    trigger = SlopeTrigger(slope=1.0, window=window, step_flops=step_flops)
    found = trigger.fitted(losses, settled_step=[0, *steps][num_unsettled])
    counted = losses[max(0, num_unsettled - 1) :]
    if len(counted) < window:
        assert found is None
        return
    x, y = numpy.array(counted[-window:]).T
    expected = -numpy.polyfit(x - x.mean(), y, 1)[0]
    assert found * step_flops == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_validation_loss_that_is_not_a_number_makes_no_slope(wrong):
    trigger = SlopeTrigger(slope=1.0, window=3, step_flops=4.0)
    assert trigger.fitted([(1, 2.0), (2, wrong), (3, 1.0)]) is None
    assert trigger.fitted([(1, wrong), (2, 3.0), (3, 2.0), (4, 1.0)]) == 0.25


@pytest.mark.parametrize(
    ("losses", "step", "slope", "fired"),
    [
        ([], 0, None, None),
        ([(10, 5.0), (20, 3.0)], 20, 0.1, False),
        ([(10, 5.0), (20, 3.0), (30, 2.5)], 31, None, None),  # no evaluation of this step
        ([(10, 5.0), (20, 3.0), (30, 2.5)], 30, 0.025, True),
        ([(2, 5.0), (30, 5.0)], 30, None, False),  # only one loss is from after the ramp
    ],
)
def test_the_trigger_ends_a_stage_at_an_evaluation_whose_slope_is_below_the_threshold(losses, step, slope, fired):
    worker: Any = object.__new__(Worker)
    records: list[Any] = []
    worker.record = lambda event, step, **values: records.append((event, step, values))
    worker.evaluated, trigger = TrainingRecord(losses=losses), SlopeTrigger(slope=0.05, window=2, step_flops=2.0)
    worker.spec = small_spec(small_config(), trigger=trigger, ramp_steps=5)
    assert worker.flat_enough(step) is bool(fired)
    expected = {"slope": slope and pytest.approx(slope), "threshold": 0.05, "fired": fired}
    assert records == ([] if fired is None else [("trigger", step, expected)])
    worker.spec = small_spec(small_config())
    assert not worker.flat_enough(step), "without a trigger"
