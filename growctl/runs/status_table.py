"""Formats the status of runs as tables of 80 columns."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from growctl.runs.directory import RunSet
from growctl.runs.status import RunStatus, StageStatus
from growctl.runs_dir import CONTROL_INFIX
from growctl.text.colours import BAD, FAINT, GOOD, WARNING
from growctl.text.first_use import FirstUse
from growctl.text.formatting import duration, short_count
from growctl.text.name_cell import NameCell
from stages.counted import counted, plural

MANY_STEPS = 10_000

LOSSES = {"training\nloss": 8, "validation\nloss": 10}
"""The headings of the losses, with their columns' least widths."""

_STYLES = {
    "running": "bold",
    "finished": GOOD,
    "failed": BAD,
    "stopped": WARNING,
    "not started": FAINT,
    "imported": FAINT,
    "damaged": BAD,
    "unreadable": BAD,
}


def print_runs(runs: Sequence[RunStatus], ladders: Collection[str], console: Console) -> None:
    """Prints one line for each run, with controls below their ladder, and then the notes on all runs.

    A control of one of `ladders` is shown by the part of its name after CONTROL_INFIX.
    """
    below = [run.control_of in ladders for run in runs]
    heading = "control" if all(below) else "run, its controls" if any(below) else "run"
    table = _table(heading, "state", "stage", step=9, **LOSSES, left=7)
    for run, is_below in zip(runs, below, strict=True):
        stage = run.current
        table.add_row(
            NameCell(f"  {run.name.removeprefix(f'{run.control_of}{CONTROL_INFIX}')}" if is_below else run.name),
            Text(run.state, style=_STYLES[run.state]),
            _place(run),
            *(_steps(stage, brief=True), *_losses(stage), _left(stage) if run.state == "running" else ""),
        )
    console.print(table)
    for group, states in _sets(runs).items():
        counts = ", ".join(f"{number} {state}" for state, number in Counter(states).items())
        console.print(Text(f"set {group}, {counted(len(states), 'run')}: {counts}"), soft_wrap=True)
    words = FirstUse()
    for run in runs:
        _print_remarks(run, console, words, named=True)


def print_run(run: RunStatus, console: Console) -> None:
    """Prints one run in full: every stage with its progress, checkpoint and devices."""
    what = f"control ({run.control}) of {run.control_of}" if run.control else "ladder"
    sizes = " -> ".join(
        short_count(stage.num_parameters) for stage in run.stages if stage.num_parameters and not stage.branch_of
    )
    belongs = f", of the set {RunSet(run.group, run.overrides)}" if run.group else ""
    title = Text.assemble(
        (run.name, "bold"), "  ", (run.state, _STYLES[run.state]), f"{_holder(run)}\n{what} {sizes}{belongs}"
    )
    console.print(title, soft_wrap=True)
    table = _table("stage", "state", steps=13, **LOSSES, **{"tokens/s": 8, "left": 7})
    for stage in run.stages:
        speed = stage.tokens_per_second if stage.state not in ("starting", "growing") else None
        table.add_row(
            Text(stage.name),
            stage.state,
            _steps(stage),
            *_losses(stage),
            short_count(speed) if speed else "",
            _left(stage),
            style="bold" if run.state == "running" and stage is run.current else "",
        )
    console.print(table)
    begun = [stage for stage in run.stages if stage.attempts or stage.checkpoint]
    if begun:
        places = _table("stage", "attempts", "last checkpoint", "device")
        for stage in begun:
            saved = f"{stage.checkpoint} ({_ago(stage.checkpoint_at)})" if stage.checkpoint else "none"
            places.add_row(Text(stage.name), str(stage.attempts), saved, Text(stage.device or ""))
        console.print(Text(), places)
    _print_remarks(run, console, FirstUse(), named=False)


def print_details(runs: Sequence[RunStatus], console: Console) -> None:
    """Prints each ladder or named control in full; controls shown with their ladder get one line each below it."""
    shown = {run.name for run in runs if run.control_of not in {other.name for other in runs}}
    for number, run in enumerate(run for run in runs if run.name in shown):
        if number:
            console.print()
        print_run(run, console)
        controls = [other for other in runs if other.control_of == run.name]
        if controls:
            console.print()
            print_runs(controls, [run.name], console)


def _sets(runs: Sequence[RunStatus]) -> dict[str, list[str]]:
    """The states of the ladders of each set of runs."""
    sets: dict[str, list[str]] = {}
    for run in runs:
        if run.group and run.control is None:
            sets.setdefault(run.group, []).append(run.state)
    return sets


