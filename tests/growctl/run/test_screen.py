"""What a run prints stays as it was written: texts of models, names, errors and commands."""

import io
import re

import pytest

from growctl.ladder.stage_plans import plan_run
from growctl.run.screen import Screen, make_screen
from growctl.text.console import Terminal
from growctl.text.formatting import wrapped
from stages.generate.text_samples import TextRequest, TextSample, TextSamples
from tests.growctl.ladders import ladder

WRITTEN = "def f(x):\n\tif x:  \n\n        return x  # the ledger of tau in nats, longer than a narrow terminal"


def screen_of(width: int = 40, terminal: bool = False) -> tuple[Screen, io.StringIO]:
    got = io.StringIO()
    return make_screen(Terminal(file=got, width=width, force_terminal=terminal, color_system=None)), got


def sampled(screen: Screen) -> None:
    [plan] = plan_run(ladder((20,)))
    sample = TextSample(prompt="def f", text=WRITTEN.removeprefix("def f"), finish_reason="length")
    screen.sampled(plan, TextSamples(checkpoint="0" * 64, request=TextRequest(), samples=(sample,)))


@pytest.mark.parametrize("terminal", [False, True])
def test_a_text_that_a_model_wrote_is_printed_verbatim_below_its_heading(terminal: bool) -> None:
    screen, got = screen_of(terminal=terminal)
    sampled(screen)
    heading, *lines = got.getvalue().splitlines()
    assert heading.endswith("stage stage-0 writes:")
    assert bool(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", heading)) is not terminal
    assert lines == [f"    {line}" if line else "" for line in WRITTEN.splitlines()]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_command_to_copy_is_never_broken(terminal: bool) -> None:
    screen, got = screen_of(terminal=terminal)
    text = "To see its cost and results: growctl report small --runs-dir /data/of/a/long/path"
    screen.message(text)
    assert got.getvalue().endswith(f"{text}\n")


def test_a_wrapped_message_keeps_indentation_and_tabs() -> None:
    text = "a first line of words\n    an indented line of words\n\n\ttab\tand words"
    assert wrapped(text, 16) == ("a first line of\nwords\n    an indented\n    line of\n    words\n\n\ttab\tand words")


def test_a_stage_starts_with_its_size_depth_batch_and_context() -> None:
    screen, got = screen_of(200)
    plans = plan_run(ladder((4, 20)))
    screen.run_started("deep", None, plans)
    screen.stage_started(plans[1])
    last, batch = got.getvalue().splitlines()[-1], plans[1].batch
    layers = plans[1].model.num_layers
    assert f" parameters in {layers} layer" in last
    assert f" of {batch.batch_size} x {batch.sequence_length} tokens, " in last


EVALUATED = {"event": "evaluation", "step": 30, "point": "final", "loss": 4.22142, "perplexity": 68.13}


def test_a_line_of_an_evaluation_breaks_between_its_figures_in_a_live_view_and_never_in_a_log() -> None:
    [plan] = plan_run(ladder((20,)))
    for terminal in (False, True):
        screen, got = screen_of(width=80, terminal=terminal)
        screen.run_started("quick", None, [plan])
        screen.record(plan, EVALUATED | {"bits_per_byte": 4.1428})
        *_, line = got.getvalue().partition("step 30: ")
        assert line == (
            "validation loss 4.22142, perplexity 68.130,\n  4.1428 bits/byte (final, float32)\n"
            if terminal
            else "validation loss 4.22142, perplexity 68.130, 4.1428 bits/byte (final, float32)\n"
        )
