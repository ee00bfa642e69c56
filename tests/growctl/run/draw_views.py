"""Draws the live view of invented runs on this process's terminal, one at every line of standard input."""

import sys
import time
from typing import Any

from growctl.ladder.load import parse_schedule
from growctl.ladder.stage_plans import plan_run
from growctl.run.screen import LiveScreen
from growctl.schedule.blocks import Schedule
from growctl.text.console import Terminal
from tests.growctl.ladders import ladder

HEAD = {"attempt": 1, "seconds": 9.0}
H100 = {"event": "start", "device": "NVIDIA H100 80GB HBM3", "num_devices": 8, "precision": "bf16", "zero_stage": 1}


def stages(names: list[str], steps: int) -> list[dict[str, Any]]:
    """Stages of a schedule, each larger than the one before."""
    return [
        {"name": name, "attention_tokens": 576 * (i + 1), "ffn_tokens": 2304 * (i + 1), "train_steps": steps}
        for i, name in enumerate(names)
    ]


RARELY = {"every": 500}

BIG: dict[str, Any] = {
    "model": {"num_layers": 12, "hidden_size": 768, "num_heads": 12},
    "training": {"sequence_length": 1024, "batch_size": 512},
    "growth": {"ramp": 0.02},
    "evaluation": RARELY,
}

RUNS: dict[str, tuple[Schedule, dict[str, int], dict[str, Any]]] = {
    "small": (
        ladder(growth={"ramp": 0.5}, evaluation=RARELY),
        {"stage-0": 20, "stage-1": 9},
        H100 | {"device": "CPU AMD EPYC"},
    ),
    "big": (
        parse_schedule(
            ladder().model_dump(exclude_unset=True)
            | BIG
            | {"stages": stages(["0-124m-base", "1-354m-english", "2-757m-english", "3-1.4b-english"], 120_000)}
            | {"releases": "all", "data": {"source": "text", "vocab_size": 50304}},
            label="s",
            default_name="pile_1.4b",
        ),
        {"0-124m-base": 120_000, "0-124m-base/release": 12_000, "1-354m-english": 1_234},
        H100,
    ),
}
"""By name: a schedule, the steps done by stage, and the start record of its workers."""


def show(screen: LiveScreen, schedule: Schedule, steps: dict[str, int], start: dict[str, Any]) -> None:
    """Takes the screen through a run up to the middle of a stage."""
    plans = {plan.name: plan for plan in plan_run(schedule)}
    screen.run_started(schedule.name or "", None, list(plans.values()), schedule)
    for name, done in steps.items():
        plan = plans[name]
        screen.stage_started(plan)
        train = HEAD | {"event": "train", "loss": 3.456789, "tokens_per_second": 1_234_567.8, "data_wait_seconds": 0.0}
        evaluation = HEAD | {"event": "evaluation", "point": "interval", "loss": 3.210987}
        records = [HEAD | start | {"step": 0}, train | {"step": done - 2}, evaluation | {"step": done - 1}]
        screen.catch_up(plan, records)
        screen.record(plan, train | {"step": done})
        if done == plan.num_steps:
            screen.stage_finished(plan)


def main() -> None:
    for run in sys.argv[1:]:
        input()
        console = Terminal()
        console.clear()
        with LiveScreen(console) as screen:
            show(screen, *RUNS[run])
            screen.message(f"drawn: {run}")
            time.sleep(0.1)
    input()


if __name__ == "__main__":
    main()
