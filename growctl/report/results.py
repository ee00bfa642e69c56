"""The results of a report as figures: headlines, seeds, sweeps, and ladders compared with each other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from growctl.report.grouping import BY_SCHEDULE, Grouping, replicates, values_text
from growctl.report.headline import Headline, headline
from growctl.report.ladders import LadderPair, ladder_pairs
from growctl.report.read import RunReport
from growctl.report.replicates import SeedFigures, seed_figures
from growctl.report.sweep import Sweep, sweeps
from stages.counted import counted


@dataclass(frozen=True)
class Results:
    """What the runs of a report show together. Runs that differ in nothing but their seed are one."""

    headlines: tuple[Headline, ...]
    """The result of each ladder, of a sweep that of its best point, in one sentence."""
    seeds: tuple[SeedFigures, ...]
    """The figures of each ladder and its controls over the seeds."""
    sweeps: tuple[Sweep, ...]
    """The sweeps among the runs, or the groups of --group-by."""
    ladders: tuple[LadderPair, ...]
    """Ladders of different schedules compared with each other, without those of one sweep."""


def results(runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE) -> Results:
    """The results of `runs`, grouped as `grouping` says."""
    groups = replicates(runs, grouping)
    figures = [seed_figures(group) for group in groups]
    swept = sweeps(groups, figures)
    return Results(
        tuple(_headlines(figures, swept)), tuple(figures), tuple(swept), tuple(ladder_pairs(groups, figures))
    )


def _headlines(figures: Sequence[SeedFigures], swept: Sequence[Sweep]) -> list[Headline]:
    """Those of the best points of sweeps first, then those of ladders that are in no sweep."""
    by_name = {found.name: found for found in figures}
    said, told = [], set()
    for sweep in swept:
        ladder = sweep.arms[0]
        if not sweep.is_grid:
            continue
        told |= {point.ladder for point in ladder.points}
        if ladder.best:
            point = ladder.best.point
            one = headline(by_name[point.ladder])
            best = f"Best of {counted(len(ladder.points), 'point')}: {values_text(point.values)}."
            said.append(replace(one, sentence=f"{best} {one.sentence}"))
        else:
            why = "Not known yet: none of its runs is finished."
            said.append(Headline(sweep.name, why, "unknown", None, None, None, None, None, ()))
    return said + [headline(found) for found in figures if found.name not in told]
