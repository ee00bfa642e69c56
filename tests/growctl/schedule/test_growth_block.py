"""The growth block of a schedule: presets, and the effect of each key on the plan and the workers."""

import copy
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import ValidationError

from growctl.ladder.controls import plan_controls
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages, slope_trigger
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
from growctl.schedule.training_blocks import FreezeForBlock, GrowthBlock, RewarmupBlock
from model.config import TokenformerConfig, TransformerConfig, num_parameters
from model.initialization import build_model
from model.policy import GrowthPolicy, Preset
from stages.checkpoint.manifest import read_manifest
from stages.grow.expand import expand
from stages.spec import GenerationRule, SlopeTrigger
from tests.growctl.grown_ladders import ONE_TRANSFORMER, ladder, last_model, transformer_ladder
from tests.growctl.schedules import BASE, DELETE, changed, message_of, parse
from tests.model.growths import INITS, TAUS
from tests.stages.checkpoints import STEPS, write_checkpoint

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

ANY_GROWTH = st.fixed_dictionaries(
    {},
    optional={
        "preset": st.sampled_from([*PRESETS, "custom"]),
        "init": st.sampled_from(INITS),
        "tau": st.sampled_from(TAUS),
        "ramp": st.floats(0.001, 1.0),
        "anneal": st.floats(0.001, 1.0),
        "depth": st.sampled_from(["append", "interleave", "copy-stack"]),
        "copy_noise": st.floats(0.0, 2.0),
        "moments": st.sampled_from(["keep", "reset"]),
        "allow_jump": st.booleans(),
        "old_tokens": st.one_of(
            st.sampled_from(["train", "freeze"]), st.builds(lambda n: {"freeze_for": n}, st.integers(1, 99))
        ),
        "lr_scale": st.lists(st.floats(0.0, 3.0), max_size=3),
        "weight_decay": st.lists(st.floats(0.0, 1.0), max_size=3),
        "rewarmup": st.fixed_dictionaries(
            {}, optional={"steps": st.integers(0, 50), "of": st.sampled_from(["all", "new"])}
        ),
        "when": st.sampled_from(["fixed", "slope"]),
        "slope": st.one_of(st.none(), st.floats(1e-30, 1.0)),
        "slope_window": st.integers(2, 9),
    },
)
"""Growth blocks whose keys are each valid by themselves."""


def written_out(schedule: Schedule) -> Any:
    """The plain data in a run's `schedule.yaml`."""
    return OmegaConf.to_container(
        OmegaConf.create(OmegaConf.to_yaml(OmegaConf.create(schedule.model_dump(mode="json"))))
    )


# Presets


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_its_documented_values_and_leaves_other_keys_at_their_defaults(preset: Preset) -> None:
    block = GrowthBlock(preset=preset)
    assert block.model_dump() == DEFAULTS | PRESETS[preset] | {"preset": preset}
    assert block.policy() == GrowthPolicy.of(preset)
    if preset == "growctl-default":
        assert GrowthBlock() == block
        assert parse(changed({"growth": DELETE})).growth == block


@given(ANY_GROWTH)
def test_the_policy_follows_the_keys_and_the_preset_fills_the_others(
    growth: dict[str, Any],
) -> None:
    block = GrowthBlock(**growth)
    decides = ("init", "tau", "copy_noise", "moments")
    own_policy = any(growth.get(key, DEFAULTS[key]) != DEFAULTS[key] for key in decides)
    preset = growth.get("preset", "custom" if own_policy else "growctl-default")
    expected = DEFAULTS | PRESETS.get(preset, {}) | {"preset": preset} | growth
    expected["rewarmup"] = DEFAULTS["rewarmup"] | expected["rewarmup"]
    assert block.model_dump() == expected
    try:
        policy = block.policy()
    except ValidationError:
        return
    assert policy.model_dump() == {key: expected[key] for key in GrowthPolicy.model_fields}


