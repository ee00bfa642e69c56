"""A plan as tables that fit the terminal and as JSON that adds up."""

import io
from typing import Any

import pytest
from rich.console import Console

from growctl.ladder.controls import plan_controls
from growctl.ladder.costs import Measurements, Plan
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan, print_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.blocks import Schedule
from growctl.schedule.files import shipped_schedules
from growctl.text.documents import plain
from stages.probe.records import MeasuredSteps, StepMemory
from tests.growctl.ladders import ladder
from tests.growctl.text.schemas import assert_follows_schema

CLUSTER = ["launch=slurm", "launch.hardware.price_per_device_hour=2.5", "launch.slurm.gpus=true"]
KNOWN = {"device": "h100", "mfu": 0.4}


def printed(schedule: Schedule, width: int = 100, plan: Plan | None = None) -> str:
    """What `growctl plan` prints, without the indentation of tables."""
    output = io.StringIO()
    print_plan(plan or make_plan(schedule), Console(file=output, width=width))
    return "\n".join(line.strip() for line in output.getvalue().splitlines())


def cells(text: str, start: str) -> list[str]:
    """The words of the first line that starts like this."""
    return next(line.split() for line in text.splitlines() if line.startswith(start))


def headings(text: str) -> list[list[str]]:
    """The words of the headings of each table of stages."""
    return [line.split() for line in text.splitlines() if line.startswith("stage ")]


@pytest.mark.parametrize("hardware", [{}, {"device": "h100", "mfu": 0.5, "price_per_device_hour": 3.0}])
def test_the_json_plan_has_stages_controls_and_totals_that_add_up(hardware: dict[str, Any]) -> None:
    controls = [{"kind": "transformer-scratch", "budgets": [0.5, 1]}]
    plan = plain(make_plan(ladder(launch={"devices": 2, "hardware": hardware}, controls=controls)))
    assert_follows_schema(plan, "plan")
    assert (plan["name"], plan["notes"], len(plan["warnings"])) == ("s", [], 1)
    assert [stage["name"] for stage in plan["stages"]] == ["stage-0", "stage-1", "stage-2"]
    names = [f"s-control-transformer-scratch{budget}" for budget in ("-0.5x", "")]
    assert [(each["kind"], each["name"]) for each in plan["controls"]] == [("transformer-scratch", n) for n in names]
    for run in (plan, *plan["controls"]):
        for stage in run["stages"]:
            assert stage["flops"] == pytest.approx(sum(stage["flops_by_part"].values()))
            assert stage["budget_tokens"] == stage["num_steps"] * 8 * 16
            *parts, (host, host_bytes), (total, total_bytes) = stage["memory_bytes"].items()
            assert (host, host_bytes, total, total_bytes) == ("host", 0, "total", sum(size for _, size in parts))
            assert (stage["wall_seconds"] is None) == (not hardware)
            assert stage["measured"] is None
        for key in run["total"].keys() - {"flops_by_part"}:
            values = [stage[key] for stage in run["stages"]]
            assert run["total"][key] == (None if None in values else pytest.approx(sum(values)))
    for key in ("flops", "checkpoint_bytes", "budget_tokens"):
        totals = sum(run["total"][key] for run in (plan, *plan["controls"]))
        assert plan["total_with_controls"][key] == pytest.approx(totals)


def test_the_json_has_measurements_with_tokens_per_second_and_mfu() -> None:
    schedule = ladder((20,), launch={"devices": 1, "hardware": {"flops": "1T"}})
    [stage] = plan_stages(schedule)
    memory = StepMemory(lasting_bytes=1_000_000, activation_bytes=1_500_000, peak_bytes=3_000_000)
    seconds = {"micro_batch_seconds": 0.25, "last_micro_batch_seconds": 0.5}
    steps = MeasuredSteps(**seconds, num_steps=3, num_devices=1, device="GPU", memory=memory)
    plan = make_plan(schedule, measurements=Measurements("1 x GPU", 1, {(stage.model, 8, 16): steps}))
    [document] = plain(plan)["stages"]
    assert_follows_schema(plain(plan), "plan")
    assert document["wall_seconds"] == pytest.approx(20 * 0.5)
    assert document["measured"] == steps.model_dump()
    assert document["tokens_per_second"] == pytest.approx(8 * 16 / 0.5)
    assert document["mfu"] == pytest.approx(stage.step_flops.total / 0.5e12)
    text = printed(schedule, plan=plan)
    assert "Time, measured on 1 x GPU" in text
    assert "3 MB" in text


@pytest.mark.parametrize("name", list(shipped_schedules()))
@pytest.mark.slow
@pytest.mark.parametrize(("widths", "overrides"), [((100, 40), CLUSTER), ((80,), [])])
def test_a_shipped_plan_fits_its_terminal_and_cuts_nothing(
    name: str, widths: tuple[int, ...], overrides: list[str]
) -> None:
    loaded = load_schedule(name, overrides)
    plan = make_plan(loaded)
    for width in widths:
        text = printed(loaded, width, plan)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        for stage in plan.trunk:
            assert cells(text, stage.name)
        if width == 100:
            assert {"parameters", "tokens", "tokens/p", "FLOPs"} <= set(headings(text)[0])
            words = text.split()
            for control in plan_controls(loaded):
                parts = control.name.removeprefix(f"{loaded.name}-control-").split("-")
                assert all(any(part in word for word in words) for part in parts)


