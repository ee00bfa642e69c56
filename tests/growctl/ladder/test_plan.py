"""A plan as tables that fit the terminal and as JSON that adds up."""

import io
from typing import Any

import pytest
from rich.console import Console

from growctl.ladder.controls import plan_controls
from growctl.ladder.costs import Measurements, Plan
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan, print_plan
from growctl.ladder.stage_plans import plan_stages, total_flops
from growctl.schedule.blocks import Schedule
from growctl.schedule.files import shipped_schedules
from growctl.text.documents import plain
from stages.probe.records import MeasuredSteps, StepMemory
from tests.growctl.ladders import ladder
from tests.growctl.text.schemas import assert_follows_schema

TOKENS_PER_STEP = 8 * 16
CLUSTER = ["launch=slurm", "launch.hardware.price_per_device_hour=2.5", "launch.slurm.gpus=true"]


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


def test_the_plan_shows_how_deep_each_stage_is_where_they_differ() -> None:
    stages = [{"name": "flat", "attention_tokens": 4, "ffn_tokens": 8, "train_steps": 20}]
    deeper = {"name": "deep", "num_layers": 6, "train_steps": 20}
    grown, alone = ladder(stages=[*stages, deeper]), ladder(stages=stages)
    assert (cells(printed(grown), "flat")[1], cells(printed(grown), "deep")[1]) == ("2", "6")
    assert [entry.num_layers for entry in make_plan(grown).stages] == [2, 6]
    assert "layers" not in printed(alone)


# JSON


@pytest.mark.parametrize("hardware", [{}, {"device": "h100", "mfu": 0.5, "price_per_device_hour": 3.0}])
def test_the_json_plan_has_stages_controls_and_totals_that_add_up(hardware: dict[str, Any]) -> None:
    schedule = ladder(
        launch={"devices": 2, "hardware": hardware}, controls=[{"kind": "transformer-scratch", "budgets": [0.5, 1]}]
    )
    plan = plain(make_plan(schedule))
    assert_follows_schema(plan, "plan")
    assert plan["name"] == "s"
    assert (plan["notes"], len(plan["warnings"])) == ([], 1)
    for stage in [*plan["stages"], *(stage for control in plan["controls"] for stage in control["stages"])]:
        assert stage["flops"] == pytest.approx(sum(stage["flops_by_part"].values()))
        assert stage["budget_tokens"] == stage["num_steps"] * TOKENS_PER_STEP
        *parts, host, total = stage["memory_bytes"].values()
        assert list(stage["memory_bytes"])[-2:] == ["host", "total"]
        assert host == 0
        assert sum(parts) == total
        assert (stage["wall_seconds"] is None) == (not hardware)
        assert stage["measured"] is None
    assert [stage["name"] for stage in plan["stages"]] == ["stage-0", "stage-1", "stage-2"]
    assert [(control["kind"], control["name"]) for control in plan["controls"]] == [
        ("transformer-scratch", "s-control-transformer-scratch-0.5x"),
        ("transformer-scratch", "s-control-transformer-scratch"),
    ]
    totals = [plan["total"], *(control["total"] for control in plan["controls"])]
    for total, run in zip(totals, [plan, *plan["controls"]], strict=True):
        for key in total.keys() - {"flops_by_part"}:
            values = [stage[key] for stage in run["stages"]]
            assert total[key] == (None if None in values else pytest.approx(sum(values)))
    for key in ("flops", "checkpoint_bytes", "budget_tokens"):
        assert plan["total_with_controls"][key] == pytest.approx(sum(total[key] for total in totals))


