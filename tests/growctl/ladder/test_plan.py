"""A plan as tables with the columns that have something to say, and as JSON that adds up."""

import io
from typing import Any

import pytest
from rich.console import Console

from growctl.ladder.plan import make_plan, print_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.blocks import Schedule
from growctl.text.documents import plain
from tests.growctl.ladders import ladder
from tests.growctl.text.schemas import assert_follows_schema


def printed(schedule: Schedule) -> str:
    """What `growctl plan` prints, without the indentation of tables."""
    output = io.StringIO()
    print_plan(make_plan(schedule), Console(file=output, width=100))
    return "\n".join(line.strip() for line in output.getvalue().splitlines())


def cells(text: str, start: str) -> list[str]:
    """The words of the first line that starts like this."""
    return next(line.split() for line in text.splitlines() if line.startswith(start))


@pytest.mark.slow
@pytest.mark.parametrize("hardware", [{}, {"device": "h100", "mfu": 0.5, "price_per_device_hour": 3.0}])
def test_the_json_plan_has_stages_controls_and_totals_that_add_up(hardware: dict[str, Any]) -> None:
    controls = [{"kind": "decoder-scratch", "budgets": [0.5, 1]}]
    plan = plain(make_plan(ladder(launch={"devices": 2, "hardware": hardware}, controls=controls)))
    assert_follows_schema(plan, "plan")
    assert [stage["name"] for stage in plan["stages"]] == ["stage-0", "stage-1", "stage-2"]
    names = [f"s-control-decoder-scratch{budget}" for budget in ("-0.5x", "")]
    assert [(each["kind"], each["name"]) for each in plan["controls"]] == [("decoder-scratch", n) for n in names]
    for run in (plan, *plan["controls"]):
        for stage in run["stages"]:
            assert stage["flops"] == pytest.approx(sum(stage["flops_by_part"].values()))
            assert stage["budget_tokens"] == stage["num_steps"] * 8 * 16
            memory = stage["memory_bytes"]
            assert memory.pop("host") == 0
            assert memory.pop("total") == sum(memory.values())
            assert (stage["wall_seconds"] is None) == (not hardware)
        for key in run["total"].keys() - {"flops_by_part"}:
            values = [stage[key] for stage in run["stages"]]
            assert run["total"][key] == (None if None in values else pytest.approx(sum(values)))
    for key in ("flops", "checkpoint_bytes", "budget_tokens"):
        totals = sum(run["total"][key] for run in (plan, *plan["controls"]))
        assert plan["total_with_controls"][key] == pytest.approx(totals)


def test_tokens_are_counted_from_the_start_of_the_ladder_and_flops_by_stage() -> None:
    plans, text = plan_stages(ladder()), printed(ladder())
    *_, tokens, per_parameter, last_flops = cells(text, "stage-2")
    assert tokens == "6.4k"
    assert float(per_parameter) == pytest.approx(100 * 8 * 16 / plans[2].num_parameters, abs=0.05)
    assert float(last_flops) == pytest.approx(plans[2].flops.total, rel=5e-3)
    _, tokens, total_flops = cells(text, "total")
    assert (tokens, float(total_flops)) == ("12.8k", pytest.approx(sum(plan.flops.total for plan in plans), rel=5e-3))
