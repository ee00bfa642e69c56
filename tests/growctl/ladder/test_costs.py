"""Stage costs: devices, micro-batches, time, money, disk, epochs, and None for what is unknown."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.costs import (
    HEADROOM,
    Measurements,
    StageCost,
    planned_micro_batch,
    stage_memory,
    total_cost,
)
from growctl.ladder.datasets import DatasetSizes
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.ladder.stage_plans import plan_stages, worker_spec
from growctl.launch.resolve import planned_devices
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from stages.checkpoint.directory import outdated
from stages.data.spec import DataSpec
from stages.probe.records import MeasuredSteps
from tests.growctl.ladder.manifests import write_dataset
from tests.growctl.ladders import ladder

GPU = {"flops": "1T", "mfu": 0.5, "memory": "1GB", "price_per_device_hour": 2.0}
SHARE = "largest_micro_batch_size"
TRAINING = {"sequence_length": 16, "batch_size": 48}


def launched(training: dict[str, Any] = TRAINING, **launch: Any) -> Schedule:
    """The small ladder on the hardware given."""
    return ladder(training=training, launch={"devices": 2, "hardware": GPU} | launch)


def costs_of(schedule: Schedule) -> tuple[StageCost, ...]:
    return make_plan(schedule).trunk


def test_time_is_flops_over_throughput_and_money_is_per_device_hour() -> None:
    schedule = launched()
    for cost, plan in zip(costs_of(schedule), plan_stages(schedule), strict=True):
        assert cost.num_devices == 2
        assert cost.wall_seconds == pytest.approx(plan.flops.total / (2 * 1e12 * 0.5))
        assert cost.wall_seconds and cost.device_seconds  # noqa: PT018
        assert cost.device_seconds == pytest.approx(2 * cost.wall_seconds)
        assert cost.money == pytest.approx(2.0 * cost.device_seconds / 3600)
        assert cost.mfu == pytest.approx(0.5)
        assert cost.tokens_per_second == pytest.approx(plan.budget_tokens / cost.wall_seconds)


def test_recomputed_flops_take_time_and_are_no_part_of_model_flops_or_mfu() -> None:
    plain, checkpointed = (make_plan(launched(activation_checkpointing=chosen)) for chosen in ("none", {"every": 2}))
    assert plain.total.recomputed_flops == 0
    assert checkpointed.total.flops == plain.total.flops
    for before, after in zip(plain.stages, checkpointed.stages, strict=True):
        plan = after.plan
        blocks = plan.flops.parameters + plan.flops.attention
        assert plan.recomputed_flops == pytest.approx(blocks / 3)
        factor = 1 + plan.recomputed_flops / plan.flops.total
        assert after.wall_seconds == pytest.approx(factor * (before.wall_seconds or 0))
        assert after.mfu == pytest.approx(0.5 / factor)
        assert before.memory_bytes
        assert after.memory_bytes
        assert after.memory_bytes.activations < before.memory_bytes.activations


def test_every_stage_and_control_has_its_own_number_of_machines() -> None:
    schedule = ladder(
        training=TRAINING,
        launch={"cluster": "slurm", "devices": 2, "nodes": [1, 2, 4]},
        controls=[{"kind": "tokenformer-scratch"}, {"kind": "single-jump"}, {"kind": "best-scratch"}],
    )
    costs = make_plan(schedule)
    assert [cost.num_devices for cost in costs.trunk] == [2, 4, 8]
    devices = {run.name.partition("control-")[2]: [cost.num_devices for cost in run.stages] for run in costs.controls}
    assert devices == {
        "tokenformer-scratch": [8],
        "single-jump": [2, 8],
        "best-scratch-stage-0": [2],
        "best-scratch-stage-1": [4],
    }


@pytest.mark.parametrize(
    ("hardware", "unknown"),
    [
        ({}, {"wall_seconds", "device_seconds", "money", SHARE}),
        ({"device": "h100"}, {"wall_seconds", "device_seconds", "money"}),
        (
            {"mfu": 0.4, "price_per_device_hour": 2},
            {"wall_seconds", "device_seconds", "money", "largest_micro_batch_size"},
        ),
        ({"flops": "1T", "mfu": 0.4}, {"money", SHARE}),
        ({"device": "h100", "mfu": 0.4, "price_per_device_hour": 0}, set()),
    ],
)
def test_missing_hardware_values_leave_costs_unknown(hardware: dict, unknown: set[str]) -> None:
    for cost in costs_of(launched(hardware=hardware)):
        for name in ("wall_seconds", "device_seconds", "money", SHARE):
            assert (getattr(cost, name) is None) == (name in unknown), name
        assert cost.memory_bytes is not None
    assert costs_of(launched(hardware={"device": "h100", "mfu": 0.4, "price_per_device_hour": 0}))[0].money == 0


def test_a_sum_is_unknown_if_one_term_is_unknown() -> None:
    first, *others = costs_of(launched())
    whole = total_cost([first, *others])
    assert whole.wall_seconds == pytest.approx(sum(cost.wall_seconds or 0 for cost in [first, *others]))
    assert whole.checkpoint_bytes == sum(cost.checkpoint_bytes for cost in [first, *others])
    lacking = costs_of(launched(hardware={}))[0]
    mixed = total_cost([lacking, *others])
    assert (mixed.wall_seconds, mixed.device_seconds, mixed.money) == (None, None, None)
    assert mixed.flops == whole.flops


# Micro-batches


@settings(max_examples=60)
@given(st.integers(1, 6), st.sampled_from([1, 6, 7, 48, 60]), st.integers(10**5, 10**8), st.sampled_from([1, 2, 3]))
def test_the_largest_micro_batch_is_the_largest_divisor_of_the_share_that_fits(
    devices: int, share: int, memory_bytes: int, zero_stage: int
) -> None:
    schedule = launched(
        {"sequence_length": 16, "batch_size": share * devices},
        devices=devices,
        zero_stage=zero_stage,
        hardware={"device": "h100", "memory": memory_bytes},
    )
    plan = plan_stages(schedule)[-1]
    planned = planned_devices(schedule)
    memory = stage_memory(schedule, plan, devices, planned)
    fitting = [
        size
        for size in range(1, share + 1)
        if share % size == 0 and memory.of(size).total <= (1 - HEADROOM) * memory_bytes
    ]
    largest = max(fitting, default=0)
    assert costs_of(schedule)[-1].largest_micro_batch_size == largest
    assert planned_micro_batch(schedule, plan, devices, planned) == (largest or 1)


def test_a_run_uses_the_given_micro_batch_or_its_whole_share_if_memory_is_unknown() -> None:
    given_one = costs_of(launched(micro_batch_size=3))
    assert {cost.micro_batch_size for cost in given_one} == {3}
    assert {cost.largest_micro_batch_size for cost in given_one} == {24}
    assert {cost.micro_batch_size for cost in costs_of(launched(hardware={}))} == {24}
    tight = costs_of(launched(hardware={"memory": "100kB"}))
    assert {cost.largest_micro_batch_size for cost in tight} == {0}
    assert {cost.micro_batch_size for cost in tight} == {1}


def test_a_batch_that_does_not_split_evenly_has_no_micro_batch_and_no_memory() -> None:
    for cost in costs_of(launched(devices=5)):
        assert (cost.micro_batch_size, cost.memory_bytes) == (None, None)
        assert cost.wall_seconds is not None


def test_huge_batches_are_planned_quickly() -> None:
    schedule = launched({"sequence_length": 1, "batch_size": 2**40}, devices=1, hardware={"memory": "1GB"})
    largest = costs_of(schedule)[0].largest_micro_batch_size
    assert largest in {2**power for power in range(10, 20)}


# Disk and data


@pytest.mark.parametrize(
    ("every", "keep", "keep_every"),
    [
        *((5, keep, None) for keep in (2, 100)),
        *((every, 2, None) for every in (60, 61, 500)),
        *((5, *kept) for kept in ((1, 1), (1, 2), (2, 3), (3, 2), (100, 2), (2, 50))),
    ],
)
def test_disk_space_counts_the_final_checkpoint_and_those_that_pruning_leaves(
    every: int, keep: int, keep_every: int | None
) -> None:
    checkpoint = {"every": every, "keep": keep, "keep_every": keep_every, "keep_trunk": False}
    schedule = ladder((61,), checkpoint=checkpoint, launch={"devices": 1})
    [cost] = costs_of(schedule)
    unused = {"directory": "", "dataset": "", "initial": None, "resume": None, "launched_at": 0.0}
    spec = worker_spec(schedule, cost.plan, attempt=1, samples_seen=0, micro_batch_size=1, **unused)
    saved = range(every, 61, every)
    kept = len(saved) - len(outdated(saved, spec.keep_checkpoints, spec.keep_every_steps))
    precision_bytes = {"bf16": 2, "fp32": 4}[planned_devices(schedule).precision("auto")]
    assert cost.checkpoint_bytes == (12 + kept * (12 + precision_bytes)) * cost.num_parameters


def test_a_stage_with_a_decay_counts_the_checkpoint_before_it_unless_it_is_not_kept() -> None:
    sizes = []
    for changes in ({"keep_trunk": False}, {"keep_trunk": True}):
        schedule = ladder((20,), checkpoint={"every": 5} | changes, launch={"devices": 1})
        sizes.append(costs_of(schedule)[0].checkpoint_bytes)
    precision_bytes = {"bf16": 2, "fp32": 4}[planned_devices(schedule).precision("auto")]
    assert sizes[1] - sizes[0] == (12 + precision_bytes) * costs_of(schedule)[0].plan.num_parameters
    constant = ladder((20,), checkpoint={"every": 5}, launch={"devices": 1}, learning_rate={"peak": 1e-3, "decay": 0.0})
    assert costs_of(constant)[0].checkpoint_bytes == sizes[0]


def test_epochs_use_the_prepared_dataset_or_else_approximate_tokens(tmp_path: Path) -> None:
    data = {"source": "text", "vocab_size": 300}
    schedule = ladder(data=data | {"workers": 4}, controls=[{"kind": "tokenformer-scratch"}])
    datasets = RunsPaths(tmp_path).datasets

    def epochs(schedule: Schedule) -> list[float | None]:
        return [cost.epochs for cost in make_plan(schedule, tmp_path).trunk]

    assert epochs(schedule) == [None] * 3
    approximate = ladder(data=data | {"approximate_tokens": "1280"})
    assert epochs(approximate) == [2.0, 5.0, 10.0]  # 20 + 30 + 50 steps of 128 tokens
    write_dataset(datasets / "other-0", DataSpec(source="other", vocab_size=300), 10)
    (datasets / "broken-1").mkdir()
    (datasets / "broken-1/manifest.json").write_text('{"spec": 3}')
    assert epochs(approximate) == [2.0, 5.0, 10.0]
    write_dataset(datasets / "text-2", schedule.data, 12_800)
    assert epochs(approximate) == epochs(schedule) == [0.2, 0.5, 1.0]
    control = make_plan(schedule, tmp_path).controls[0].stages[0]
    assert control.epochs == pytest.approx(control.plan.budget_tokens / 12_800)


# Measured times


def test_measured_micro_batches_add_up_to_the_time_of_a_step() -> None:
    schedule = launched(micro_batch_size=6, hardware=GPU | {"mfu": 0.001})
    first, second, third = plan_stages(schedule)
    steps = MeasuredSteps(
        micro_batch_seconds=0.5, last_micro_batch_seconds=2.0, num_steps=3, num_devices=2, device="CPU", memory=None
    )
    length = first.batch.sequence_length
    measured = Measurements("2 x CPU", 2, {(first.model, 6, length): steps, (third.model, 12, length): steps})
    one, two, three = make_plan(schedule, measurements=measured).trunk
    assert one.wall_seconds == pytest.approx(20 * (3 * 0.5 + 2.0))  # 48 sequences: 4 micro-batches of 6 on 2 devices
    assert one.mfu == pytest.approx(first.step_flops.total / (3.5 * 2 * 1e12))
    assert (two.wall_seconds, three.wall_seconds) == (None, None), "not measured, nor reckoned in their place"
    assert two.plan == second


def test_training_in_fp32_is_priced_at_the_devices_fp32_peak() -> None:
    hardware = {"device": "h100", "mfu": 0.4}
    fast, slow = (
        costs_of(launched(TRAINING | {"precision": precision}, hardware=hardware))[0] for precision in ("bf16", "fp32")
    )
    assert slow.wall_seconds == pytest.approx((fast.wall_seconds or 0.0) * 989 / 67)
    assert [fast.mfu, slow.mfu] == pytest.approx([0.4, 0.4])


def test_importing_plans_imports_no_composition_and_planning_nothing_heavy(tmp_path: Path) -> None:
    arguments = ["plan", "pile_1.4b", "launch=slurm", "launch.offload=optimizer", "--runs-dir", str(tmp_path)]
    code = f"""
