"""The validation loss of every run as a line of characters, for the terminal. The page has charts."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from growctl.analysis.runs import RunReport
from growctl.content.section import Cell, Column, Rows, Section, Table
from growctl.report.brief import brief_runs
from growctl.runs_dir import CONTROL_INFIX

LEVELS = "▁▂▃▄▅▆▇█"
WIDTH = 24
_HEADROOM = 2.0
"""The top of a line above its lowest loss, relative to the median's distance. It cuts off the start of training."""

_CAPTION = "From the start of training to {}, in equal shares of the FLOPs{}; the first losses may be cut off."


def section(runs: Sequence[RunReport], *, draws: bool = True) -> Section | None:
    """The losses of runs that have been evaluated; None without any. `draws`: with the line of characters."""
    rows, brief = [], brief_runs(runs)
    for run in (run for run in runs if run.points):
        losses = [point.loss for point in run.points]
        state = "finished" if run.finished else run.points[-1].stage
        line = [Cell(sparkline([(point.cumulative_flops, point.loss) for point in run.points]))] if draws else []
        cells = (Cell(_name(run, runs)), *line, Cell(f"{losses[-1]:.4f}", losses[-1]), Cell(state))
        rows.append(Rows((cells,), is_detail=run.finished and run.name not in brief))
    if not rows:
        return None
    are_over = all(run.finished for run in runs)
    title, nats = ("Losses", "nats") if are_over else ("Losses so far", "nats now")
    caption = _CAPTION.format(*(("its end", "") if are_over else ("now", " so far"))) if draws else ""
    drawn = [Column("validation loss")] if draws else []
    columns = [Column("run", is_number=False), *drawn, Column(nats), Column("stage", is_number=False)]
    table = Table("losses-so-far", tuple(columns), tuple(rows), caption)
    return Section("losses-so-far", title, (table,))


def with_losses(
    sections: Sequence[Section], runs: Sequence[RunReport], *, after: str | None, draws: bool = True
) -> list[Section]:
    """`sections` with that of the losses after the one with the key `after`, or first."""
    losses = section(runs, draws=draws)
    place = next((number for number, each in enumerate(sections, 1) if each.key == after), 0)
    return [*sections[:place], *([losses] if losses else []), *sections[place:]]


def _name(run: RunReport, runs: Sequence[RunReport]) -> str:
    """The name of a run; below its ladder, that of a control without the ladder's."""
    if run.control_of is None or all(other.name != run.control_of for other in runs):
        return run.name
    return f"  {run.name.removeprefix(f'{run.control_of}{CONTROL_INFIX}')}"


def sparkline(points: Sequence[tuple[float, float]], width: int = WIDTH) -> str:
    """`points`, each a place and a height, as a line of `width` characters; the higher, the taller.

    A character is the mean of the points in its share of the places, or the one before it if there are none. Points
    that are not finite are left out; all of the same height make a low line.
    """
    known = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not known:
        return ""
    left, right = min(x for x, _ in known), max(x for x, _ in known)
    shares: list[list[float]] = [[] for _ in range(width if right > left else 1)]
    for x, y in known:
        share = (x - left) / (right - left) if right > left else 0.0
        shares[min(len(shares) - 1, int(share * len(shares)))].append(y)
    heights: list[float] = []
    for share_ys in shares:
        heights.append(fmean(share_ys) if share_ys else heights[-1])
    low = min(heights)
    top = min(max(heights), low + _HEADROOM * (median(heights) - low))
    top = top if top > low else max(heights)
    steps = len(LEVELS) - 1
    return "".join(
        LEVELS[0] if top <= low else LEVELS[round(min(1.0, (height - low) / (top - low)) * steps)] for height in heights
    )
