"""Writes the parts of the documentation that come from code: `make docs` runs `python -m tools.generate`."""

from collections.abc import Sequence
from pathlib import Path

from growctl.ladder.costs import ControlCost
from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.schedule.files import shipped_schedules
from growctl.text.formatting import byte_count, scientific, short_count
from tools import formats, growth_axes, inspection, judge, keys, performance
from tools.pages import REPOSITORY, filled

PAGE = REPOSITORY / "docs/schedules.md"
ASSUMED = ["launch.devices=8", "launch.hardware.device=h100", "launch.hardware.mfu=0.4"]
"""The devices of every plan in the table, so that the table is the same on every machine."""

HEADINGS = (
    *("schedule", "sizes", "tokens", "tokens per parameter", "FLOPs", "memory per device, last stage", "H100-hours"),
    "controls, H100-hours",
)


def plans_table() -> str:
    """A Markdown table with the plan of every shipped schedule, one per line."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(_cells(name, path) for name, path in shipped_schedules().items())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(name: str, path: Path) -> tuple[str, ...]:
    """The cells of one schedule, one for each of HEADINGS."""
    plan = make_plan(load_schedule(name, ASSUMED), Path("no runs directory"))
    last = plan.trunk[-1]
    assert last.memory_bytes, "a batch that 8 devices cannot share"
    controls = ", ".join(f"{len(runs)} x {kind}" for kind, runs in _by_kind(plan.controls).items())
    hours = sum(run.total.device_seconds or 0.0 for run in plan.controls) / 3600
    return (
        f"[`{name}`](../{path.relative_to(REPOSITORY)})",
        " -> ".join(short_count(stage.num_parameters) for stage in plan.trunk),
        " + ".join(short_count(stage.budget_tokens) for stage in plan.trunk),
        f"{sum(stage.budget_tokens for stage in plan.trunk) / last.num_parameters:.0f}",
        scientific(plan.total.flops),
        f"{byte_count(last.memory_bytes.total)} (micro-batch {last.micro_batch_size})",
        _hours((plan.total.device_seconds or 0.0) / 3600),
        f"{controls}: {_hours(hours)}" if controls else "-",
    )


def with_plans(page: str) -> str:
    """`page` with an up-to-date table between its marks."""
    return filled(page, {"plans": plans_table})


def _by_kind(controls: Sequence[ControlCost]) -> dict[str, list[ControlCost]]:
    kinds: dict[str, list[ControlCost]] = {}
    for control in controls:
        kinds.setdefault(control.kind, []).append(control)
    return kinds


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 1 else "under 1"


def main() -> None:
    """Writes every page and picture, and prints their paths."""
    PAGE.write_text(with_plans(PAGE.read_text()))
    performance.PAGE.write_text(performance.with_tables(performance.PAGE.read_text()))
    inspection.PAGE.write_text(inspection.with_tables(inspection.PAGE.read_text()))
    growth_axes.PAGE.write_text(growth_axes.with_table(growth_axes.PAGE.read_text()))
    judge.PAGE.write_text(judge.with_tables(judge.PAGE.read_text()))
    formats.PAGE.write_text(formats.with_tables(formats.PAGE.read_text()))
    keys.PAGE.write_text(keys.page())
    drawn = [performance.PICTURE] if performance.draw(performance.RESULTS, performance.PICTURE) else []
    ours = (PAGE, performance.PAGE, inspection.PAGE, growth_axes.PAGE, judge.PAGE, formats.PAGE)
    print(*ours, keys.PAGE, *drawn, sep="\n")


if __name__ == "__main__":
    main()
