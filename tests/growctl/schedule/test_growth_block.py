"""The growth block of a schedule: presets, and the effect of each key on the plan and the workers."""

from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import ValidationError

from growctl.ladder.controls import plan_controls
from growctl.ladder.plan import make_plan
from growctl.ladder.sizes import Growth
from growctl.ladder.stage_plans import plan_stages, slope_trigger
from growctl.run.requests import schedule_yaml
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
from growctl.schedule.training_blocks import GrowthBlock
from model.decoder_config import DecoderConfig
from model.depth import Depth
from model.policy import GrowthPolicy, Preset
from model.shapes import num_parameters
from stages.spec import SlopeTrigger
from tests.growctl.grown_ladders import decoder_ladder, ladder, last_model
from tests.growctl.schedules import BASE, changed, parse
from tests.model.growths import INITS, TAUS

DEFAULTS: dict[str, Any] = {
    "preset": "growctl-default",
    "init": "matched",
    "tau": "ramp",
    "depth": "append",
    "ramp": 0.02,
    "anneal": 0.3,
    "copy_noise": 0.0,
    "moments": "keep",
    "allow_jump": False,
    "old_tokens": "train",
    "lr_scale": [],
    "weight_decay": [],
    "rewarmup": {"steps": 0, "of": "all"},
    "when": "fixed",
    "slope": None,
    "slope_window": 5,
}
PRESETS: dict[Preset, dict[str, Any]] = {
    "growctl-default": {},
    "official": {"init": "random", "tau": "recompute", "moments": "reset", "allow_jump": True},
    "paper-appendix": {"init": "zero-key", "tau": "frozen"},
}
"""The keys that each preset changes from the defaults."""
DECIDES = ("init", "tau", "copy_noise", "moments")
"""The keys that determine what a growth computes; `allow_jump` is only a permission."""

SHARE, FACTORS = st.floats(0.001, 1.0), st.lists(st.floats(0.0, 3.0), max_size=3)
ANY_GROWTH = st.fixed_dictionaries(
    {},
    optional={
        "preset": st.sampled_from([*PRESETS, "custom"]),
        "init": st.sampled_from(INITS),
        "tau": st.sampled_from(TAUS),
        "ramp": SHARE,
        "anneal": SHARE,
        "depth": st.sampled_from(get_args(Depth)),
        "copy_noise": st.floats(0.0, 2.0),
        "moments": st.sampled_from(["keep", "reset"]),
        "allow_jump": st.booleans(),
        "old_tokens": st.sampled_from(["train", "freeze", {"freeze_for": 7}]),
        "lr_scale": FACTORS,
        "weight_decay": FACTORS,
        "rewarmup": st.sampled_from([{}, {"steps": 50}, {"steps": 5, "of": "new"}]),
        "when": st.sampled_from(["fixed", "slope"]),
        "slope": st.none() | st.floats(1e-30, 1.0),
        "slope_window": st.integers(2, 9),
    },
)
"""Growth blocks whose keys are each valid by themselves."""


def reloaded(schedule: Schedule) -> Schedule:
    """`schedule` from the text that a run stores."""
    return parse(OmegaConf.to_container(OmegaConf.create(schedule_yaml(schedule))))


@given(st.sampled_from([{}, *({"preset": preset} for preset in PRESETS)]) | ANY_GROWTH)
def test_keys_that_are_left_out_have_the_values_of_the_preset_or_the_defaults(growth: dict[str, Any]) -> None:
    block = GrowthBlock(**growth)
    own_policy = any(growth.get(key, DEFAULTS[key]) != DEFAULTS[key] for key in DECIDES)
    preset = growth.get("preset", "custom" if own_policy else "growctl-default")
    expected = DEFAULTS | PRESETS.get(preset, {}) | {"preset": preset} | growth
    expected["rewarmup"] = DEFAULTS["rewarmup"] | expected["rewarmup"]
    assert block.model_dump() == expected
    try:
        policy = block.policy()
    except ValidationError:
        return
    assert policy.model_dump() == {key: expected[key] for key in GrowthPolicy.model_fields if key in expected}
    assert growth.keys() - {"preset"} or policy == GrowthPolicy.of(preset)


