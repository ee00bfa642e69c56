"""Ladders that grow in depth: the models, sizes and plans of their stages, and their controls."""

from typing import Any

import pytest

from growctl.ladder.controls import plan_controls
from growctl.ladder.sizes import Growth, stage_models
from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.blocks import Schedule
from model.tokenformer_config import TokenformerConfig
from tests.growctl.ladder.test_mistakes import BASES
from tests.growctl.schedules import BASE, changed, parse

SMALL = {"attention_tokens": 4, "ffn_tokens": 8}
LARGE = {"attention_tokens": 6, "ffn_tokens": 12}


def deepening(*stages: dict[str, Any], num_layers: int = 2, **blocks: Any) -> Schedule:
    """A tokenformer of `num_layers` layers, and in each stage the keys given; 40 steps each."""
    entries = [{"name": f"s{i}", "train_steps": 40} | stage for i, stage in enumerate(stages)]
    model = {"num_layers": num_layers, "hidden_size": 32, "num_heads": 2}
    data = {name: BASE[name] for name in ("data", "training", "learning_rate")}
    return parse(data | {"model": model, "stages": entries} | blocks)


FROM_NOTHING: tuple[dict[str, Any], ...] = ({}, {"num_layers": 1} | SMALL, {"num_layers": 4} | LARGE)


def depths(schedule: Schedule) -> list[int]:
    return [plan.model.num_layers for plan in plan_stages(schedule)]


def test_a_stage_sets_the_depth_from_then_on_and_inherits_the_tokens_that_it_leaves_out() -> None:
    schedule = deepening(SMALL, {"num_layers": 4}, LARGE | {"num_layers": 4}, {"num_layers": 8, "ffn_tokens": 16})
    assert depths(schedule) == [2, 4, 4, 8]
    models = list(stage_models(schedule))
    sizes = [[(block.query.num_tokens, block.ffn.num_tokens) for block in each.final.blocks] for each in models]
    assert sizes == [[(4, 8)] * 2, [(4, 8)] * 4, [(6, 12)] * 4, [(6, 16)] * 8]
    deeper, larger = Growth((0, 0), (0, 0), new_layers=2), Growth((2,) * 4, (4,) * 4)
    assert [each.growth for each in models[:3]] == [Growth(), deeper, larger]
    assert [plan.ramp_steps for plan in plan_stages(schedule)[:3]] == [0, 0, 1], "depth alone ramps nothing"


def test_a_ladder_begins_without_layers_and_tells_the_size_of_its_first_ones() -> None:
    empty, first, last = plan_stages(deepening(*FROM_NOTHING, num_layers=0))
    assert [plan.model.num_layers for plan in (empty, first, last)] == [0, 1, 4]
    assert first.growth == Growth((), (), new_layers=1, layer_tokens=(4, 8))
    assert last.growth == Growth((2,), (4,), new_layers=3)
    assert empty.num_parameters == 300 * 32 + 2 * 32
    assert (empty.ramp_steps, first.ramp_steps, last.ramp_steps) == (0, 0, 1)
    assert empty.flops.total < first.flops.total < last.flops.total


@pytest.mark.parametrize("old_layers", [0, 2])
def test_new_layers_learn_by_the_rules_of_their_generation_and_can_warm_up_alone(old_layers: int) -> None:
    """Adam's first step moves every zero by the whole learning rate, whatever the gradient."""
    stages = (SMALL, {"num_layers": 4}) if old_layers else ({}, SMALL | {"num_layers": 4})
    growth = {"rewarmup": {"steps": 20, "of": "new"}, "lr_scale": [2, 1], "old_tokens": {"freeze_for": 3}}
    plan = plan_stages(deepening(*stages, num_layers=old_layers, growth=growth))[1]
    assert isinstance(plan.model, TokenformerConfig)
    assert [block.generation for block in plan.model.blocks[old_layers:]] == [1] * (4 - old_layers)
    old, new = plan.generations
    assert [old.factor(step) for step in (0, 2, 3, 20)] == [0.0, 0.0, 1.0, 1.0]
    assert new.factor(0) <= 2 / 20
    assert [new.factor(step) for step in (20, 39)] == [2.0] * 2


def test_the_controls_of_a_ladder_that_grows_in_depth_have_its_depths_and_sizes() -> None:
    kinds = ("tokenformer-scratch", "best-scratch", "decoder-scratch", "single-jump")
    blocks = {"controls": [{"kind": kind} for kind in kinds], "growth": {"depth": "interleave"}}
    schedule = deepening(*FROM_NOTHING, num_layers=0, **blocks)
    shapes = {
        control.name.removeprefix("s-control-"): [
            (plan.model.num_layers, plan.num_parameters) for plan in plan_stages(control.schedule)
        ]
        for control in plan_controls(schedule)
    }
    sizes = [(plan.model.num_layers, plan.num_parameters) for plan in plan_stages(schedule)]
    assert shapes.pop("decoder-scratch")[0][0] >= 1
    assert list(shapes) == ["tokenformer-scratch", "best-scratch-s0", "best-scratch-s1", "single-jump"]
    assert list(shapes.values()) == [[sizes[2]], [sizes[0]], [sizes[1]], [sizes[0], sizes[2]]]


def test_what_only_looks_mistaken_is_accepted() -> None:
    other_text = {"stages.1.attention_tokens": 4, "stages.1.mixture": {"books": 1, "code": 1}}
    assert depths(parse(changed(BASES["mixed"] | other_text))) == [2, 2]
    assert depths(parse(changed(BASES["decoder"] | {"stages.1.batch_size": 16}))) == [2, 2]
    first_layers = BASES["from nothing"] | {"stages.1.attention_tokens": 4, "stages.1.ffn_tokens": 8}
    assert depths(parse(changed(first_layers | {"model.score_function": "softmax"}))) == [0, 2]
    assert depths(parse(changed({"growth.depth": "copy-stack"}))) == [2, 2]
