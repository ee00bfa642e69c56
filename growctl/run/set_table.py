"""Formats the runs of a set as tables of 80 columns: what they will cost, and how they ended."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from growctl.run.requests import LadderRequest
from growctl.run.set_costs import Cost
from growctl.run.set_outcomes import final_loss
from growctl.run.sets import parts
from growctl.runs.status import RunStatus
from growctl.runs_dir import CONTROL_INFIX, RunPaths
from growctl.text.colours import BAD, FAINT, GOOD, WARNING
from growctl.text.formatting import scientific, short_count
from growctl.text.name_cell import NameCell

_STYLES = {"finished": GOOD, "failed": BAD, "damaged": BAD, "unreadable": BAD, "stopped": WARNING, "not started": FAINT}


def print_costs(requests: Sequence[LadderRequest], console: Console) -> None:
    """Prints a line for each run, with its controls below it, and the total."""
    table = _table("run, its controls" if any(len(parts(request)) > 1 for request in requests) else "run", "state")
    for heading in ("parameters", "tokens", "FLOPs"):
        table.add_column(heading, justify="right", no_wrap=True)
    costs: list[Cost] = []
    for request in requests:
        for part in parts(request):
            cost = Cost.of(part, request)
            costs.append(cost)
            begun = RunPaths(request.directory(part)).has_begun()
            state = "finished" if not cost.left else "begun" if begun else "new"
            row = (cost.sizes, short_count(cost.tokens), scientific(cost.flops))
            table.add_row(NameCell(_name(part.name, part.control is not None)), state, *row)
    total, left = sum(cost.flops for cost in costs), sum(cost.left for cost in costs)
    table.add_row("total", "", "", short_count(sum(cost.tokens for cost in costs)), scientific(total))
    console.print(table)
    if left < total:
        console.print(f"stages still to train: {scientific(left)} FLOPs", soft_wrap=True)
    if any(request.sources for request in requests):
        console.print("Training that several runs have in common is done once, so they may cost less.", soft_wrap=True)


def print_outcomes(found: Sequence[RunStatus], console: Console) -> None:
    """Prints a line for each run of a set, with its controls below it: its state and its final loss."""
    table = _table("run, its controls" if any(run.control for run in found) else "run", "state")
    table.add_column("final loss", justify="right", no_wrap=True)
    for run in found:
        loss = final_loss(run)
        table.add_row(
            NameCell(_name(run.name, run.control is not None)),
            Text(run.state, style=_STYLES.get(run.state, "")),
            "" if loss is None else f"{loss:.4f}",
        )
    console.print(Text(), table)


def _name(run: str, is_control: bool) -> str:
    return f"  {run.partition(CONTROL_INFIX)[2]}" if is_control else run


def _table(*left: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in left:
        table.add_column(heading, overflow="fold")
    return table