@pytest.mark.parametrize(
    ("growth", "rate", "shape", "span"),
    [
        ({"preset": "official"}, {}, "cosine", "stage"),
        ({"preset": "official"}, {"shape": "wsd"}, "wsd", "stage"),
        ({"preset": "official", "rewarmup": {"steps": 2}}, {"shape": "wsd", "span": "ladder"}, "wsd", "ladder"),
        ({}, {"shape": "cosine"}, "cosine", "ladder"),
    ],
)
def test_the_official_preset_gives_every_stage_a_cosine_unless_another_is_set(growth, rate, shape, span):
    schedule = parse(changed({"growth": growth, "learning_rate": BASE["learning_rate"] | rate}))
    assert (schedule.learning_rate.shape, schedule.learning_rate.span) == (shape, span)
    assert reloaded(schedule) == schedule
    second = plan_stages(schedule)[1]
    assert (second.learning_rate.at(0) < second.learning_rate.at(1) == 1e-3) is (span == "stage")


@pytest.mark.slow
@settings(max_examples=60)
@given(ANY_GROWTH, st.sampled_from(["l2_norm_gelu", "softmax"]))
@example({}, "l2_norm_gelu")
def test_any_growth_block_plans_and_reloads_or_is_rejected_shortly(growth: dict[str, Any], score_function: str) -> None:
    model = {"num_layers": 3, "hidden_size": 32, "num_heads": 2, "score_function": score_function}
    try:
        schedule = ladder((4, 8), (8, 16), (16, 16, [1]), growth=growth, model=model, controls=BASE["controls"][1:])
    except ScheduleError as error:
        lines = str(error).splitlines()
        assert growth or score_function == "softmax", "the default growth is valid"
        assert max(map(len, lines)) < 350
        return
    assert len(make_plan(schedule).stages) == 3
    [control] = plan_controls(schedule)
    assert control.schedule.growth == schedule.growth
    for each in (schedule, control.schedule):
        assert reloaded(each) == each


@pytest.mark.parametrize(
    ("growth", "old", "middle", "new"),
    [
        ({}, (1, None, 0, 0), (1, None, 0, 0), (1, None, 0, 0)),
        ({"lr_scale": [2.0, 0.5], "weight_decay": [0.1]}, (0.5, 0.1, 0, 0), (0.5, 0.1, 0, 0), (2, 0.1, 0, 0)),
        ({"lr_scale": [3.0, 2.0, 1.0, 0.0], "weight_decay": [0.2, 0.0]}, (1, 0, 0, 0), (2, 0, 0, 0), (3, 0.2, 0, 0)),
        ({"old_tokens": "freeze", "rewarmup": {"steps": 9}}, (1, None, 50, 9), (1, None, 50, 9), (1, None, 0, 9)),
        (
            {"old_tokens": {"freeze_for": 7}, "rewarmup": {"steps": 9, "of": "new"}},
            *((1, None, 7, 0), (1, None, 7, 0), (1, None, 0, 9)),
        ),
    ],
    ids=str,
)
def test_rules_follow_the_age_of_a_generation(growth: dict[str, Any], old: Any, middle: Any, new: Any) -> None:
    rules = GrowthBlock.model_validate(growth).rules(2, num_steps=50)
    found = [(rule.lr_scale, rule.weight_decay, rule.frozen_steps, rule.warmup_steps) for rule in rules]
    assert found == [old, middle, new]


@pytest.mark.parametrize(
    ("growth", "ramp_steps", "anneal_steps"),
    [
        ({}, 1, None),
        ({"init": "zero-key", "tau": "anneal"}, 0, 6),
        ({"init": "zero-key", "tau": "anneal", "anneal": 1.0}, 0, 19),
        ({"preset": "official"}, 0, None),
    ],
)
def test_ramp_and_annealing_take_their_share(growth: dict[str, Any], ramp_steps: int, anneal_steps: int | None) -> None:
    plans = plan_stages(ladder((4, 8), (8, 16), (16, 32), growth=growth))
    grown = (ramp_steps, anneal_steps)
    assert [(plan.ramp_steps, plan.anneal_steps) for plan in plans] == [(0, None), grown, grown]


