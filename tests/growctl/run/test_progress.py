"""The figures of a run's progress, the line that a log gets of them, and what the ledger says of a stage."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from growctl.ladder.stage_plans import plan_run, plan_stages
from growctl.run import screen as screen_module
from growctl.run.runner import stage_entry
from growctl.run.screen import LadderProgress, Screen, view
from growctl.schedule.blocks import Schedule
from growctl.schedule.launch_block import DEVICES, HardwareBlock, known_device
from stages.metrics import Record
from tests.growctl.ladders import ladder

H100 = "NVIDIA H100 80GB HBM3"
START: Record = {"event": "start", "step": 0, "device": H100, "num_devices": 2, "precision": "bf16", "zero_stage": 1}
ON_CPU = START | {"device": "CPU AMD EPYC"}


def train(step: int) -> Record:
    return {"event": "train", "step": step, "loss": 3.5, "tokens_per_second": 128.0, "data_wait_seconds": 0.0}


def evaluation(step: int, loss: float | None = 3.2) -> Record:
    figures = {"perplexity": 24.5, "bits_per_byte": 1.5, "point": "interval"}
    return {"event": "evaluation", "step": step, "loss": loss} | figures


def progress(schedule: Schedule, *records: Record, stage: str = "stage-1") -> LadderProgress:
    """A ladder whose stage trains and has written these records; the stages before it are done."""
    found = LadderProgress("s", plan_run(schedule), schedule)
    for other in found.stages.values():
        if other.plan.name == stage:
            break
        other.update({"event": "end", "step": other.plan.num_steps})
        other.state = "done"
    found.stages[stage].state = "training"
    for record in records:
        found.stages[stage].update(record)
    return found


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([evaluation(5), train(10)], "loss 3.5000, validation 3.2000, 128 tokens/s, MFU 0.0%, time left 1m 19s, "),
        ([train(10)], "loss 3.5000, validation not measured yet, 128 tokens/s, "),
        ([evaluation(5), evaluation(9, None), train(10)], "loss 3.5000, validation not finite, 128 tokens/s, "),
    ],
    ids=["measured", "before the first evaluation", "not finite"],
)
def test_a_line_names_both_losses_speed_time_left_and_compute(records: list[Record], said: str) -> None:
    run = progress(ladder(growth={"ramp": 0.5}, evaluation={"every": 12}), START, *records)
    assert run.line().startswith(f"stage stage-1 step 10/30: {said}")
    assert run.line().endswith("3.63e08 of 1.44e09 FLOPs")
    got = io.StringIO()
    Console(file=got, width=120).print(view(run, 120))
    assert ("not finite" in got.getvalue()) == ("not finite" in said)


def test_a_stage_after_one_that_ended_early_has_the_steps_that_are_left_of_a_shared_budget() -> None:
    sizes = [{"name": f"stage-{i}", "attention_tokens": 4 + 4 * i, "ffn_tokens": 8 + 8 * i} for i in range(2)]
    schedule = ladder(
        stages=[sizes[0] | {"until": 0.5}, sizes[1]],
        training={"sequence_length": 16, "batch_size": 8, "ladder_tokens": 100 * 8 * 16},
    )
    run = progress(schedule, START)
    run.stages["stage-0"].step = 20
    assert run.stages["stage-1"].num_steps == 50
    run.plan_again(plan_run(schedule, [20]))
    assert [stage.num_steps for stage in run.stages.values()] == [20, 80]


def test_releases_and_the_steps_that_were_really_taken_count_in_the_compute() -> None:
    schedule = ladder((20, 30), releases="all", learning_rate={"peak": 1e-3, "warmup_steps": 2, "decay": 0.1})
    run = progress(schedule, START, train(1))
    small, release, large = run.stages.values()
    assert run.flops == small.plan.flops.total + release.plan.flops.total + large.plan.step_flops.total
    before, small.step = run.all_flops, 12  # a flat loss ended it early
    assert small.num_steps == 12
    assert run.all_flops == before - 8 * small.plan.step_flops.total


def test_the_ladders_time_follows_from_its_flops_at_the_present_speed() -> None:
    run = progress(ladder((20, 30, 50)), train(10))
    now, later = run.stages["stage-1"], run.stages["stage-2"]
    ratio = later.plan.step_flops.total / now.plan.step_flops.total
    assert run.seconds_left == pytest.approx(20 + 50 * ratio)
    assert progress(ladder()).seconds_left is None


@pytest.mark.parametrize(
    ("start", "hardware", "peak"),
    [
        (START, {}, 2 * 989e12),
        (START, {"flops": "1T"}, 2e12),
        (ON_CPU, {}, None),
        (ON_CPU, {"device": "h100"}, None),  # which `plan` assumes
    ],
)
def test_the_mfu_is_the_share_of_the_peak_of_all_devices(
    start: Record, hardware: dict[str, Any], peak: float | None
) -> None:
    stage = progress(ladder(), start, train(10)).stages["stage-1"]
    speed = stage.plan.step_flops.total  # one step a second
    expected = None if peak is None else pytest.approx(speed / peak)
    assert stage.mfu(HardwareBlock.model_validate(hardware)) == expected


@pytest.mark.parametrize(
    ("device", "names"),
    [
        ("h200", ["NVIDIA H200"]),
        ("h100", [H100]),
        ("a100-40gb", ["NVIDIA A100-SXM4-40GB"]),
        ("a100-80gb", ["NVIDIA A100-SXM4-80GB"]),
        ("b200", ["NVIDIA B200"]),
        ("rtx-4090", ["NVIDIA GeForce RTX 4090"]),
        ("l40s", ["NVIDIA L40S"]),
        (
            None,
            ["NVIDIA H100 PCIe", f"{H100} MIG 1g.10gb", "NVIDIA H200 NVL", "NVIDIA GB200", "NVIDIA L40", "Tesla V100"],
        ),
    ],
)
def test_only_a_device_in_the_table_has_a_peak(device: str | None, names: list[str]) -> None:
    assert {name: known_device(name) for name in names} == dict.fromkeys(names, device and DEVICES[device])


def test_piped_output_has_a_line_of_progress_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(screen_module.time, "monotonic", lambda: clock[0])
    got, schedule = io.StringIO(), ladder((9000,))
    screen = Screen(Console(file=got, width=80), timestamps=True)
    [plan] = plan_run(schedule)
    screen.run_started("s", None, [plan], schedule)
    at: list[float] = []
    for second in range(200):
        clock[0] = 1000.0 + second
        before = got.tell()
        screen.record(plan, train(second))
        at += [second] if got.tell() > before else []
    assert at == [*range(0, 200, 30)]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in got.getvalue().splitlines())


def test_a_stage_is_recorded_with_its_layers_its_batch_and_its_context() -> None:
    first = {"name": "flat", "attention_tokens": 4, "ffn_tokens": 8, "train_steps": 20, "sequence_length": 8}
    deeper = {"name": "deep", "num_layers": 6, "train_steps": 20}
    entries = list(map(stage_entry, plan_stages(ladder(stages=[first, deeper]))))
    found = [(entry.num_layers, entry.sequence_length, entry.tokens_per_step) for entry in entries]
    assert found == [(2, 8, 128), (6, 16, 128)]
