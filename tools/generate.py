"""Writes the parts of the documentation that come from code: `make docs` runs `python -m tools.generate`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from omegaconf import OmegaConf

from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan
from growctl.schedule.files import shipped_schedules
from growctl.text.formatting import scientific, short_count
from tools import gpu_tables, keys, multiplier, results
from tools.tables import REPOSITORY, filled

ASSUMED = ["launch.devices=8", "launch.hardware.device=h100", "launch.hardware.mfu=0.4"]
"""The devices of every plan in the table, so that the table is the same on every machine."""

HEADINGS = ("schedule", "sizes", "tokens", "FLOPs", "H100-hours + controls")


def plans_table() -> str:
    """A Markdown table with the plan of every shipped schedule, one per line, but for those that start from a run."""
    whole = [name for name, path in shipped_schedules().items() if "start" not in OmegaConf.load(path)]
    rows = [HEADINGS, ("---",) * len(HEADINGS), *map(_cells, whole)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cells(name: str) -> tuple[str, ...]:
    """The cells of one schedule, one for each of HEADINGS."""
    plan = make_plan(load_schedule(name, ASSUMED), Path("no runs directory"))
    hours = [plan.total.device_seconds or 0.0, *(run.total.device_seconds or 0.0 for run in plan.controls)]
    return (
        f"`{name}`",
        " -> ".join(short_count(stage.num_parameters) for stage in plan.trunk),
        " + ".join(short_count(stage.budget_tokens) for stage in plan.trunk),
        scientific(plan.total.flops),
        " + ".join(map(_hours, (hours[0], sum(hours[1:])) if sum(hours[1:]) >= 3600 else hours[:1])),
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.0f}" if seconds >= 3600 else "< 1"


PARTS: dict[str, Callable[[], str]] = {
    "plans": plans_table,
    "gpu": gpu_tables.gpu_tables,
    **{name: partial(results.results_table, name) for name in results.TABLES},
}
"""Makes every generated part of a page, by the name of its marks."""


def pages() -> dict[Path, str]:
    """The README and every page of docs/ as they should be."""
    paths = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))
    texts = {path: filled(path.read_text(), PARTS) for path in paths}
    return texts | {keys.PAGE: keys.page()}


def main() -> None:
    """Writes what is stale, and prints its paths."""
    for path, text in pages().items():
        if path.read_text() != text:
            path.write_text(text)
            print(path)
    multiplier.draw()
    print(multiplier.PICTURE)


if __name__ == "__main__":
    main()
