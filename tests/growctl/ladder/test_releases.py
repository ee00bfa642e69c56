"""The releases of a ladder, computed from its schedule: what each trains, and which stages can have one."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.controls import plan_controls
from growctl.ladder.stage_plans import (
    has_decayed,
    paths_of,
    plan_run,
    plan_stages,
    slope_trigger,
)
from growctl.runs_dir import RunPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
from tests.growctl.ladders import ladder

RATE = {"peak": 1e-3, "warmup_steps": 5}


def released(schedule: Schedule) -> dict[str, int]:
    """The steps of each release, by its name."""
    return {plan.name: plan.num_steps for plan in plan_run(schedule) if plan.branch_of}


def with_stage(index: int, release: Any, **blocks: Any) -> Schedule:
    """The small ladder with the key `release` in one stage."""
    stages = ladder().model_dump(mode="json", exclude_none=True)["stages"]
    stages[index]["release"] = release
    return ladder(stages=stages, **blocks)


def problem(**blocks: Any) -> str:
    """The message for a ladder with `releases: all` and those blocks."""
    with pytest.raises(ScheduleError) as error:
        ladder(releases="all", **blocks)
    return str(error.value)


def test_a_ladder_has_no_releases_unless_it_asks_for_them() -> None:
    assert released(ladder()) == {}


def test_every_stage_that_is_not_decayed_gets_a_release_of_a_tenth_of_its_steps() -> None:
    schedule = ladder(releases="all")
    assert released(schedule) == {"stage-0/release": 2, "stage-1/release": 3}
    assert [plan.name for plan in plan_run(schedule)] == [
        *("stage-0", "stage-0/release", "stage-1", "stage-1/release", "stage-2")
    ]
    assert plan_stages(schedule) == plan_stages(ladder())


def test_a_stage_can_ask_for_its_own_share_or_for_no_release() -> None:
    assert released(with_stage(1, True)) == {"stage-1/release": 3}
    assert released(with_stage(1, {"decay": 0.5})) == {"stage-1/release": 15}
    assert released(with_stage(1, {"decay": 0.5}, releases="all")) == {"stage-0/release": 2, "stage-1/release": 15}
    assert released(with_stage(0, False, releases="all")) == {"stage-1/release": 3}


def test_a_release_is_never_shorter_than_one_step() -> None:
    assert released(with_stage(0, {"decay": 1e-6})) == {"stage-0/release": 1}


@settings(max_examples=50, deadline=None)
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
    schedule = ladder(releases="all", growth=growth)
    _, _, stage, release, _ = plan_run(schedule)
    assert (release.model, release.step_flops, release.first_step) == (stage.model, stage.step_flops, 50)
    assert (release.ramp_steps, release.anneal_steps) == (0, None)
    for before, after in zip(stage.generations, release.generations, strict=True):
        assert {after.factor(step) for step in range(9)} == {before.factor(stage.num_steps - 1)}
        assert after.weight_decay == before.weight_decay == 0.3


def test_what_a_whole_stage_freezes_stays_frozen_in_its_release() -> None:
    *_, release, _ = plan_run(ladder(releases="all", growth={"old_tokens": "freeze"}))
    assert [rule.factor(0) for rule in release.generations] == [0.0, 1.0]


def test_a_release_follows_the_steps_that_its_stage_really_took_and_never_ends_early() -> None:
    slope = {"when": "slope", "slope": 1e-12}
    schedule = ladder(releases="all", growth=slope, evaluation={"every": 2})
    release = plan_run(schedule, [10])[1]
    assert (release.num_steps, release.first_step) == (1, 10)
    assert slope_trigger(schedule, release) is None


@pytest.mark.parametrize(
    "rate",
    [RATE | {"shape": "cosine", "span": "stage"}, RATE | {"span": "stage"}],
    ids=["cosine", "wsd"],
)
def test_stages_that_decay_on_their_own_are_finished_and_need_no_release(rate: dict[str, Any]) -> None:
    schedule = ladder(releases="all", learning_rate=rate)
    assert released(schedule) == {}
    assert all(map(has_decayed, plan_stages(schedule)))
    with pytest.raises(ScheduleError, match=r"stages\.1\.release = true: stage stage-1 ends finished"):
        with_stage(1, True, learning_rate=rate)


def test_of_a_ladder_that_decays_once_only_the_last_stage_is_finished() -> None:
    assert [has_decayed(plan) for plan in plan_stages(ladder())] == [False, False, True]
    with pytest.raises(ScheduleError, match=r"stages\.2\.release = true: stage stage-2 ends finished"):
        with_stage(2, True)


def test_without_any_decay_the_last_stage_gets_a_release_too() -> None:
    assert list(released(ladder(releases="all", learning_rate=RATE | {"decay": 0.0}))) == [
        *("stage-0/release", "stage-1/release", "stage-2/release")
    ]


def test_a_cosine_over_the_ladder_rejects_releases_in_between_with_one_message() -> None:
    said = problem(learning_rate=RATE | {"shape": "cosine"})
    assert "releases = 'all': stage stage-0 cannot be released: the cosine over the whole ladder has left the peak" in (
        said
    )
    assert "stage-1" not in said


def test_a_stage_that_ends_within_the_ladders_decay_or_warm_up_cannot_be_released() -> None:
    said = problem(learning_rate=RATE | {"decay": 0.6})
    assert "stage-1 cannot be released: the ladder's own decay begins before the stage ends" in said
    said = problem(learning_rate=RATE | {"warmup_steps": 25})
    assert "stage-0 cannot be released: the learning rate still warms up there, until step 25" in said
    assert released(ladder(releases="all", learning_rate=RATE | {"decay": 0.5})) != {}, "it begins where stage-2 does"


@pytest.mark.parametrize("value", ["no", [True], 0.1])
def test_a_release_that_is_no_release_gets_one_message_with_what_is_allowed(value: Any) -> None:
    with pytest.raises(ScheduleError, match=r"stages\.0\.release.*must be true or false or a block of keys"):
        with_stage(0, value)


def test_controls_have_no_releases() -> None:
    kinds = ("tokenformer-scratch", "best-scratch", "single-jump", "official-growth")
    schedule = with_stage(0, {"decay": 0.5}, releases="all", controls=[{"kind": kind} for kind in kinds])
    for control in plan_controls(schedule):
        assert released(control.schedule) == {}
        assert control.schedule.releases is None


def test_a_release_lies_in_its_stages_directory() -> None:
    run = RunPaths(Path("runs/quick"))
    plans = plan_run(ladder().model_copy(update={"releases": "all"}))
    assert [str(paths_of(run, plan).directory) for plan in plans[:2]] == [
        *("runs/quick/stages/0-stage-0", "runs/quick/stages/0-stage-0/release")
    ]