CHOSEN_LAYERS = st.none() | st.sets(st.integers(0, 2), min_size=1).map(list)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), CHOSEN_LAYERS), min_size=1, max_size=3))
def test_only_chosen_layers_grow_and_sizes_add_up_layer_by_layer(growths: list[tuple[int, int, list[int] | None]]):
    """Every stage has more tokens than any layer so far, or as many if it is at the maximum."""
    sizes: list[Any] = [(4, 8)]
    layers = [(4, 8)] * 3
    for attention, ffn, chosen in growths:
        target = max(a for a, _ in layers) + attention, max(f for _, f in layers) + ffn
        grown = [target if chosen is None or i in chosen else layers[i] for i in range(3)]
        if grown != layers:
            sizes.append((*target, chosen))
            layers = grown
    schedule = ladder(*sizes)
    plans, model = plan_stages(schedule), last_model(schedule)
    assert [(block.key.num_tokens, block.ffn.num_tokens) for block in model.blocks] == layers
    assert [block.projection.num_tokens for block in model.blocks] == [attention for attention, _ in layers]
    assert plans[-1].num_parameters == 2 * 32 * sum(4 * attention + ffn for attention, ffn in layers) + 302 * 32
    for i, block in enumerate(model.blocks):
        added = {plan.index: plan.growth.attention_tokens[i] for plan in plans[1:] if plan.growth.attention_tokens[i]}
        assert {g.number: g.num_tokens for g in block.query.generations} == {0: 4} | added
        assert 8 + sum(plan.growth.ffn_tokens[i] for plan in plans[1:]) == layers[i][1]


def test_a_stage_that_a_slope_ended_early_moves_all_later_stages() -> None:
    growth, controls = {"when": "slope", "slope": 1e-9, "ramp": 0.1}, BASE["controls"][1:]
    schedule = ladder((4, 8), (8, 16), (16, 32), growth=growth, controls=controls)
    plans = plan_stages(schedule, (7,))
    assert [(plan.num_steps, plan.first_step) for plan in plans] == [(7, 0), (20, 7), (20, 27)]
    assert {plan.learning_rate.total_steps for plan in plans} == {47}
    assert [plan.learning_rate.first_step for plan in plans] == [0, 7, 27]
    assert plan_stages(schedule, (7, 9))[1].ramp_steps == 1
    [control] = plan_controls(schedule, (7,))
    flops = sum(plan.flops.total for plan in plans)
    assert plan_stages(control.schedule)[0].flops.total == pytest.approx(flops, rel=0.05)


def test_every_stage_but_the_last_has_a_slope_trigger_with_its_own_flops() -> None:
    slope: dict[str, Any] = {"when": "slope", "slope": 2e-9, "slope_window": 4}
    for growth, most in ((slope, 2), ({}, 0)):
        schedule = ladder((4, 8), (8, 16), (16, 32), growth=growth)
        plans = plan_stages(schedule)
        triggers = [SlopeTrigger(slope=2e-9, window=4, step_flops=plan.step_flops.total) for plan in plans[:most]]
        assert [slope_trigger(schedule, plan) for plan in plans] == triggers + [None] * (3 - most)


STACK = {"depth": "copy-stack", "allow_jump": True}


@pytest.mark.parametrize(
    ("growth", "stages", "sizes", "last"),
    [
        (
            {},
            [{}, {"hidden_size": 96, "ffn_tokens": 400, "num_layers": 3}],
            [(2, 32, 2, 128), (3, 96, 6, 400)],
            Growth(ffn_tokens=(16, 16), new_layers=1, widen=3),
        ),
        (
            STACK,
            [{}, {"num_layers": 4}, {"num_layers": 12}],
            [(2, 32, 2, 128), (4, 32, 2, 128), (12, 32, 2, 128)],
            Growth(ffn_tokens=(0,) * 4, new_layers=8),
        ),
        (
            {"old_tokens": "freeze"},
            [{"num_layers": 3}, {"num_heads": 3}],
            [(3, 32, 2, 128), (3, 32, 3, 128)],
            Growth(ffn_tokens=(0,) * 3, heads=1),
        ),
    ],
    ids=str,
)
def test_a_decoder_ladder_plans_the_sizes_of_its_stages(growth, stages, sizes, last):
    plans = plan_stages(decoder_ladder(*stages, growth=growth))
    for plan, size in zip(plans, sizes, strict=True):
        assert isinstance(plan.model, DecoderConfig)
        assert (plan.model.num_layers, plan.model.hidden_size, plan.model.num_heads, plan.model.ffn_tokens) == size
        assert plan.num_parameters == num_parameters(plan.model)
    assert plans[-1].growth == last
    old = [float("old_tokens" not in growth)] * (len(plans) - 1)
    assert [rule.factor(0) for rule in plans[-1].generations] == [*old, 1.0]