@pytest.mark.parametrize(
    ("growth", "rate", "shape", "span"),
    [
        ({"preset": "official"}, {}, "cosine", "stage"),
        ({"preset": "official"}, {"span": "ladder"}, "cosine", "ladder"),
        ({"preset": "official"}, {"shape": "wsd"}, "wsd", "stage"),
        ({"preset": "official", "rewarmup": {"steps": 2}}, {"shape": "wsd", "span": "ladder"}, "wsd", "ladder"),
        ({"preset": "paper-appendix"}, {}, "wsd", "ladder"),
        ({}, {"shape": "cosine"}, "cosine", "ladder"),
    ],
)
def test_the_official_preset_gives_every_stage_its_own_cosine_unless_the_schedule_sets_another(
    growth: dict[str, Any], rate: dict[str, Any], shape: str, span: str
) -> None:
    schedule = parse(changed({"growth": growth, "learning_rate": BASE["learning_rate"] | rate}))
    assert (schedule.learning_rate.shape, schedule.learning_rate.span) == (shape, span)
    assert parse(written_out(schedule)) == schedule
    second = plan_stages(schedule)[1]
    assert (second.learning_rate.at(0) < second.learning_rate.at(1) == 1e-3) is (span == "stage")


def test_the_official_preset_still_needs_a_learning_rate_block() -> None:
    official = {"growth": {"preset": "official"}}
    assert message_of(parse, changed(official | {"learning_rate": DELETE})) == "s.yaml: learning_rate: is missing"
    problem = "s.yaml: learning_rate = 5: must be a block of keys"
    assert message_of(parse, changed(official | {"learning_rate": 5})) == problem


# The schedule that a run stores


def test_layers_and_depths_survive_the_dump_and_controls_drop_them() -> None:
    uneven = ladder((4, 8), (6, 8, [0, 2]), (9, 9), controls=[{"kind": "transformer-scratch"}])
    stack = {"depth": "copy-stack", "allow_jump": True}
    stacked = transformer_ladder({}, {"num_layers": 4}, growth=stack, controls=[{"kind": "transformer-scratch"}])
    for schedule in (uneven, stacked):
        assert parse(written_out(schedule)) == schedule
        (control,) = plan_controls(schedule)
        assert parse(written_out(control.schedule)) == control.schedule
        (stage,) = control.schedule.stages
        assert (stage.layers, stage.num_layers, stage.hidden_size, stage.ffn_size) == (None,) * 4
    assert plan_stages(plan_controls(stacked)[0].schedule)[0].model == plan_stages(stacked)[-1].model


@pytest.mark.slow
@settings(max_examples=100)
@given(ANY_GROWTH, st.sampled_from(["l2_norm_gelu", "softmax"]), st.booleans())
def test_any_growth_block_gives_a_schedule_that_plans_and_reloads_or_short_messages(
    growth: dict[str, Any], score_function: str, transformer: bool
) -> None:
    try:
        if transformer:
            schedule = transformer_ladder({}, {"num_layers": 4}, growth=growth, controls=BASE["controls"][1:])
        else:
            model = {"num_layers": 3, "hidden_size": 32, "num_heads": 2, "score_function": score_function}
            controls = BASE["controls"][1:]
            schedule = ladder((4, 8), (8, 16), (16, 16, [1]), growth=growth, model=model, controls=controls)
    except ScheduleError as error:
        lines = str(error).splitlines()
        assert len(lines) == 1 or lines[0] == f"s.yaml: {len(lines) - 1} problems"
        assert max(map(len, lines)) < 350
        return
    assert parse(written_out(schedule)) == schedule
    assert len(make_plan(schedule).stages) == len(schedule.stages)
    for control in plan_controls(schedule):
        assert parse(written_out(control.schedule)) == control.schedule
        assert control.schedule.growth == schedule.growth
    schedule.growth.rules(2, 20)
    if transformer:
        # all parameters of a grown transformer train at the stage's rate after the warm-up
        assert schedule.growth.rules(1, 20)[0].factor(10**6) == 1


