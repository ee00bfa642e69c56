"""What two runs may differ in: every key of the resolved schedule counts, except those known not to matter."""

from dataclasses import replace
from typing import Any

import pytest

from growctl.analysis.conditions import control_differs, differences, recipe, same_machines
from growctl.ladder.conditions import comparison_conditions
from growctl.ladder.controls import plan_controls
from growctl.runs.runs import RunReport
from growctl.schedule.blocks import Schedule
from tests.growctl.report.invented_reports import run_report
from tests.growctl.schedules import changed, parse

KINDS = ("tokenformer-scratch", "transformer-scratch", "best-scratch", "single-jump", "official-growth")


def run_of(schedule: Schedule, kind: str | None = None, sizes: tuple[int, ...] = (1000, 2000)) -> RunReport:
    """A finished run of a schedule, as far as its conditions go."""
    run = run_report("run", 2.0, sizes=sizes, kind=kind)
    return replace(run, conditions=comparison_conditions(schedule), seed=schedule.seed)


def keys_in_which_differ(changes: dict[str, Any]) -> set[str]:
    a, b = run_of(parse(changed({}))), run_of(parse(changed(changes)))
    assert (recipe(a) == recipe(b)) == (not {each.key for each in differences(a, b)} - {"seed"})
    return {each.key for each in differences(a, b)}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("anomalies.spikes", "rollback"),
        ("stages.1.ramp_steps", 3),
        ("growth.rewarmup", {"steps": 5}),
        ("evaluation.max_sequences", 7),
        ("optimizer.weight_decay", 0.2),
        ("data.packing", "best_fit"),
        ("seed", 9),
    ],
)
def test_a_key_that_may_change_a_loss_is_a_condition(path: str, value: Any) -> None:
    [key] = keys_in_which_differ({path: value})
    assert key.startswith(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint.every": 5, "trackers": ["tensorboard"], "evaluation.every": 3},
        {"samples": {"prompts": ["a"]}, "controls": [], "training.log_every": 3},
        {"launch.zero_stage": 2, "launch.hardware": {"price_per_device_hour": 2.0}},
        {"stages.0.name": "other", "data.workers": 3},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_known_not_to_matter_is_no_condition(changes: dict[str, Any]) -> None:
    assert keys_in_which_differ(changes) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_control_that_growctl_generates_differs_only_in_what_its_kind_is_for(kind: str) -> None:
    stages = [{"name": f"s{size}", "attention_tokens": size, "ffn_tokens": 8, "train_steps": 20} for size in (4, 6, 8)]
    ladder = parse(changed({"controls": [{"kind": kind}], "stages": stages, "growth.depth": "append"}))
    for plan in plan_controls(ladder):
        sizes = {"single-jump": (1000, 3000), "official-growth": (1000, 2000, 3000)}.get(kind, (3000,))
        run = run_of(ladder, sizes=(1000, 2000, 3000))
        assert control_differs(run, run_of(plan.schedule, kind, sizes)) == [], plan.name
        other = run_of(plan.schedule, kind, sizes)
        other = replace(other, conditions=other.conditions | {"optimizer.weight_decay": 0.5})
        assert control_differs(run, other) == ["optimizer.weight_decay (0.1 against 0.5)"]


@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_control_with_few_steps_reads_every_mixture_of_its_ladder(kind: str) -> None:
    sources = [{"name": name, "source": __file__, "weight": 1.0} for name in ("books", "code")]
    weights = ({"books": 3.0, "code": 1.0}, {"books": 1.0, "code": 3.0}, {"books": 1.0, "code": 1.0})
    stages = [
        {"name": f"s{size}", "attention_tokens": size, "ffn_tokens": 8, "train_steps": steps, "mixture": mixture}
        for size, steps, mixture in zip((4, 6, 8), (1, 1, 200), weights, strict=True)
    ]
    data = {"vocab_size": 300, "mixture": sources}
    ladder = parse(changed({"data": data, "stages": stages, "controls": [{"kind": kind, "budgets": [0.5]}]}))
    for plan in plan_controls(ladder):
        sizes = (1000, 2000, 3000)
        assert control_differs(run_of(ladder, sizes=sizes), run_of(plan.schedule, kind, sizes[-1:])) == [], plan.name


def test_a_control_of_another_shape_or_batch_is_none_of_the_ladders() -> None:
    ladder = parse(changed({"controls": [{"kind": "tokenformer-scratch"}]}))
    [plan] = plan_controls(ladder)
    run = run_of(plan.schedule, "tokenformer-scratch", (2000,))
    for key, value in (("stages.0.ffn_tokens", 99), ("stages.0.batch_size", 4)):
        assert len(control_differs(run_of(ladder), replace(run, conditions=run.conditions | {key: value}))) == 1, key


def test_time_compares_only_on_the_same_machines_launched_alike() -> None:
    run = replace(run_of(parse(changed({}))), machines=(("cpu", 2, "bf16"),))
    assert same_machines([run, run]) is None
    assert "different machines" in str(same_machines([run, replace(run, machines=(("cpu", 4, "bf16"),))]))
    sharded = replace(run, conditions=run.conditions | {"launch.zero_stage": 3})
    assert same_machines([run, sharded]) == "they were launched differently (launch.zero_stage)"
    resumed = replace(run, relaunched=("launch.zero_stage",))
    assert same_machines([resumed, resumed]) == "they were launched differently (launch.zero_stage)"
