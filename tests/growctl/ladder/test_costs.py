"""Stage costs: devices, micro-batches, time, money, disk, epochs, None for what is unknown; and the plan as text."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from growctl.ladder.costs import (
    HEADROOM,
    Measurements,
    StageCost,
    planned_micro_batch,
    stage_memory,
    total_cost,
    trunk_step,
)
from growctl.ladder.datasets import DatasetSizes
from growctl.ladder.plan import make_plan, print_plan
from growctl.ladder.stage_plans import plan_stages
from growctl.launch.resolve import planned_devices
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.text.documents import plain
from stages.checkpoint.directory import outdated
from stages.data.spec import DataSpec
from stages.probe.records import MeasuredSteps
from tests.growctl.ladder import spec_of, write_dataset
from tests.growctl.ladders import ladder
from tests.growctl.text.schemas import assert_follows_schema

GPU = {"flops": "1T", "mfu": 0.5, "memory": "1GB", "price_per_device_hour": 2.0}
TRAINING = {"sequence_length": 16, "batch_size": 48}


def launched(training: dict[str, Any] = TRAINING, **launch: Any) -> Schedule:
    """The small ladder on the hardware given."""
    return ladder(training=training, launch={"devices": 2, "hardware": GPU} | launch)


def costs_of(schedule: Schedule) -> tuple[StageCost, ...]:
    return make_plan(schedule).trunk


@pytest.mark.parametrize(
    ("steps", "decay", "kept"),
    [
        ((20,), 0.5, [11]),
        ((10, 10), 0.5, [None, 1]),
        ((10, 10), 0.9, [3, None]),
        ((2,), 0.5, [None]),
        ((9,), 0, [None]),
    ],
)
def test_the_checkpoint_right_before_the_decay_is_kept(steps: tuple[int, ...], decay: float, kept: list[int]) -> None:
    schedule = ladder(steps, learning_rate={"peak": 1e-3, "warmup_steps": 1, "decay": decay})
    assert [trunk_step(schedule, plan) for plan in plan_stages(schedule)] == kept


def test_time_is_flops_over_throughput_and_money_is_per_device_hour() -> None:
    schedule = launched()
    for cost, plan in zip(costs_of(schedule), plan_stages(schedule), strict=True):
        seconds = plan.flops.total / (2 * 1e12 * 0.5)
        assert (cost.num_devices, cost.mfu) == (2, pytest.approx(0.5))
        assert (cost.wall_seconds, cost.device_seconds) == pytest.approx((seconds, 2 * seconds))
        assert cost.money == pytest.approx(2.0 * 2 * seconds / 3600)
        assert cost.tokens_per_second == pytest.approx(plan.budget_tokens / seconds)


def test_training_in_fp32_is_priced_at_the_devices_fp32_peak() -> None:
    hardware = {"device": "h100", "mfu": 0.4}
    fast, slow = (costs_of(launched(TRAINING | {"precision": p}, hardware=hardware))[0] for p in ("bf16", "fp32"))
    assert slow.wall_seconds == pytest.approx((fast.wall_seconds or 0.0) * 989 / 67)


def test_recomputed_flops_take_time_and_are_no_part_of_model_flops_or_mfu() -> None:
    plain, checkpointed = (make_plan(launched(activation_checkpointing=chosen)) for chosen in ("none", {"every": 2}))
    assert plain.total.recomputed_flops == 0
    assert checkpointed.total.flops == plain.total.flops
    for before, after in zip(plain.stages, checkpointed.stages, strict=True):
        plan = after.plan
        assert plan.recomputed_flops == pytest.approx((plan.flops.parameters + plan.flops.attention) / 3)
        factor = 1 + plan.recomputed_flops / plan.flops.total
        assert after.wall_seconds == pytest.approx(factor * (before.wall_seconds or 0))
        assert after.mfu == pytest.approx(0.5 / factor)
        assert before.memory_bytes
        assert after.memory_bytes
        assert after.memory_bytes.activations < before.memory_bytes.activations


TIMES, SHARE = ("wall_seconds", "device_seconds"), "largest_micro_batch_size"


@pytest.mark.parametrize(
    ("hardware", "unknown"),
    [
        ({}, {*TIMES, "money", SHARE}),
        ({"flops": "1T", "mfu": 0.4}, {"money", SHARE}),
        ({"device": "h100", "mfu": 0.4, "price_per_device_hour": 0}, set()),
    ],
)
def test_missing_hardware_values_leave_costs_and_sums_unknown(hardware: dict, unknown: set[str]) -> None:
    costs, known = costs_of(launched(hardware=hardware)), costs_of(launched())
    for cost in costs:
        assert {name for name in (*TIMES, "money", SHARE) if getattr(cost, name) is None} == unknown
        assert cost.memory_bytes is not None
    mixed = total_cost([costs[0], *known[1:]])
    assert {name for name in (*TIMES, "money") if getattr(mixed, name) is None} == unknown - {SHARE}
    assert mixed.flops == total_cost(known).flops == sum(cost.flops for cost in known)
    if not unknown:
        assert total_cost(costs).money == 0
        assert total_cost(costs).wall_seconds == pytest.approx(sum(cost.wall_seconds or 0 for cost in costs))


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(1, 6), st.sampled_from([1, 6, 7, 48, 60]), st.integers(10**5, 10**8), st.sampled_from([1, 2, 3]))
def test_the_largest_micro_batch_fits_and_divides(devices: int, share: int, memory_bytes: int, zero_stage: int) -> None:
    hardware = {"device": "h100", "memory": memory_bytes}
    training = {"sequence_length": 16, "batch_size": share * devices}
    schedule = launched(training, devices=devices, zero_stage=zero_stage, hardware=hardware)
    plan, planned = plan_stages(schedule)[-1], planned_devices(schedule)
    memory = stage_memory(schedule, plan, devices, planned)
    divisors = [size for size in range(1, share + 1) if share % size == 0]
    largest = max((n for n in divisors if memory.of(n).total <= (1 - HEADROOM) * memory_bytes), default=0)
    assert costs_of(schedule)[-1].largest_micro_batch_size == largest
    assert planned_micro_batch(schedule, plan, devices, planned) == (largest or 1)


@pytest.mark.parametrize(
    ("launch", "micro", "largest"),
    [
        ({"micro_batch_size": 3}, 3, 24),
        ({"hardware": {}}, 24, None),
        ({"hardware": {"memory": "100kB"}}, 1, 0),
        ({"devices": 5}, None, 9),
    ],
)
def test_the_given_micro_batch_or_the_share_is_used(launch: dict[str, Any], micro: int | None, largest: int | None):
    for cost in costs_of(launched(**launch)):
        assert (cost.micro_batch_size, cost.largest_micro_batch_size) == (micro, largest)
        assert (cost.memory_bytes is None) == (micro is None), "the batch does not split evenly"


@pytest.mark.parametrize(("every", "keep", "keep_every"), [(5, 2, None), (5, 100, None), (61, 2, None), (5, 2, 3)])
def test_disk_space_counts_the_final_and_the_kept_checkpoints(every: int, keep: int, keep_every: int | None) -> None:
    checkpoint = {"every": every, "keep": keep, "keep_every": keep_every, "keep_trunk": False}
    schedule = ladder((61,), checkpoint=checkpoint, launch={"devices": 1})
    [cost], spec, saved = costs_of(schedule), spec_of(schedule), range(every, 61, every)
    kept = len(saved) - len(outdated(saved, spec.keep_checkpoints, spec.keep_every_steps))
    within = 12 + {"bf16": 2, "fp32": 4}[planned_devices(schedule).precision("auto")]
    assert cost.checkpoint_bytes == (12 + kept * within) * cost.num_parameters
    trunk = {"checkpoint": checkpoint | {"keep_trunk": True}, "launch": {"devices": 1}}
    [with_trunk], [constant] = (
        costs_of(ladder((61,), **trunk, learning_rate={"peak": 1e-3, "decay": decay})) for decay in (0.2, 0.0)
    )
    assert with_trunk.checkpoint_bytes == cost.checkpoint_bytes + within * cost.num_parameters
    assert constant.checkpoint_bytes == cost.checkpoint_bytes, "there is nothing before a decay"


def test_epochs_use_the_prepared_dataset_or_else_approximate_tokens(tmp_path: Path) -> None:
    data = {"source": "text", "vocab_size": 300}
    schedule = ladder(data=data | {"workers": 4}, controls=[{"kind": "tokenformer-scratch"}])
    approximate, datasets = ladder(data=data | {"approximate_tokens": "1280"}), RunsPaths(tmp_path).datasets

    def epochs(schedule: Schedule) -> list[float | None]:
        return [cost.epochs for cost in make_plan(schedule, tmp_path).trunk]

    assert epochs(schedule) == [None] * 3
    write_dataset(datasets / "other-0", DataSpec(source="other", vocab_size=300), 10)
    (datasets / "broken-1").mkdir()
    (datasets / "broken-1/manifest.json").write_text('{"spec": 3}')
    assert epochs(approximate) == [2.0, 5.0, 10.0]  # 20 + 30 + 50 steps of 128 tokens
    write_dataset(datasets / "text-2", schedule.data, 12_800)
    assert epochs(approximate) == epochs(schedule) == [0.2, 0.5, 1.0]
    control = make_plan(schedule, tmp_path).controls[0].stages[0]
    assert control.epochs == pytest.approx(control.plan.budget_tokens / 12_800)


def test_measured_micro_batches_add_up_to_the_time_of_a_step() -> None:
    schedule = launched(micro_batch_size=6, hardware=GPU | {"mfu": 0.001})
    first, _, third = plan_stages(schedule)
    seconds = {"micro_batch_seconds": 0.5, "last_micro_batch_seconds": 2.0}
    steps = MeasuredSteps(**seconds, num_steps=3, num_devices=2, device="CPU", memory=None)
    measured = Measurements("2 x CPU", 2, {(first.model, 6, 16): steps, (third.model, 12, 16): steps})
    one, two, three = make_plan(schedule, measurements=measured).trunk
    assert one.wall_seconds == pytest.approx(20 * (3 * 0.5 + 2.0))  # 48 sequences: 4 micro-batches of 6 on 2 devices
    assert one.mfu == pytest.approx(first.step_flops.total / (3.5 * 2 * 1e12))
    assert (two.wall_seconds, three.wall_seconds) == (None, None), "not measured, nor reckoned in their place"


def test_releases_count_in_the_totals_and_read_the_text_of_the_next_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = DatasetSizes(is_prepared=False, training_tokens=48 * 16 * 100, sources={})
    monkeypatch.setattr("growctl.ladder.plan.known_sizes", lambda *_: sizes)
    plain, plan = make_plan(launched()), make_plan(launched().model_copy(update={"releases": "all"}))
    epochs = {"stage-0": 0.2, "stage-0/release": 0.22, "stage-1": 0.5, "stage-1/release": 0.53, "stage-2": 1.0}
    assert {cost.name: cost.epochs for cost in plan.stages} == pytest.approx(epochs)
    assert plan.trunk == plain.trunk
    releases = total_cost([cost for cost in plan.stages if cost.branch_of])
    for name in ("flops", "checkpoint_bytes", "wall_seconds", "money"):
        assert getattr(plan.total, name) == pytest.approx(getattr(plain.total, name) + getattr(releases, name))


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
