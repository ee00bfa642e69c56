"""The figures of a run's progress, and the line that a log gets of them."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from growctl.ladder.stage_plans import plan_run
from growctl.run import screen as screen_module
from growctl.run.screen import LadderProgress, Screen, make_screen, view
from growctl.schedule.blocks import Schedule
from growctl.schedule.launch_block import DEVICES, HardwareBlock, known_device, peak_flops
from stages.metrics import Record
from tests.growctl.ladders import ladder

START: Record = {
    "event": "start",
    "step": 0,
    "device": "NVIDIA H100 80GB HBM3",
    "num_devices": 2,
    "precision": "bf16",
    "zero_stage": 1,
}


def train(step: int, **values: Any) -> Record:
    return {"event": "train", "step": step, "loss": 3.5, "tokens_per_second": 128.0, "data_wait_seconds": 0.0} | values


def evaluation(step: int, **values: Any) -> Record:
    figures = {"perplexity": 24.5, "bits_per_byte": 1.5, "point": "interval"}
    return {"event": "evaluation", "step": step, "loss": 3.2} | figures | values


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


def test_a_line_names_both_losses_speed_time_left_and_compute() -> None:
    schedule = ladder(growth={"ramp": 0.5}, evaluation={"every": 12})
    run = progress(schedule, START, evaluation(5), train(10))
    assert run.line() == (
        "stage stage-1 step 10/30: loss 3.5000, validation 3.2000, 128 tokens/s, MFU 0.0%, time left 1m "
        "19s, 3.63e08 of 1.44e09 FLOPs"
    )


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


def test_a_line_before_the_first_evaluation_says_so() -> None:
    assert "validation not measured yet" in progress(ladder(), START, train(40), stage="stage-2").line()


def test_a_validation_loss_that_is_not_finite_is_not_taken_for_one_not_measured_yet() -> None:
    run = progress(ladder(), START, evaluation(5), evaluation(10, loss=None, perplexity=None), train(12))
    assert "loss 3.5000, validation not finite, " in run.line()
    got = io.StringIO()
    Console(file=got, width=120).print(view(run, 120))
    assert got.getvalue().count("not finite") == 2


def test_a_release_counts_in_the_compute() -> None:
    schedule = ladder((20, 30), releases="all", learning_rate={"peak": 1e-3, "warmup_steps": 2, "decay": 0.1})
    run = progress(schedule, START, train(1), stage="stage-1")
    small, release, large = run.stages.values()
    assert run.flops == small.plan.flops.total + release.plan.flops.total + large.plan.step_flops.total


def test_a_stage_that_a_flat_loss_ended_early_counts_with_the_steps_it_took() -> None:
    run = progress(ladder((20, 30)), stage="stage-1")
    before = run.all_flops
    run.stages["stage-0"].step = 12
    assert run.stages["stage-0"].num_steps == 12
    assert run.all_flops == before - 8 * run.stages["stage-0"].plan.step_flops.total


def test_the_ladders_time_follows_from_its_flops_at_the_present_speed() -> None:
    run = progress(ladder((20, 30, 50)), train(10))
    now, later = run.stages["stage-1"], run.stages["stage-2"]
    ratio = later.plan.step_flops.total / now.plan.step_flops.total
    assert run.seconds_left == pytest.approx(20 + 50 * ratio)
    assert progress(ladder()).seconds_left is None


def test_the_mfu_is_the_share_of_the_peak_of_all_devices_and_unknown_without_one() -> None:
    stage = progress(ladder(), START, train(10)).stages["stage-1"]
    speed = stage.plan.step_flops.total  # one step a second
    assert stage.mfu(HardwareBlock()) == pytest.approx(speed / (2 * 989e12))
    assert stage.mfu(HardwareBlock.model_validate({"flops": "1T"})) == pytest.approx(speed / 2e12)
    stage.update(START | {"device": "CPU AMD EPYC"})
    assert stage.mfu(HardwareBlock()) is None


def test_a_peak_is_the_schedules_or_that_of_the_reported_device() -> None:
    assert peak_flops(None, "NVIDIA H100 80GB HBM3", "fp32") == 67e12
    assert peak_flops(500e12, "NVIDIA H100 80GB HBM3", "bf16") == 500e12
    assert peak_flops(None, "CPU AMD EPYC", "bf16") is None


def test_the_device_that_plan_assumes_gives_no_mfu_on_another_one() -> None:
    stage = progress(ladder(), START | {"device": "CPU AMD EPYC"}, train(10)).stages["stage-1"]
    assert stage.mfu(HardwareBlock(device="h100")) is None


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GB200", None),
        ("NVIDIA L40", None),
        ("Tesla V100-SXM2-16GB", None),
    ],
)
def test_only_a_device_in_the_table_has_a_peak(name: str, device: str | None) -> None:
    assert known_device(name) == (device and DEVICES[device])


STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "


def test_every_line_of_piped_output_begins_with_the_time_in_utc() -> None:
    got = io.StringIO()
    schedule = ladder()
    screen = make_screen(Console(file=got, width=80))
    screen.run_started("s", None, plan_run(schedule), schedule)
    screen.message("stage small writes:\n    first\n\n    second")
    lines = got.getvalue().splitlines()
    assert len(lines) == 5
    assert all(re.match(STAMP.rstrip(), text) for text in lines)
    assert [re.sub(STAMP, "", text) for text in lines[1:3]] == ["stage small writes:", "    first"]


def test_piped_output_has_a_line_of_progress_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(screen_module.time, "monotonic", lambda: clock[0])
    got, schedule = io.StringIO(), ladder((9000,))
    screen = Screen(Console(file=got, width=80))
    [plan] = plan_run(schedule)
    screen.run_started("s", None, [plan], schedule)
    at: list[float] = []
    for second in range(900):
        clock[0] = 1000.0 + second
        before = got.tell()
        screen.record(plan, train(second))
        at += [second] if got.tell() > before else []
    assert at == [*range(0, 900, 30)]
