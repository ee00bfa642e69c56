"""The report on a screen: a table for each run, then what growing saved, in plain words."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from growctl.report.analysis import RunReport, StageReport, compare, human_flops

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("stage", "parameters", "tokens", "FLOPs", "FLOPs so far", "device time", "perplexity", "jump")
"""What `stage_cells` fills. The jump is in nats a token, all else in the units that it is printed with."""


def human_count(count: float) -> str:
    """A count in three or four figures: 1.31B, 6.0M, 80.5K, 512."""
    for scale, suffix, decimals in ((1e12, "T", 2), (1e9, "B", 2), (1e6, "M", 1), (1e3, "K", 1)):
        if round(count / scale, decimals) >= 1:
            return f"{count / scale:.{decimals}f}{suffix}"
    return f"{count:.0f}"


def human_time(seconds: float) -> str:
    """A duration in its two largest units: 2m 13s, 1h 04m, 3d 07h."""
    if round(seconds) < 60:
        return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02}m" if hours < 24 else f"{hours // 24}d {hours % 24:02}h"


def stage_cells(stage: StageReport) -> tuple[str, ...]:
    """A stage as words, one for each of COLUMNS."""
    started = stage.train_tokens or stage.device_seconds
    perplexity = f"{stage.perplexity:.4g}" if stage.perplexity is not None else "running" if started else "-"
    return (
        *(stage.name, human_count(stage.num_parameters), human_count(stage.train_tokens)),
        *(human_flops(stage.flops), human_flops(stage.cumulative_flops), human_time(stage.device_seconds)),
        *(perplexity, f"{stage.jump:+.1e}" if stage.jump is not None else "-"),
    )


def describe(run: RunReport) -> str:
    """What a run is, beside its name."""
    return f"{run.control}, control of {run.control_of}" if run.control else f"ladder, {run.schedule}"


def replayed_work(run: RunReport) -> str | None:
    """What was spent in vain, in one sentence; None when nothing was."""
    flops = sum(stage.replayed_flops for stage in run.stages)
    device_seconds = sum(stage.replayed_device_seconds for stage in run.stages)
    if not flops and not device_seconds:
        return None
    share = f" ({flops / run.cumulative_flops:.1%})" if flops else ""
    return (
        f"Replayed after interruptions, and counted above: {human_flops(flops)} FLOPs{share}, "
        f"{human_time(device_seconds)} of device time."
    )


def verdicts(runs: Sequence[RunReport]) -> list[tuple[str, tuple[str, ...]]]:
    """For each ladder and each curve of its controls, a heading and sentences."""
    said: list[tuple[str, tuple[str, ...]]] = []
    for ladder in (run for run in runs if run.control is None):
        comparisons = compare(ladder, runs)
        for comparison in comparisons:
            size = human_count(comparison.num_parameters)
            said.append((f"{ladder.name} against {comparison.control}, {size} parameters", comparison.verdict))
        if not comparisons:
            said.append((ladder.name, ("It has no controls, so what growing saved cannot be said.",)))
    return said


def print_report(runs: Sequence[RunReport], console: "Console") -> None:
    """Prints every stage of every run and then the verdict. Made for 80 columns and more."""
    from rich.box import SIMPLE_HEAD
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    for run in runs:
        console.print(Text.assemble((run.name, "bold"), "  ", (describe(run), "dim")))
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for name in COLUMNS:
            if name == "stage":
                table.add_column(name, overflow="fold")
            else:
                table.add_column(name, justify="right", no_wrap=True)
        for stage in run.stages:
            table.add_row(*(Text(cell) for cell in stage_cells(stage)))
        console.print(table)
        replayed = replayed_work(run)
        if replayed:
            console.print(Text(replayed, "dim"))
        console.print()
    for heading, sentences in verdicts(runs):
        console.print(Text(heading, "bold"))
        for sentence in sentences:
            console.print(Padding(Text(sentence), (0, 0, 0, 2)))
        console.print()
