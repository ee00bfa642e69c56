"""Formats what runs occupy, and what can be removed, as tables of 80 columns."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from growctl.runs.clean import Removed
from growctl.runs.removable import Cleanup, Kept, Kind, Removable, disk_use
from growctl.runs.storage import Share, Storage
from growctl.runs_dir import CONTROL_INFIX
from growctl.text.colours import WARNING
from growctl.text.formatting import byte_count, duration, scientific
from growctl.text.name_cell import NameCell
from stages.counted import counted

_NOUNS: dict[Kind, tuple[str, str]] = {
    "leftover": ("leftover of a dead process", "leftovers of dead processes"),
    "conversion": ("converted checkpoint", "converted checkpoints"),
    "checkpoint": ("inner checkpoint", "inner checkpoints"),
    "trunk": ("trunk checkpoint", "trunk checkpoints"),
    "dataset": ("dataset that no run uses", "datasets that no run uses"),
}


def print_storage(storage: Storage, console: Console) -> None:
    """Prints a line for each run, with controls below their ladder, then what they share, then the datasets."""
    ladders = {run.name for run in storage.runs}
    heading = "run, its controls" if any(run.control_of in ladders for run in storage.runs) else "run"
    reused = [heading for heading in ("reused",) if any(run.reused_flops for run in storage.runs)]
    table = _table(heading, "state", right=("size", "frees", "FLOPs", *reused, "device time"))
    for run in storage.runs:
        table.add_row(
            NameCell(_name(run.name, run.control_of in ladders)),
            run.state,
            byte_count(run.bytes),
            byte_count(run.freed_bytes),
            "-" if run.flops is None else scientific(run.flops),
            *("-" if run.reused_flops is None else scientific(run.reused_flops) for _ in reused),
            "-" if run.device_seconds is None else duration(run.device_seconds),
        )
    console.print(table)
    for run in storage.runs:
        for note in run.notes:
            console.print(f"{run.name}: {note}", style=WARNING, soft_wrap=True)
    for share in storage.shares:
        console.print(_share(share), soft_wrap=True)
    if storage.datasets:
        datasets = _table("dataset", "used by", right=("size",))
        for dataset in storage.datasets:
            used_by = NameCell(", ".join(dataset.used_by) or "no run")
            datasets.add_row(NameCell(dataset.name), used_by, byte_count(dataset.bytes))
        console.print(Text(), datasets)
    console.print(f"\nin all: {byte_count(storage.bytes)}; files that several share count once", soft_wrap=True)
    console.print("frees: what removing the run would free", soft_wrap=True)
    if reused:
        console.print("reused: FLOPs taken over from other runs, which paid for them", soft_wrap=True)


def print_cleanup(cleanup: Cleanup, console: Console) -> None:
    """Prints what would be removed and how much that frees, then what is kept and why."""
    if cleanup.remove:
        table = _table("run", "stage", "to remove", right=("size",))
        last, ladders = None, {item.run for item in cleanup.remove}
        for (run, stage, kind), group in groupby(cleanup.remove, key=lambda item: (item.run, item.stage, item.kind)):
            items = list(group)
            name = "" if run == last else _name(run, run.partition(CONTROL_INFIX)[0] in ladders) if run else "all runs"
            size = byte_count(disk_use(items).bytes)
            table.add_row(NameCell(name), NameCell(stage or ""), _counted(kind, items), size)
            last = run
        console.print(table)
        use = disk_use(cleanup.remove)
        shared = use.bytes - use.freed_bytes
        rest = f"; {byte_count(shared)} more stay on disk, because other directories share them" if shared else ""
        console.print(f"\nthis would free {byte_count(use.freed_bytes)}{rest}", soft_wrap=True)
    else:
        console.print(f"there is nothing to remove in {cleanup.runs_dir}", soft_wrap=True)
    if cleanup.trunks:
        many = _counted("trunk", cleanup.trunks)
        size = byte_count(disk_use(cleanup.trunks).bytes)
        what = "a finished ladder is extended from the checkpoint right before the learning rate decays"
        console.print(f"kept: {many} ({size}): {what}; --trunks removes them too", soft_wrap=True)
    _print_kept(cleanup.kept, console)


def print_removed(removed: Removed, console: Console) -> None:
    """Prints what was removed and what was not."""
    number = len(removed.paths)
    console.print(
        f"removed {counted(number, 'directory', 'directories')}, which freed {byte_count(removed.freed_bytes)}",
        soft_wrap=True,
    )
    _print_kept(removed.skipped, console)


def _print_kept(kept: Iterable[Kept], console: Console) -> None:
    """Prints a line for each reason and folder."""
    for (_, why), group in groupby(kept, key=lambda item: (item.path.parent, item.why)):
        first, *others = [item.path for item in group]
        more = f" and {len(others)} more" if others else ""
        console.print(Text(f"kept: {first}{more}: {why.removeprefix(f'{first} ')}"), soft_wrap=True)


def _name(run: str, is_below: bool) -> str:
    """A run's name; for a control below its ladder, indented, the part of it after the ladder's."""
    ladder, infix, control = run.partition(CONTROL_INFIX)
    return f"  {control}" if is_below and infix else ladder + infix + control


def _counted(kind: Kind, items: Sequence[Removable]) -> str:
    """Such as `2 converted checkpoints`."""
    return f"{len(items)} {_NOUNS[kind][len(items) != 1]}"


def _share(share: Share) -> str:
    """Such as `a and b share 3 files, 12 MB`."""
    *others, last = [*share.runs, *(["places outside these runs"] if share.elsewhere else [])]
    return f"{', '.join(others)} and {last} share {counted(share.num_files, 'file')}, {byte_count(share.bytes)}"


def _table(*left: str, right: Sequence[str]) -> Table:
    """A table with text columns, then number columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