def _print_remarks(run: RunStatus, console: Console, words: FirstUse, named: bool) -> None:
    prefix = f"{run.name}: " if named else ""
    if run.reason:
        console.print(Text(f"{prefix}failed: {run.reason}"), style=BAD, soft_wrap=True)
    if run.jobs and run.state != "finished":
        jobs = ", ".join(f"{number} ({name})" for name, number in run.jobs.items())
        asks = f"squeue --jobs={','.join(run.jobs.values())}"
        their = plural(len(run.jobs), "its", "their")
        what = f"{prefix}SLURM {plural(len(run.jobs), 'job')} {jobs}; check {their} state with: {asks}"
        console.print(Text(what), soft_wrap=True)
    for line in _reused(run):
        console.print(Text(f"{prefix}{line}"), soft_wrap=True)
    for note in run.notes:
        console.print(Text(prefix + words.explained(note)), style=WARNING, soft_wrap=True)


def _reused(run: RunStatus) -> list[str]:
    """One line for each run that paid for steps of this one: `reused from other: small 30/30, large 20/60 steps`."""
    stages: dict[str, list[str]] = {}
    for stage in run.stages:
        for payer, steps in stage.reused_steps.items():
            stages.setdefault(payer, []).append(f"{stage.name} {steps}/{stage.num_steps or '?'}")
    return [f"reused from {payer}: {', '.join(parts)} steps" for payer, parts in stages.items()]


def print_commands(runs: Sequence[RunStatus], console: Console) -> None:
    """Prints how to resume or train; a command for several runs is printed once."""
    commands: dict[str, list[RunStatus]] = {}
    for run in runs:
        if run.resume_command:
            commands.setdefault(run.resume_command, []).append(run)
    for command, stopped in commands.items():
        others = f" and {len(stopped) - 1} more" if len(stopped) > 1 else ""
        jobs = ", once none of its jobs is queued or running" if any(run.jobs for run in stopped) else ""
        verb = "train" if all(run.state == "not started" for run in stopped) else "resume"
        console.print(Text(f"to {verb} {stopped[0].name}{others}{jobs}: {command}"), soft_wrap=True)


def _table(*left: str, **right: int) -> Table:
    """A table with text columns, then number columns with their minimum widths."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in left:
        table.add_column(heading, overflow="fold", vertical="bottom")
    for heading, width in right.items():
        longest = max(map(len, heading.split("\n")))
        table.add_column(heading, justify="right", no_wrap=True, min_width=min(width, longest), vertical="bottom")
    return table


def _place(run: RunStatus) -> Text:
    """The current stage and its position, such as `1-164k 2/3`."""
    stage, num_stages = run.current, len(run.stages)
    if stage is None:
        return Text("")
    if num_stages == 1:
        return Text(stage.name)
    if run.state == "finished":
        return Text(f"{num_stages}/{num_stages}")
    return Text(f"{stage.name} {run.stages.index(stage) + 1}/{num_stages}")


def _steps(stage: StageStatus | None, brief: bool = False) -> str:
    """Steps done and planned, such as `20/60`; `brief` shortens large numbers to three figures."""
    if stage is None:
        return ""
    count = short_count if brief and max(stage.step, stage.num_steps or 0) >= MANY_STEPS else str
    return f"{count(stage.step)}/{count(stage.num_steps) if stage.num_steps is not None else '?'}"


def _losses(stage: StageStatus | None) -> tuple[str, str]:
    """The last training loss and the last validation loss of a stage."""
    training, validation = (stage.training_loss, stage.validation_loss) if stage else (None, None)
    return "" if training is None else f"{training:.4f}", "" if validation is None else f"{validation:.4f}"


def _left(stage: StageStatus | None) -> str:
    """The time left, or the state of a stage that does not train yet."""
    if stage is None:
        return ""
    if stage.seconds_left is not None:
        return duration(stage.seconds_left)
    return stage.state if stage.state in ("starting", "growing") else ""


def _holder(run: RunStatus) -> str:
    """The process that holds the run, since when, and when its workers last wrote a record."""
    if run.since is None:
        return ""
    elsewhere = f" on {run.host}" if run.host else " on another machine or in another container"
    where = "" if run.here else elsewhere
    process = f"process {run.process}{where}" if run.process else f"a process{where}"
    stage = run.current
    word = f", last record {_ago(stage.last_record_at)}" if stage and stage.last_record_at else ""
    return f" since {datetime.fromisoformat(run.since).astimezone():%Y-%m-%d %H:%M} ({process}{word})"


def _ago(moment: str | None) -> str:
    if moment is None:
        return "?"
    return f"{duration((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())} ago"
