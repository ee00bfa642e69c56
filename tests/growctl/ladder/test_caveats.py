"""Caveats of controls, and the commands that print them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule, shipped_schedules
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.ladder.warnings import control_caveats, schedule_caveats
from growctl.run.requests import schedule_yaml
from growctl.schedule.blocks import Schedule
from model.config import num_parameters
from tests.growctl.ladders import ladder
from tests.growctl.runs import run_here
from tests.growctl.schedules import file_of

NO_PEAK = (
    "s-control-tokenformer-scratch-0.1x trains 9 steps, no more than the 40 of the warm-up: its learning rate never "
    "reaches its peak."
)


def with_budgets(*budgets: float, kind: str = "tokenformer-scratch", **blocks: Any) -> Schedule:
    return ladder(controls=[{"kind": kind, "budgets": list(budgets)}], name="s", **blocks)


def rate(warmup_steps: int, **others: Any) -> dict[str, Any]:
    return {"learning_rate": {"peak": 1e-3, "warmup_steps": warmup_steps} | others}


def test_a_control_shorter_than_its_warm_up_gets_a_caveat() -> None:
    schedule = with_budgets(0.1, 1.0, **rate(40))
    assert schedule_caveats(schedule) == [NO_PEAK]
    assert NO_PEAK in make_plan(schedule).warnings


def test_a_control_whose_warm_up_takes_most_of_its_decay_gets_a_caveat() -> None:
    assert schedule_caveats(with_budgets(0.5, **rate(40, decay=0.5))) == [
        "s-control-tokenformer-scratch-0.5x trains 45 steps, 40 of them warm-up: its decay takes 5 steps instead of 22."
    ]


def test_a_warm_up_too_long_for_the_ladder_itself_is_one_warning_not_one_for_every_control() -> None:
    schedule = with_budgets(0.1, 1.0, **rate(150))
    assert schedule_caveats(schedule) == [
        "The ladder trains 100 steps, no more than the 150 of the warm-up: its learning rate never reaches its peak; "
        "lower learning_rate.warmup_steps (now 150) or learning_rate.decay (now 0.2), or train longer."
    ]
    [control, _] = plan_controls(schedule)
    assert control_caveats(control.kind, control.schedule, 1)


@pytest.mark.parametrize(
    ("steps", "values", "misfit"),
    [
        ((20, 30, 50), {"warmup_steps": 80}, None),
        (
            (20, 30, 50),
            {"warmup_steps": 100},
            "100 steps, no more than the 100 of the warm-up: its learning rate never decays",
        ),
        ((20, 30, 50), {"warmup_steps": 16, "span": "stage"}, None),
        (
            (20, 30, 50),
            {"warmup_steps": 25, "span": "stage"},
            "20 steps, no more than the 25 of the warm-up: its learning rate never reaches its peak (stage stage-0)",
        ),
        ((20, 30, 50), {"warmup_steps": 60, "decay": 0.8}, None),
        ((20, 30, 50), {"warmup_steps": 61, "decay": 0.8, "shape": "cosine"}, None),
        (
            (20, 30, 50),
            {"warmup_steps": 61, "decay": 0.8},
            "100 steps, 61 of them warm-up: its decay takes 39 steps instead of 80",
        ),
        ((100, 100), {"warmup_steps": 199}, "200 steps, 199 of them warm-up: its decay takes 1 step instead of 40"),
    ],
)
def test_a_learning_rate_without_steps_to_warm_up_or_decay_in_is_reported(
    steps: tuple[int, ...], values: dict[str, Any], misfit: str | None
) -> None:
    rates = {"learning_rate": {"peak": 1e-3} | values}
    caveats = schedule_caveats(ladder(steps, evaluation={"every": 1}, checkpoint={"every": 1}, **rates))
    assert [caveat.partition("; lower")[0] for caveat in caveats] == [f"The ladder trains {misfit}"] * bool(misfit)


@pytest.mark.parametrize(
    ("key", "then"),
    [("evaluation", "the loss is only measured at the end"), ("checkpoint", "a stop loses the whole stage")],
)
def test_an_interval_beyond_a_stage_is_reported(key: str, then: str) -> None:
    short, long = ({key: {"every": every}} for every in (19, 40))
    assert schedule_caveats(ladder((20, 30, 50), **short)) == []
    assert schedule_caveats(ladder((20, 30, 50), **long)) == [
        f"{key}.every = 40: is beyond the end of stage-0 (20 steps), stage-1 (30 steps), so {then}; set it to 5."
    ]
    assert schedule_caveats(ladder((1, 30, 50))) == [], "a stage of one step needs no interval"


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
    assert bool(control_caveats(kind, control.schedule, 1)) or not undecayed


def test_a_transformer_far_from_the_ladders_size_gets_a_caveat() -> None:
    [control] = plan_controls(with_budgets(1.0, kind="transformer-scratch"))
    size = num_parameters(plan_stages(control.schedule)[-1].model)
    assert control_caveats("transformer-scratch", control.schedule, round(size / 1.04)) == []
    [caveat] = control_caveats("transformer-scratch", control.schedule, round(size / 1.2))
    assert caveat.startswith("has 1.2 times the parameters of the ladder's last stage")
    assert control_caveats("best-scratch", control.schedule, round(size / 1.2)) == []


@pytest.mark.parametrize("name", shipped_schedules())
def test_no_shipped_schedule_needs_a_caveat(name: str) -> None:
    assert schedule_caveats(load_schedule(name)) == []


def test_validate_warns_of_a_caveat_and_accepts_the_schedule(tmp_path: Path) -> None:
    path = file_of(tmp_path, schedule_yaml(with_budgets(0.1, **rate(40))))
    out, err = run_here("validate", path)
    assert out.startswith(f"{path}: s, 3 stages: ")
    assert err == f"{path}: warning: {NO_PEAK}\n"
    out, err = run_here("validate", "--json", path)
    assert json.loads(out)["schedules"][0]["warnings"] == [NO_PEAK]
    assert err == ""