# How generations learn


@given(
    st.lists(st.floats(0.0, 3.0), max_size=3),
    st.lists(st.floats(0.0, 1.0), max_size=3),
    st.integers(0, 3),
    st.sampled_from(["train", "freeze", 7]),
    st.integers(0, 9),
    st.sampled_from(["all", "new"]),
)
def test_rules_follow_the_age_of_a_generation_newest_first(
    lr_scale: list[float], weight_decay: list[float], newest: int, old: Any, warmup: int, of: Any
) -> None:
    block = GrowthBlock(
        lr_scale=lr_scale,
        weight_decay=weight_decay,
        old_tokens=FreezeForBlock(freeze_for=old) if isinstance(old, int) else old,
        rewarmup=RewarmupBlock(steps=warmup, of=of),
    )
    rules = block.rules(newest, num_steps=50)
    assert len(rules) == newest + 1
    scales = [*lr_scale, *(lr_scale[-1:] or [1.0]) * 4]
    last = weight_decay[-1] if weight_decay else None
    decays = [*weight_decay, *[last] * 4]
    for age, rule in enumerate(reversed(rules)):
        assert rule == GenerationRule(
            lr_scale=scales[age],
            weight_decay=decays[age],
            frozen_steps=0 if age == 0 else {"train": 0, "freeze": 50}.get(old, old),
            warmup_steps=warmup if age == 0 or of == "all" else 0,
        )


# Stage plans and worker specs


@pytest.mark.parametrize(
    ("growth", "ramp_steps", "anneal_steps"),
    [
        ({"ramp": 1.0}, 19, None),
        ({}, 1, None),
        ({"init": "zero-key", "tau": "anneal"}, 0, 6),
        ({"init": "zero-key", "tau": "anneal", "anneal": 1.0}, 0, 19),
        ({"init": "zero-key", "tau": "frozen", "anneal": 0.9}, 0, None),
        ({"preset": "official"}, 0, None),
    ],
)
def test_ramp_and_annealing_take_their_share_of_every_grown_stage(
    growth: dict[str, Any], ramp_steps: int, anneal_steps: int | None
) -> None:
    first, *grown = plan_stages(ladder((4, 8), (8, 16), (16, 32), growth=growth))
    assert (first.ramp_steps, first.anneal_steps) == (0, None)
    assert [(plan.ramp_steps, plan.anneal_steps) for plan in grown] == [(ramp_steps, anneal_steps)] * 2


@pytest.mark.parametrize(
    ("growth", "tau", "generation_tau"),
    [
        ({}, math.sqrt(12), None),
        ({"init": "copy", "tau": "recompute"}, math.sqrt(12), None),
        ({"preset": "paper-appendix"}, 2.0, None),
        ({"init": "zero-value", "tau": "per-generation"}, 2.0, math.sqrt(8)),
    ],
    ids=str,
)
def test_a_stage_plan_has_the_model_at_the_end_of_its_policy(
    growth: dict[str, Any], tau: float, generation_tau: float | None
) -> None:
    query = last_model(ladder((4, 8), (12, 24), growth=growth)).blocks[1].query
    assert query.tau == tau
    assert [g.num_tokens for g in query.generations] == [4, 8]
    assert (query.generations[1].tau, query.generations[1].key_ramp) == (generation_tau, 1.0)
    assert query.generations[1].copies == (2 if growth.get("init") == "copy" else 0)