def test_a_plan_without_unknowns_shows_every_column_in_120_columns() -> None:
    text = printed(load_schedule("pile_1.4b", [*CLUSTER, "data.approximate_tokens=300B"]), 120)
    assert [" ".join(words) for words in headings(text)] == [
        "stage parameters embedding tokens tokens/p epochs FLOPs",
        "stage micro-batch largest parameters gradients optimizer activations temporary total",
        "stage devices steps tokens/s MFU time device-hours money checkpoints",
    ]
    assert {"parameters", "tokens", "FLOPs", "memory", "time", "device-hours", "money"} <= set(cells(text, "control "))
    sizes = ["124m", "354m", "757m", "1.4b"]
    rows = [line.split()[0] for line in text.splitlines() if line.startswith((*sizes, "total"))]
    assert rows == [*sizes, "total", *sizes, *sizes, "total"]


def test_unknown_columns_and_totals_of_a_single_stage_are_hidden_and_hints_name_what_is_missing() -> None:
    unknown, known, alone = (
        printed(ladder(**blocks))
        for blocks in ({"launch": {"devices": 2}}, {"launch": {"devices": 2, "hardware": KNOWN}}, {"steps": (20,)})
    )
    shown = {word for words in headings(unknown) for word in words}
    columns = {"time", "money", "MFU", "largest", "epochs", "measured", "device-hours"}
    assert columns & shown == {"recomputed"} & shown == set()
    assert "launch.hardware.device" in unknown
    assert "launch.hardware.device" not in known
    assert "money" not in known
    assert not [line for line in alone.splitlines() if line.startswith("total ") or "Controls" in line]
    remarks = " ".join(printed(ladder(launch={"cluster": "slurm"})).partition("Warnings and notes")[2].split())
    assert remarks.startswith("warning: ")
    assert "The plan is for 1 device on each machine" in remarks


def test_what_is_recomputed_has_a_column_of_its_own_beside_the_models_flops() -> None:
    launch = {"devices": 2, "hardware": KNOWN, "activation_checkpointing": {"every": 2}}
    text = printed(ladder(launch=launch))
    assert headings(text)[0][-1] == "recomputed"
    assert "ZeRO-1, 2 blocks recomputed at a time" in text
    assert "Time, at an MFU of 40% without recomputation" in text


def test_the_largest_numbers_and_longest_names_fit() -> None:
    long = "a" * 100
    stages = [
        {"name": f"{letter}{long[1:]}", "attention_tokens": tokens, "ffn_tokens": 10**6, "train_steps": 987_654_321}
        for letter, tokens in (("a", 10**5), ("b", 2 * 10**5))
    ]
    schedule = ladder(name=long, stages=stages, controls=[{"kind": "transformer-scratch"}], launch={"devices": 1})
    for width in (100, 60):
        text = printed(schedule, width).partition("Warnings and notes")[0]  # sentences keep their words whole
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        assert "transformer-scratch" in text
    assert "987,654,321" in printed(schedule)


def test_tokens_are_counted_from_the_start_of_the_ladder_and_flops_by_stage() -> None:
    plans, text = plan_stages(ladder()), printed(ladder())
    flops, parameters = [plan.flops.total for plan in plans], plans[2].num_parameters
    *row, per_parameter, last_flops = cells(text, "stage-2")
    assert row == ["stage-2", f"{parameters / 1e3:.3g}k", "9.6k", "6.4k"]
    assert float(per_parameter) == pytest.approx(100 * 8 * 16 / parameters, abs=0.05)
    assert float(last_flops) == pytest.approx(flops[2], rel=5e-3)
    _, tokens, total_flops = cells(text, "total")
    assert (tokens, float(total_flops)) == ("12.8k", pytest.approx(sum(flops), rel=5e-3))


@pytest.mark.parametrize(
    ("change", "rate", "differing"),
    [
        ({}, {}, set()),
        ({"sequence_length": 8}, {}, {"batch", "context"}),
        ({"batch_size": 4}, {"batch_scaling": "linear"}, {"batch", "rate"}),
        ({"num_layers": 6}, {}, {"layers"}),
    ],
)
def test_depth_batch_context_and_rate_have_columns_where_stages_differ(
    change: dict[str, Any], rate: dict[str, Any], differing: set[str]
) -> None:
    stages = ladder((20, 20)).model_dump(mode="json")["stages"]
    text = printed(ladder(stages=[stages[0], stages[1] | change], learning_rate={"peak": 1e-3} | rate), 140)
    assert {"layers", "batch", "context", "rate"} & set(headings(text)[0]) == differing
    if "layers" in differing:
        assert [cells(text, name)[1] for name in ("stage-0", "stage-1")] == ["2", "6"]
