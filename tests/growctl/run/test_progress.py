"""The figures of a run's progress, and how logs and live views show them and what else a run prints."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from growctl.ladder.load import parse_schedule
from growctl.ladder.stage_plans import plan_run, plan_stages
from growctl.run import screen as screen_module
from growctl.run.runner import stage_entry
from growctl.run.screen import LadderProgress, Screen, make_screen, view
from growctl.schedule.blocks import Schedule
from growctl.schedule.launch_block import DEVICES, HardwareBlock, known_device
from growctl.text.console import Terminal
from growctl.text.formatting import wrapped
from stages.generate.text_samples import TextRequest, TextSample, TextSamples
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
def test_the_mfu_is_the_share_of_the_peak_of_all_devices(start: Record, hardware: dict[str, Any], peak: float | None):
    stage = progress(ladder(), start, train(10)).stages["stage-1"]
    speed = stage.plan.step_flops.total  # one step a second
    expected = None if peak is None else pytest.approx(speed / peak)
    assert stage.mfu(HardwareBlock.model_validate(hardware)) == expected


KNOWN = {
    "NVIDIA H200": "h200",
    H100: "h100",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA B200": "b200",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA L40S": "l40s",
}
UNKNOWN = ("NVIDIA H100 PCIe", f"{H100} MIG 1g.10gb", "NVIDIA H200 NVL", "NVIDIA GB200", "NVIDIA L40", "Tesla V100")


def test_only_a_device_in_the_table_has_a_peak() -> None:
    found = {name: known_device(name) for name in (*KNOWN, *UNKNOWN)}
    assert found == {name: DEVICES[key] for name, key in KNOWN.items()} | dict.fromkeys(UNKNOWN)


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


WRITTEN = "def f(x):\n\tif x:  \n\n        return x  # the ledger of tau in nats, longer than a narrow terminal"


def screen_of(width: int = 40, terminal: bool = False) -> tuple[Screen, io.StringIO]:
    got = io.StringIO()
    return make_screen(Terminal(file=got, width=width, force_terminal=terminal, color_system=None)), got


@pytest.mark.parametrize("terminal", [False, True])
def test_texts_of_models_and_commands_to_copy_are_printed_verbatim(terminal: bool) -> None:
    screen, got = screen_of(terminal=terminal)
    [plan] = plan_run(ladder((20,)))
    sample = TextSample(prompt="def f", text=WRITTEN.removeprefix("def f"), finish_reason="length")
    screen.sampled(plan, TextSamples(checkpoint="0" * 64, request=TextRequest(), samples=(sample,)))
    heading, *lines = got.getvalue().splitlines()
    assert heading.endswith("stage stage-0 writes:")
    assert bool(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", heading)) is not terminal
    assert lines == [f"    {line}" if line else "" for line in WRITTEN.splitlines()]
    text = "To see its cost and results: growctl report small --runs-dir /data/of/a/long/path"
    screen.message(text)
    assert got.getvalue().endswith(f"{text}\n")


def test_a_wrapped_message_keeps_indentation_and_tabs() -> None:
    text = "a first line of words\n    an indented line of words\n\n\ttab\tand words"
    assert wrapped(text, 16) == ("a first line of\nwords\n    an indented\n    line of\n    words\n\n\ttab\tand words")


BIG: dict[str, Any] = {
    "model": {"num_layers": 12, "hidden_size": 768, "num_heads": 12},
    "training": {"sequence_length": 1024, "batch_size": 512},
    "growth": {"ramp": 0.02},
    "evaluation": {"every": 500},
    "stages": [
        {"name": name, "attention_tokens": 576 * size, "ffn_tokens": 2304 * size, "train_steps": 120_000}
        for size, name in enumerate(("0-124m-base", "1-354m-english", "2-757m-english", "3-1.4b-english"), 1)
    ],
    "releases": "all",
    "data": {"source": "text", "vocab_size": 50304},
}
FACTS = ("3.5000, validation 3.2000", "1.23M tokens/s, MFU 85.", "time left 2d 13h", "6.00e19 of 4.33e20 FLOPs")


@pytest.mark.parametrize("width", [80, 200])
def test_no_fact_name_or_number_in_a_live_view_is_cut(width: int) -> None:
    schedule = parse_schedule(ladder().model_dump(exclude_unset=True) | BIG, label="s", default_name="pile_1.4b")
    trained = train(1_234) | {"tokens_per_second": 1_234_567.8}
    run = progress(schedule, START, evaluation(1_000), trained, stage="1-354m-english")
    screen, got = screen_of(width, terminal=True)
    screen.console.print(view(run, width))
    shown = got.getvalue()
    assert [fact for fact in FACTS if fact not in " ".join(shown.split())] == []
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    rows = [line.split() for line in shown.splitlines() if re.search(r" \d+/\d+ .*(done|waiting|training)$", line)]
    assert [row[0] for row in rows] == list(run.stages)