def test_only_chosen_layers_grow_and_a_later_stage_can_even_them_out() -> None:
    schedule = ladder((4, 8), (6, 8, [2, 0]), (6, 9, [1]), (10, 12))
    plans = plan_stages(schedule)
    assert [plan.growth.attention_tokens for plan in plans] == [(), (2, 0, 2), (0, 2, 0), (4, 4, 4)]
    assert [plan.growth.ffn_tokens for plan in plans] == [(), (0, 0, 0), (0, 1, 0), (4, 3, 4)]
    layers = [[(4, 8)] * 3, [(6, 8), (4, 8), (6, 8)], [(6, 8), (6, 9), (6, 8)], [(10, 12)] * 3]
    for plan, expected in zip(plans, layers, strict=True):
        assert isinstance(plan.model, TokenformerConfig)
        found = [(block.query.num_tokens, block.ffn.num_tokens) for block in plan.model.blocks]
        assert found == expected
        assert [block.projection.num_tokens for block in plan.model.blocks] == [attention for attention, _ in expected]
        tokens = sum(4 * attention + ffn for attention, ffn in expected)
        assert plan.num_parameters == 2 * 32 * tokens + 300 * 32 + 2 * 32
        assert plan.num_parameters == sum(p.numel() for p in build_model(plan.model, device="meta").parameters())
    numbers = [[g.number for g in block.query.generations] for block in last_model(schedule).blocks]
    assert numbers == [[0, 1, 3], [0, 2, 3], [0, 1, 3]]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 5), st.one_of(st.none(), st.sets(st.integers(0, 2), min_size=1).map(list))
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_sizes_of_uneven_ladders_add_up_layer_by_layer(growths: list[tuple[int, int, list[int] | None]]) -> None:
    """Every stage has more tokens than any layer so far, or as many if it is at the maximum."""
    sizes: list[Any] = [(4, 8)]
    layers = [(4, 8)] * 3
    for attention, ffn, chosen in growths:
        target = max(a for a, _ in layers) + attention, max(f for _, f in layers) + ffn
        grown = [target if chosen is None or i in chosen else layers[i] for i in range(3)]
        if grown == layers:
            continue
        sizes.append((*target, chosen))
        layers = grown
    plans = plan_stages(ladder(*sizes))
    model = plans[-1].model
    assert isinstance(model, TokenformerConfig)
    assert [(block.key.num_tokens, block.ffn.num_tokens) for block in model.blocks] == layers
    for i in range(3):
        assert 4 + sum(plan.growth.attention_tokens[i] for plan in plans[1:]) == layers[i][0]
        assert 8 + sum(plan.growth.ffn_tokens[i] for plan in plans[1:]) == layers[i][1]


def test_a_stage_that_a_slope_ended_early_moves_all_later_stages() -> None:
    schedule = ladder((4, 8), (8, 16), (16, 32), growth={"when": "slope", "slope": 1e-9, "ramp": 0.1})
    plans = plan_stages(schedule, (7,))
    assert [(plan.num_steps, plan.first_step) for plan in plans] == [(7, 0), (20, 7), (20, 27)]
    assert {plan.learning_rate.total_steps for plan in plans} == {47}
    assert [plan.learning_rate.first_step for plan in plans] == [0, 7, 27]
    assert plan_stages(schedule, (7, 9))[1].ramp_steps == 1
    (control,) = plan_controls(schedule.model_copy(update={"controls": parse(changed({})).controls[1:]}), (7,))
    assert plan_stages(control.schedule)[0].flops.total == pytest.approx(
        sum(plan.flops.total for plan in plans), rel=0.05
    )


def test_every_stage_but_the_last_has_a_slope_trigger_with_its_own_flops() -> None:
    def triggers(schedule: Schedule) -> list[SlopeTrigger | None]:
        return [slope_trigger(schedule, plan) for plan in plan_stages(schedule)]

    slope: dict[str, Any] = {"when": "slope", "slope": 2e-9, "slope_window": 4}
    sizes = (4, 8), (8, 16), (16, 32)
    flops = [plan.step_flops.total for plan in plan_stages(ladder(*sizes, growth=slope))]
    assert triggers(ladder(*sizes, growth=slope)) == [
        SlopeTrigger(slope=2e-9, window=4, step_flops=flops[0]),
        SlopeTrigger(slope=2e-9, window=4, step_flops=flops[1]),
        None,
    ]
    assert triggers(ladder(*sizes)) == [None] * 3
    assert triggers(ladder((4, 8), growth=slope)) == [None]