def test_the_json_has_measurements_with_tokens_per_second_and_mfu() -> None:
    schedule = ladder((20,), launch={"devices": 1, "hardware": {"flops": "1T"}})
    [stage] = plan_stages(schedule)
    steps = MeasuredSteps(
        micro_batch_seconds=0.25,
        last_micro_batch_seconds=0.5,
        num_steps=3,
        num_devices=1,
        device="GPU",
        memory=StepMemory(lasting_bytes=1_000_000, activation_bytes=1_500_000, peak_bytes=3_000_000),
    )
    measured = Measurements("1 x GPU", 1, {(stage.model, 8, stage.batch.sequence_length): steps})
    plan = make_plan(schedule, measurements=measured)
    [document] = plain(plan)["stages"]
    assert_follows_schema(plain(plan), "plan")
    assert document["wall_seconds"] == pytest.approx(20 * 0.5)
    assert document["measured"] == steps.model_dump()
    assert document["tokens_per_second"] == pytest.approx(TOKENS_PER_STEP / 0.5)
    assert document["mfu"] == pytest.approx(stage.step_flops.total / 0.5e12)
    text = printed(schedule, plan=plan)
    assert "Time, measured on 1 x GPU" in text
    assert "3 MB" in text


# Tables


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


def test_what_is_recomputed_has_a_column_of_its_own_beside_the_models_flops() -> None:
    hardware = {"device": "h100", "mfu": 0.4}
    without, text = (
        printed(ladder(launch={"devices": 2, "hardware": hardware, "activation_checkpointing": chosen}))
        for chosen in ("none", {"every": 2})
    )
    assert "recomputed" not in without
    assert headings(text)[0][-1] == "recomputed"
    assert "ZeRO-1, 2 blocks recomputed at a time" in text
    assert "Time, at an MFU of 40% without recomputation" in text


def test_unknown_columns_are_hidden_and_a_hint_names_the_missing_keys() -> None:
    text = printed(ladder(launch={"devices": 2}))
    shown = {word for words in headings(text) for word in words}
    assert not {"time", "money", "MFU", "largest", "epochs", "measured", "device-hours"} & shown
    assert "launch.hardware.device" in text
    known = printed(ladder(launch={"devices": 2, "hardware": {"device": "h100", "mfu": 0.4}}))
    assert "launch.hardware.device" not in known
    assert "money" not in known


def test_a_single_stage_without_controls_has_no_totals_and_no_controls_table() -> None:
    text = printed(ladder((20,)))
    assert not [line for line in text.splitlines() if line.startswith("total ")]
    assert "Controls" not in text


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
    plans = plan_stages(ladder())
    row = cells(printed(ladder()), "stage-2")
    name, parameters, embedding, tokens, per_parameter, flops = row
    assert (name, tokens) == ("stage-2", "6.4k")
    assert parameters == f"{plans[2].num_parameters / 1e3:.3g}k"
    assert embedding == "9.6k"
    assert float(per_parameter) == pytest.approx(100 * TOKENS_PER_STEP / plans[2].num_parameters, abs=0.05)
    assert float(flops) == pytest.approx(plans[2].flops.total, rel=5e-3)
    total = cells(printed(ladder()), "total")
    assert total[1] == "12.8k"
    assert float(total[2]) == pytest.approx(total_flops(plans).total, rel=5e-3)


def test_warnings_and_notes_come_last_and_differ_visibly() -> None:
    text = printed(ladder(launch={"cluster": "slurm"}))
    remarks = " ".join(text.partition("Warnings and notes")[2].split())
    assert remarks.startswith("warning: ")
    assert "The plan is for 1 device on each machine" in remarks


def test_batch_context_and_rate_have_columns_where_stages_differ() -> None:
    def shown(*changes: dict[str, Any], **rate: str) -> set[str]:
        plain = ladder((20, 20)).model_dump(mode="json")["stages"]
        stages = [stage | change for stage, change in zip(plain, changes, strict=True)]
        text = printed(ladder((20, 20), stages=stages, learning_rate={"peak": 1e-3} | rate), 140)
        return set(headings(text)[0])

    assert not {"batch", "context", "rate"} & shown({}, {})
    assert {"batch", "context"} == shown({"sequence_length": 8}, {}) & {"batch", "context", "rate"}
    assert "rate" in shown({"batch_size": 4}, {}, batch_scaling="linear")
