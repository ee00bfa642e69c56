"""A growth preset must match the policy that the run computes, or the schedule is rejected."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from growctl.ladder.load import load_schedule
from growctl.run.requests import schedule_yaml
from growctl.schedule.errors import ScheduleError
from growctl.schedule.training_blocks import GrowthBlock
from model.policy import PRESETS, GrowthPolicy
from tests.growctl.schedule.test_growth_block import ANY_GROWTH
from tests.growctl.schedules import TEXT, changed, file_of, message_of, parse

DECIDES = ("init", "tau", "copy_noise", "moments")
"""The keys that determine what a growth computes; `allow_jump` is only a permission."""


def computed(growth: GrowthBlock | GrowthPolicy) -> dict[str, Any]:
    return {key: getattr(growth, key) for key in DECIDES}


@given(ANY_GROWTH)
def test_a_run_filed_under_a_preset_computes_its_policy_whatever_keys_are_set(growth: dict[str, Any]) -> None:
    try:
        found = parse(changed({"growth": growth})).growth
    except ScheduleError:
        return
    if found.preset != "custom":
        assert computed(found) == computed(GrowthPolicy.of(found.preset))
    assert found.preset == growth.get("preset", found.preset)


@pytest.mark.parametrize(
    ("growth", "filed_as"),
    [
        ({}, "growctl-default"),
        ({"ramp": 0.5, "rewarmup": {"steps": 5}, "allow_jump": True}, "growctl-default"),
        ({"init": "random"}, "custom"),
        ({"moments": "reset"}, "custom"),
        ({"init": "random", "tau": "recompute", "moments": "reset", "allow_jump": True}, "custom"),
    ],
    ids=str,
)
def test_a_users_own_policy_is_filed_as_custom(growth: dict[str, Any], filed_as: str) -> None:
    assert parse(changed({"growth": growth})).growth.preset == filed_as


def written(folder: Path, *overrides: str) -> str:
    """The schedule as a run stores it, with every default written out."""
    schedule = load_schedule(file_of(folder, TEXT, "first.yaml"), overrides)
    return file_of(folder, schedule_yaml(schedule), "schedule.yaml")


@pytest.mark.parametrize(("was", "asked"), [(was, asked) for was in PRESETS for asked in PRESETS if was != asked])
def test_another_preset_for_a_written_out_schedule_is_rejected_with_the_contradicting_keys(
    tmp_path: Path, was: Any, asked: Any
) -> None:
    path = written(tmp_path, f"growth.preset={was}")
    message = message_of(load_schedule, path, [f"growth.preset={asked}"])
    assert f"growth.preset = '{asked}': sets " in message
    old, new = GrowthPolicy.of(was).model_dump(), GrowthPolicy.of(asked).model_dump()
    in_its_way = [key for key in old if old[key] != new[key] and not (key == "allow_jump" and old[key])]
    for key in in_its_way:
        assert f"{key} = {new[key]!r}" in message
    again = load_schedule(path, [f"growth.preset={asked}", *(f"~growth.{key}" for key in in_its_way)])
    assert (again.growth.preset, computed(again.growth)) == (asked, computed(GrowthPolicy.of(asked)))
