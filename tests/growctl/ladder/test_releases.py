"""The releases of a ladder, computed from its schedule: what each trains, and which stages can have one."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.controls import plan_controls
from growctl.ladder.stage_plans import plan_run, plan_stages, slope_trigger
from growctl.schedule.blocks import Schedule
from tests.growctl.ladders import ladder
from tests.growctl.schedules import message_of

RATE = {"peak": 1e-3, "warmup_steps": 5}
ALL = {"releases": "all"}
BOTH = {"stage-0/release": 2, "stage-1/release": 3}


def all_at(**rate: Any) -> dict[str, Any]:
    return ALL | {"learning_rate": RATE | rate}


def with_stage(index: int, release: Any, **blocks: Any) -> Schedule:
    """The small ladder with the key `release` in one stage."""
    stages = ladder().model_dump(mode="json", exclude_none=True)["stages"]
    stages[index]["release"] = release
    return ladder(stages=stages, **blocks)


@pytest.mark.parametrize(
    ("stage", "release", "blocks", "steps"),
    [
        (0, None, {}, {}),
        (0, None, ALL, BOTH),
        (1, True, {}, {"stage-1/release": 3}),
        (1, {"decay": 0.5}, ALL, {"stage-0/release": 2, "stage-1/release": 15}),
        (0, False, ALL, {"stage-1/release": 3}),
        (0, None, all_at(span="stage", shape="cosine"), {}),
        (2, None, all_at(decay=0.0), BOTH | {"stage-2/release": 5}),
    ],
)
def test_a_stage_that_is_not_decayed_has_the_release_that_it_or_the_ladder_asks_for(stage, release, blocks, steps):
    schedule = with_stage(stage, release, **blocks)
    plans = plan_run(schedule)
    assert {plan.name: plan.num_steps for plan in plans if plan.branch_of} == steps
    names = [name for i in range(3) for name in (f"stage-{i}", f"stage-{i}/release")]
    assert [plan.name for plan in plans] == [n for n in names if n in steps or "/" not in n]
    if blocks.get("releases") and release is None:
        decayed = [f"stage-{i}/release" not in steps for i in range(3)]
        assert [plan.has_decayed for plan in plan_stages(schedule)] == decayed


@pytest.mark.parametrize(
    ("stage", "release", "blocks", "reason"),
    [
        (1, True, {"learning_rate": RATE | {"span": "stage"}}, "stages.1.release = true: stage stage-1 ends finished"),
        (2, True, {}, "stages.2.release = true: stage stage-2 ends finished"),
        (0, None, all_at(shape="cosine"), "stage-0 cannot be released: the cosine"),
        (0, None, all_at(decay=0.6), "stage-1 cannot be released: the ladder's own decay"),
        (0, None, all_at(warmup_steps=25), "stage-0 cannot be released: the learning rate"),
    ],
)
def test_no_release_of_a_stage_off_the_peak(stage: int, release: Any, blocks: dict[str, Any], reason: str) -> None:
    [line] = message_of(lambda: with_stage(stage, release, **blocks)).splitlines()
    assert reason in line


@settings(max_examples=30)
@given(share=st.floats(0.01, 1.0), final=st.floats(0.0, 1e-3))
def test_the_rate_falls_from_the_peak_towards_its_final_value_in_equal_steps(share: float, final: float) -> None:
    schedule = with_stage(0, {"decay": share}, learning_rate=RATE | {"final": final})
    stage, release, *_ = plan_run(schedule)
    rates = [release.learning_rate.at(step) for step in range(release.num_steps + 1)]
    assert rates[0] == pytest.approx(stage.learning_rate.at(stage.num_steps - 1)) == 1e-3
    assert rates[-1] == pytest.approx(final)
    falls = [before - after for before, after in pairwise(rates)]
    assert falls == pytest.approx([falls[0]] * len(falls), abs=1e-12)


def test_a_release_trains_the_stages_model_as_the_stages_last_step_did() -> None:
    growth = {"old_tokens": {"freeze_for": 4}, "rewarmup": {"steps": 6}, "lr_scale": [1.0, 0.25], "weight_decay": [0.3]}
    _, _, stage, release, _ = plan_run(ladder(releases="all", growth=growth))
    assert (release.model, release.step_flops, release.first_step) == (stage.model, stage.step_flops, 50)
    assert (release.ramp_steps, release.anneal_steps) == (0, None)
    for before, after in zip(stage.generations, release.generations, strict=True):
        assert {after.factor(step) for step in range(9)} == {before.factor(stage.num_steps - 1)}
        assert after.weight_decay == before.weight_decay == 0.3
    *_, release, _ = plan_run(ladder(releases="all", growth={"old_tokens": "freeze"}))
    assert [rule.factor(0) for rule in release.generations] == [0.0, 1.0], "what a whole stage freezes stays frozen"


def test_a_release_follows_the_steps_that_its_stage_really_took_and_never_ends_early() -> None:
    schedule = ladder(releases="all", growth={"when": "slope", "slope": 1e-12}, evaluation={"every": 2})
    release = plan_run(schedule, [10])[1]
    assert (release.num_steps, release.first_step) == (1, 10)
    assert slope_trigger(schedule, release) is None


def test_controls_have_no_releases() -> None:
    kinds = ("tokenformer-scratch", "best-scratch", "single-jump", "official-growth")
    schedule = with_stage(0, {"decay": 0.5}, releases="all", controls=[{"kind": kind} for kind in kinds])
    assert not [plan for control in plan_controls(schedule) for plan in plan_run(control.schedule) if plan.branch_of]