@pytest.mark.parametrize(("preset", "kept"), [("growctl-default", True), ("official", False), ("paper-appendix", True)])
def test_the_preset_decides_whether_old_groups_keep_adams_steps(preset: str, kept: bool, tmp_path: Any) -> None:
    """Parameter groups missing from `group_steps` start with fresh moments."""
    write_checkpoint(tmp_path / "final")
    for moments, expected in [({}, kept), ({"moments": "keep"}, True), ({"moments": "reset"}, False)]:
        output = tmp_path / f"grown-{len(list(tmp_path.iterdir()))}"
        policy = GrowthBlock.model_validate({"preset": preset} | moments).policy()
        manifest = expand(tmp_path / "final", output, attention_tokens=5, policy=policy)
        assert manifest.group_steps == read_manifest(output).group_steps == (STEPS if expected else {})
        again = expand(output, tmp_path / f"{output.name}-again", attention_tokens=5, policy=policy)
        assert again.group_steps == manifest.group_steps


# Transformers


@pytest.mark.parametrize(
    ("growth", "stages", "sizes"),
    [
        ({}, [{"ffn_size": 200}, {"hidden_size": 64}], [(2, 32, 2, 128), (2, 32, 2, 200), (2, 64, 4, 400)]),
        ({}, [{"hidden_size": 96, "ffn_size": 400, "num_layers": 3}], [(2, 32, 2, 128), (3, 96, 6, 400)]),
        (
            {"copy_noise": 0.3},
            [{"hidden_size": 64}, {"hidden_size": 192}],
            [(2, 32, 2, 128), (2, 64, 4, 256), (2, 192, 12, 768)],
        ),
        (
            {"depth": "copy-stack", "allow_jump": True},
            [{"num_layers": 4}, {"num_layers": 12}],
            [(2, 32, 2, 128), (4, 32, 2, 128), (12, 32, 2, 128)],
        ),
        (
            {"depth": "interleave"},
            [{"num_layers": 3}, {"num_layers": 6}],
            [(2, 32, 2, 128), (3, 32, 2, 128), (6, 32, 2, 128)],
        ),
    ],
    ids=str,
)
def test_a_transformer_ladder_plans_the_sizes_of_its_stages(
    growth: dict[str, Any], stages: list[dict[str, Any]], sizes: list[tuple[int, ...]]
) -> None:
    schedule = transformer_ladder({}, *stages, growth=growth)
    plans = plan_stages(schedule)
    for plan, size in zip(plans, sizes, strict=True):
        assert isinstance(plan.model, TransformerConfig)
        found = plan.model.num_layers, plan.model.hidden_size, plan.model.num_heads, plan.model.ffn_size
        assert found == size
        assert plan.num_parameters == num_parameters(plan.model)
        assert (plan.growth.attention_tokens, plan.growth.ffn_tokens) == ((), ())
    assert parse(written_out(schedule)) == schedule


def test_the_first_stage_of_a_transformer_can_set_its_own_sizes() -> None:
    schedule = transformer_ladder({"hidden_size": 64, "num_layers": 3}, {"num_layers": 6}, growth={})
    first, second = (plan.model for plan in plan_stages(schedule))
    assert isinstance(first, TransformerConfig)
    assert (first.num_layers, first.hidden_size, first.num_heads, first.ffn_size) == (3, 64, 4, 256)
    assert second == first.model_copy(update={"num_layers": 6})
    narrow = parse(changed(copy.deepcopy(ONE_TRANSFORMER) | {"model.ffn_size": 1, "stages.0.hidden_size": 16}))
    assert plan_stages(narrow)[0].model.ffn_size == 1
