"""Caveats of controls, and the commands that print them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.ladder.warnings import control_caveats, schedule_warnings
from growctl.run.requests import schedule_yaml
from growctl.schedule.blocks import Schedule
from growctl.schedule.files import shipped_schedules
from tests.growctl.ladders import ladder
from tests.growctl.runs import run_here
from tests.growctl.schedules import file_of

NO_PEAK = "s-control-tokenformer-scratch-0.1x trains 9 steps, of which 40 are warm-up: 0 are left for its decay."


def with_budgets(*budgets: float, kind: str = "tokenformer-scratch", **blocks: Any) -> Schedule:
    return ladder(controls=[{"kind": kind, "budgets": list(budgets)}], name="s", **blocks)


def rate(warmup_steps: int, **others: Any) -> dict[str, Any]:
    return {"learning_rate": {"peak": 1e-3, "warmup_steps": warmup_steps} | others}


def test_a_control_shorter_than_its_warm_up_gets_a_caveat() -> None:
    schedule = with_budgets(0.1, 1.0, **rate(40))
    assert schedule_warnings(schedule) == [NO_PEAK]
    assert NO_PEAK in make_plan(schedule).warnings


def test_a_control_whose_warm_up_takes_most_of_its_decay_gets_a_caveat() -> None:
    assert schedule_warnings(with_budgets(0.5, **rate(40, decay=0.5))) == [
        "s-control-tokenformer-scratch-0.5x trains 45 steps, of which 40 are warm-up: 5 are left for its decay."
    ]


def test_a_warm_up_too_long_for_the_ladder_itself_is_one_warning_not_one_for_every_control() -> None:
    schedule = with_budgets(0.1, 1.0, **rate(150))
    assert schedule_warnings(schedule) == [
        "The ladder trains 100 steps, of which 150 are warm-up: 0 are left for its decay; lower "
        "learning_rate.warmup_steps or learning_rate.decay, or train longer."
    ]
    [control, _] = plan_controls(schedule)
    assert control_caveats(control.schedule)


@pytest.mark.parametrize(
    ("steps", "values", "misfit"),
    [
        ((20, 30, 50), {"warmup_steps": 80}, None),
        (
            (20, 30, 50),
            {"warmup_steps": 100},
            "100 steps, of which 100 are warm-up: 0 are left for its decay",
        ),
        ((20, 30, 50), {"warmup_steps": 16, "span": "stage"}, None),
        (
            (20, 30, 50),
            {"warmup_steps": 25, "span": "stage"},
            "20 steps, of which 25 are warm-up: 0 are left for its decay (stage stage-0)",
        ),
        ((20, 30, 50), {"warmup_steps": 60, "decay": 0.8}, None),
        ((20, 30, 50), {"warmup_steps": 61, "decay": 0.8, "shape": "cosine"}, None),
        (
            (20, 30, 50),
            {"warmup_steps": 61, "decay": 0.8},
            "100 steps, of which 61 are warm-up: 39 are left for its decay",
        ),
        ((100, 100), {"warmup_steps": 199}, "200 steps, of which 199 are warm-up: 1 are left for its decay"),
    ],
)
def test_a_learning_rate_without_steps_to_warm_up_or_decay_in_is_reported(
    steps: tuple[int, ...], values: dict[str, Any], misfit: str | None
) -> None:
    rates = {"learning_rate": {"peak": 1e-3} | values}
    caveats = schedule_warnings(ladder(steps, evaluation={"every": 1}, checkpoint={"every": 1}, **rates))
    assert [caveat.partition("; lower")[0] for caveat in caveats] == [f"The ladder trains {misfit}"] * bool(misfit)


@settings(max_examples=60)
@given(
    budget=st.sampled_from([0.05, 0.1, 0.3, 1.0, 2.0]),
    warmup_steps=st.integers(0, 120),
    shape=st.sampled_from(["wsd", "cosine"]),
    span=st.sampled_from(["ladder", "stage"]),
    kind=st.sampled_from(["tokenformer-scratch", "official-growth"]),
)
def test_no_control_ends_at_a_rate_above_half_its_peak_without_a_caveat(
    budget: float, warmup_steps: int, shape: str, span: str, kind: str
) -> None:
    schedule = with_budgets(budget, kind=kind, **rate(warmup_steps, shape=shape, span=span))
    [control] = plan_controls(schedule)
    plans = plan_stages(control.schedule)
    ends = plans if span == "stage" else plans[-1:]
    undecayed = [plan for plan in ends if plan.learning_rate.at(plan.num_steps) > 5e-4]
    assert bool(control_caveats(control.schedule)) or not undecayed


@pytest.mark.parametrize("name", shipped_schedules())
def test_no_shipped_schedule_needs_a_caveat(name: str) -> None:
    assert schedule_warnings(load_schedule(name)) == []


def test_validate_warns_of_a_caveat_and_accepts_the_schedule(tmp_path: Path) -> None:
    path = file_of(tmp_path, schedule_yaml(with_budgets(0.1, **rate(40))))
    out, err = run_here("validate", path)
    assert out.startswith(f"{path}: s is valid")
    assert err == f"{path}: warning: {NO_PEAK}\n"
    out, err = run_here("validate", "--json", path)
    assert json.loads(out)["schedules"][0]["warnings"] == [NO_PEAK]
    assert err == ""
