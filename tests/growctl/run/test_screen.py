"""What a run prints stays as it was written, and what the live view shows is whole in any terminal."""

import io
import re
from typing import Any

import pytest

from growctl.ladder.load import parse_schedule
from growctl.ladder.stage_plans import plan_run
from growctl.run.screen import Screen, make_screen, view
from growctl.schedule.blocks import Schedule
from growctl.text.console import Terminal
from growctl.text.formatting import wrapped
from stages.generate.text_samples import TextRequest, TextSample, TextSamples
from tests.growctl.ladders import ladder

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


@pytest.mark.parametrize(("terminal", "gap"), [(False, " "), (True, "\n  ")], ids=["log", "live view"])
def test_a_line_of_an_evaluation_breaks_between_its_figures_in_a_live_view_and_never_in_a_log(
    terminal: bool, gap: str
) -> None:
    [plan] = plan_run(ladder((20,)))
    screen, got = screen_of(width=80, terminal=terminal)
    screen.run_started("quick", None, [plan])
    loss = {"loss": 4.22142, "perplexity": 68.13, "bits_per_byte": 4.1428}
    screen.record(plan, {"event": "evaluation", "step": 30, "point": "final"} | loss)
    *_, line = got.getvalue().partition("step 30: ")
    assert line == f"validation loss 4.22142, perplexity 68.130,{gap}4.1428 bits/byte (final, float32)\n"


NAMES = ("0-124m-base", "1-354m-english", "2-757m-english", "3-1.4b-english")
SIZES = [
    {"name": name, "attention_tokens": 576 * (i + 1), "ffn_tokens": 2304 * (i + 1), "train_steps": 120_000}
    for i, name in enumerate(NAMES)
]
BIG: dict[str, Any] = {
    "model": {"num_layers": 12, "hidden_size": 768, "num_heads": 12},
    "training": {"sequence_length": 1024, "batch_size": 512},
    "growth": {"ramp": 0.02},
    "evaluation": {"every": 500},
    "stages": SIZES,
    "releases": "all",
    "data": {"source": "text", "vocab_size": 50304},
}
SMALL = ladder(growth={"ramp": 0.5}, evaluation={"every": 500})
LARGE = parse_schedule(SMALL.model_dump(exclude_unset=True) | BIG, label="s", default_name="pile_1.4b")
BOTH = ["3.4568, validation 3.2110", "1.23M tokens/s"]


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize(
    ("schedule", "steps", "device", "facts"),
    [
        (SMALL, {"stage-0": 20, "stage-1": 9}, "CPU X", ["MFU n/a", "time left 0s", "3.49e08 of 1.44e09 FLOPs"]),
        (
            *(LARGE, {NAMES[0]: 120_000, f"{NAMES[0]}/release": 12_000, NAMES[1]: 1_234}, "NVIDIA H100 80GB HBM3"),
            ["MFU 21.3%", "time left 2d 13h", "6.00e19 of 4.33e20 FLOPs"],
        ),
    ],
    ids=["small", "large"],
)
def test_no_fact_name_or_number_in_a_live_view_is_cut(
    schedule: Schedule, steps: dict[str, int], device: str, facts: list[str], width: int
) -> None:
    screen, got = screen_of(width, terminal=True)
    plans = {plan.name: plan for plan in plan_run(schedule)}
    screen.run_started(schedule.name or "", None, list(plans.values()), schedule)
    for name, done in steps.items():
        screen.stage_started(plans[name])
        start = {"event": "start", "device": device, "num_devices": 8, "precision": "bf16", "zero_stage": 1}
        train = {"event": "train", "loss": 3.456789, "tokens_per_second": 1_234_567.8}
        evaluation = {"event": "evaluation", "point": "interval", "loss": 3.210987, "step": done - 1}
        screen.catch_up(plans[name], [start | {"step": 0}, evaluation, train | {"step": done}])
        screen.ladder.stages[name].state = "training"
        if done == plans[name].num_steps:
            screen.stage_finished(plans[name])
    screen.console.print(view(screen.ladder, width))
    shown = got.getvalue()
    assert [fact for fact in [*BOTH, *facts] if fact not in " ".join(shown.split())] == []
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    rows = [line.split() for line in shown.splitlines() if re.search(r" \d+/\d+ .*(done|waiting|training)$", line)]
    assert [row[0] for row in rows] == list(plans)
