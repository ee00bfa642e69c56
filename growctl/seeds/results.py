"""The results of a report as figures: headlines, seeds, sweeps, and ladders compared with each other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from growctl.analysis.runs import RunReport
from growctl.seeds.grouping import BY_SCHEDULE, Grouping, replicates
from growctl.seeds.headline import Headline, headline, outcome_of_losses
from growctl.seeds.ladders import LadderPair, ladder_pairs
from growctl.seeds.replicates import SeedFigures, seed_figures
from growctl.seeds.sweep import Sweep, best_text, sweeps, tuned, tuned_text, untuned


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

    @property
    def cautions(self) -> tuple[str, ...]:
        """Those of all headlines."""
        return tuple(text for one in self.headlines for text in one.cautions)

    @property
    def swept(self) -> frozenset[str]:
        """The names of the figures in `seeds` that are points of a sweep, too."""
        return frozenset(point.ladder for sweep in self.sweeps for point in sweep.arms[0].points)

    @property
    def with_several_seeds(self) -> frozenset[str]:
        """The ladders of which `seeds` has another seed, too."""
        several = (found for found in self.seeds if len(found.seeds) > 1)
        return frozenset(result.run for found in several for result in found.arms[0].results if result.run)


def results(runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE) -> Results:
    """The results of `runs`, grouped as `grouping` says."""
    groups = replicates(runs, grouping)
    figures = [seed_figures(group) for group in groups]
    swept = sweeps(groups, figures)
    return Results(
        tuple(_headlines(figures, swept)), tuple(figures), tuple(swept), tuple(ladder_pairs(groups, figures))
    )


def _tuned_headline(sweep: Sweep, figures: SeedFigures) -> Headline:
    """The result of a sweep, `figures` being those of the ladder's best point.

    Where a control is best at another value than the ladder, each counts at its own best.
    """
    at_the_ladders_best, lacking = headline(figures), untuned(sweep)
    fewer = f"Caution: fewer values were tried for {', '.join(lacking)} than for the ladder, whose best one counts."
    cautions = (*at_the_ladders_best.cautions, *([fewer] if lacking else []))
    elsewhere = [arm.name for arm in sweep.arms if arm.best and arm.best.point.ladder != at_the_ladders_best.ladder]
    if not elsewhere or figures.unknown_start:
        return replace(at_the_ladders_best, cautions=cautions)
    found = max(tuned(sweep), key=lambda control: control.difference.mean, default=None)
    if found is None:
        why = f"Not known: {', '.join(elsewhere)} did best at another value, and no control at its best has its FLOPs."
        return Headline(at_the_ladders_best.ladder, why, "unknown", None, None, None, None, None, (), cautions)
    apart = found.difference
    return Headline(
        *(at_the_ladders_best.ladder, tuned_text(found), outcome_of_losses(apart), "equal flops", found.kind),
        *(None, apart.mean, apart.interval, apart.seeds or at_the_ladders_best.seeds, cautions),
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
        found = ladder.best and by_name[ladder.best.point.ladder]
        if found and found.comparisons:
            one = _tuned_headline(sweep, found)
            said.append(replace(one, sentence=f"{best_text(ladder)} {one.sentence}"))
        else:
            said.append(Headline(sweep.name, best_text(ladder), "unknown", None, None, None, None, None, ()))
    return said + [headline(found) for found in figures if found.name not in told]
