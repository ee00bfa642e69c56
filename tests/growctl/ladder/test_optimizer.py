"""The optimizer block: Muon's defaults, and one clear message for what goes with only one of the two optimizers."""

import math
from typing import Any

import pytest

from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import plan_stages, worker_spec
from tests.growctl.schedules import changed, parse

MUON = {"optimizer.name": "muon"}


@pytest.mark.parametrize(
    "launch",
    [{"launch.zero_stage": 1}, {"launch.zero_stage": 3}, {"launch.zero_stage": 2, "training.precision": "fp32"}],
)
def test_muon_trains_without_clipping_on_every_zero_stage_that_keeps_its_momentum_exact(launch: dict[str, Any]) -> None:
    assert parse(changed(MUON | launch)).optimizer.gradient_clipping == 0
    assert parse(changed(launch)).optimizer.gradient_clipping == 1


def test_every_shipped_schedule_takes_muon_by_one_override() -> None:
    for name in ("quickstart", "pile_1.4b"):  # without and with shipped values of the optimizer
        optimizer = load_schedule(name, ["optimizer=muon"]).optimizer
        assert (optimizer.name, optimizer.gradient_clipping) == ("muon", 0)


def test_muons_rate_is_by_default_the_one_at_which_its_updates_are_as_large_as_adamws() -> None:
    width = parse(changed({})).model.hidden_size
    attempt = {"attempt": 1, "directory": "", "dataset": "", "initial": None, "resume": None}
    for changes, expected in (
        ({}, 1.0),
        (MUON, 0.2 * math.sqrt(width)),
        (MUON | {"optimizer.muon_lr_scale": 30}, 30.0),
    ):
        schedule = parse(changed(changes))
        spec = worker_spec(
            schedule, plan_stages(schedule)[0], samples_seen=0, micro_batch_size=1, launched_at=0.0, **attempt
        )
        assert spec.optimizer.muon_lr_scale == pytest.approx(expected)
        assert spec.optimizer.name == schedule.optimizer.name