import sys
import growctl.ladder.load, growctl.ladder.stage_plans
heavy = {{"torch", "deepspeed", "numpy", "datatrove", "matplotlib", "tokenizers", "jsonschema"}}
assert not (heavy | {{"hydra", "omegaconf"}}) & set(sys.modules)
sys.argv = ["growctl", *{arguments!r}]
from growctl.cli.app import app
try:
    app()
except SystemExit as end:
    assert not end.code
assert not heavy & set(sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert " host" in result.stdout


def test_the_papers_ladder_fits_sixteen_h100s() -> None:
    for cost in costs_of(load_schedule("pile_1.4b", ["launch=slurm"])):
        assert cost.num_devices == 16
        assert cost.memory_bytes
        assert cost.memory_bytes.total < 0.9 * 80e9


def test_releases_have_rows_of_their_own_and_count_in_the_totals() -> None:
    plain, costs = make_plan(launched()), make_plan(launched().model_copy(update={"releases": "all"}))
    assert [cost.name for cost in costs.stages] == [
        *("stage-0", "stage-0/release", "stage-1", "stage-1/release", "stage-2")
    ]
    assert costs.trunk == plain.trunk
    releases = [cost for cost in costs.stages if cost.branch_of]
    extra = total_cost(releases)
    assert costs.total.flops == pytest.approx(plain.total.flops + extra.flops)
    assert costs.total.checkpoint_bytes == plain.total.checkpoint_bytes + extra.checkpoint_bytes
    assert costs.total.wall_seconds and plain.total.wall_seconds  # noqa: PT018
    assert costs.total.wall_seconds > plain.total.wall_seconds


def test_a_release_reads_the_text_that_the_next_stage_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = DatasetSizes(is_prepared=False, training_tokens=48 * 16 * 100, sources={})
    monkeypatch.setattr("growctl.ladder.plan.known_sizes", lambda *_: sizes)
    epochs = [cost.epochs for cost in make_plan(launched().model_copy(update={"releases": "all"})).stages]
    assert epochs == pytest.approx([0.2, 0.22, 0.5, 0.53, 1.0])
