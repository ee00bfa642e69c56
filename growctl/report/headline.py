"""The result in one sentence, with its interval; or why there is none yet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from growctl.content.section import Paragraph, Section
from growctl.report.compare import BEST_SCRATCH, EQUAL_FLOPS_TOLERANCE, is_scratch
from growctl.report.over_seeds import (
    capitalised,
    interval_text,
    lower_by,
    rival,
    rival_needs,
    size_of,
    times_interval,
)
from growctl.report.replicates import LADDER, Arm, Saving, SeedComparison, SeedFigures
from growctl.report.seeds import Interval
from growctl.text.formatting import short_count
from stages.counted import counted

Outcome = Literal["won", "lost", "even", "within noise", "unknown"]

_EVEN_NATS = 0.0005
"""A difference that the report prints as 0.000 nats."""

ONE_SEED = "Caution: with one seed, a small difference may be chance. `growctl run SCHEDULE --seeds 0,1,2` trains more."


@dataclass(frozen=True)
class Headline:
    """The result for ladders that differ in nothing but their seed."""

    ladder: str
    """The ladder's name, or the set's."""
    sentence: str
    outcome: Outcome
    """`won` and `lost`: of growing. With one seed, they may be noise."""
    measure: Literal["equal loss", "equal flops"] | None
    """What decides; None if nothing is known."""
    against: str | None
    """The kind of control that decides: the strictest one that has a result."""
    saving: float | None
    """At equal loss: the controls' FLOPs / the ladder's; None if not known."""
    loss_difference: float | None
    """At equal FLOPs: ladder minus control, in nats per token; None if not known, or if equal loss decides."""
    interval: Interval | None
    """95 %, of whichever of the two decides; None if the noise is not known."""
    seeds: tuple[int, ...]
    """The seeds that count."""
    cautions: tuple[str, ...] = ()
    """What may make the result worth less, one sentence each."""


def headline(figures: SeedFigures) -> Headline:
    """The result of the strictest comparison that has one, at equal loss where controls bracket it."""
    ladder = figures.arms[0]
    for comparison in sorted(figures.comparisons, key=_strictness):
        found = _of_loss(figures, ladder, comparison) or _of_flops(figures, ladder, comparison)
        if found:
            one_seed = (ONE_SEED,) if len(figures.seeds) == 1 else ()
            return replace(found, cautions=(*comparison.cautions, *one_seed, *figures.repeated))
    unknown = Headline(figures.name, _unknown(figures, ladder), "unknown", None, None, None, None, None, ())
    return replace(unknown, cautions=figures.repeated)


def section(headlines: Sequence[Headline]) -> Section | None:
    """The results, one sentence each, with what may make them worth less below; None without a ladder.

    The caution that there is one seed comes once, at the end.
    """
    parts = []
    for one in headlines:
        name = f"{one.ladder}: " if len(headlines) > 1 else ""
        cautions = (Paragraph(text, "note") for text in one.cautions if text != ONE_SEED)
        parts += [Paragraph(name + one.sentence, "strong"), *cautions]
    if any(ONE_SEED in one.cautions for one in headlines):
        parts.append(Paragraph(ONE_SEED, "note"))
    return Section("headline", "Result", tuple(parts)) if parts else None


def _strictness(comparison: SeedComparison) -> tuple[int, float]:
    """Sorts the strictest bar first: the best size, then from scratch, then other ways to grow."""
    rank = 0 if comparison.control == BEST_SCRATCH else 1 if is_scratch(comparison.control) else 2
    return rank, -(comparison.num_parameters or 0)


def _of_loss(figures: SeedFigures, ladder: Arm, comparison: SeedComparison) -> Headline | None:
    """The result at equal loss; None if it is not known."""
    found = comparison.at_equal_loss
    if found is None:
        return None
    who = _who(ladder, comparison)
    if found.saving is None:
        return _bound(figures, who, comparison, found)
    outcome, known = (
        _outcome(found.saving - 1.0, _less_one(found.interval), EQUAL_FLOPS_TOLERANCE),
        _certainty(times_interval(found.interval) if found.interval else None, comparison.seeds, figures),
    )
    said = f"{rival_needs(comparison, found.saving, who)} ({known})"
    if outcome == "within noise":
        said = f"{said}, which is within the noise between seeds"
    shared = (comparison.control, found.saving, None, found.interval, comparison.seeds)
    return Headline(figures.name, f"{said}.", outcome, "equal loss", *shared)


def _bound(figures: SeedFigures, who: str, comparison: SeedComparison, found: Saving) -> Headline | None:
    """What is known where the controls do not bracket the ladder's loss; None if equal FLOPs say more."""
    seeds = _counted_seeds(comparison.seeds, figures)
    if found.at_least is not None and found.at_least > 1.0 + EQUAL_FLOPS_TOLERANCE:
        sentence = (
            f"{capitalised(who)} won: even with {found.at_least:.2f}x its FLOPs, {rival(comparison)} did not reach its "
            f"loss ({seeds})."
        )
        return Headline(figures.name, sentence, "won", "equal loss", comparison.control, *(None,) * 3, comparison.seeds)
    if found.at_most is not None and found.at_most < 1.0 - EQUAL_FLOPS_TOLERANCE:
        sentence = (
            f"{capitalised(who)} lost: with only {found.at_most:.2f}x its FLOPs, {rival(comparison)} reached a lower "
            f"loss ({seeds})."
        )
        return Headline(
            figures.name, sentence, "lost", "equal loss", comparison.control, *(None,) * 3, comparison.seeds
        )
    return None


def _of_flops(figures: SeedFigures, ladder: Arm, comparison: SeedComparison) -> Headline | None:
    """The result at equal FLOPs; None if it is not known."""
    found = comparison.at_equal_flops
    if found is None:
        return None
    mean, interval, seeds = found.difference.mean, found.difference.interval, found.difference.seeds
    outcome = _outcome(-mean, interval and Interval(-interval.high, -interval.low), _EVEN_NATS)
    sentence = f"At equal FLOPs, {_who(ladder, comparison)} {lower_by(mean, 3)} {rival(comparison)}"
    shown = size_of(found.difference)
    known = _certainty(interval_text(shown, 3) if shown else None, seeds, figures)
    noise = ", which is within the noise between seeds" if outcome == "within noise" else ""
    shared = (comparison.control, None, mean, interval, seeds)
    return Headline(figures.name, f"{sentence} ({known}){noise}.", outcome, "equal flops", *shared)


def _who(ladder: Arm, comparison: SeedComparison) -> str:
    size = f"{short_count(ladder.num_parameters or 0)} parameters"
    return f"growing to {size}" if is_scratch(comparison.control) else "this ladder"


def _less_one(interval: Interval | None) -> Interval | None:
    return interval and Interval(interval.low - 1.0, interval.high - 1.0)


def _outcome(gain: float, interval: Interval | None, even: float) -> Outcome:
    """The outcome of a gain, negative where growing lost, with its interval; less than `even` is no difference."""
    if interval and 0.0 in interval and max(-interval.low, interval.high) > even:
        return "within noise"
    if abs(gain) <= even:
        return "even"
    return "won" if gain > 0.0 else "lost"


def _certainty(interval: str | None, seeds: Sequence[int], figures: SeedFigures) -> str:
    if interval is not None:
        return f"95 % interval {interval}, {_counted_seeds(seeds, figures)}"
    if len(seeds) == 1:
        return f"{_counted_seeds(seeds, figures)}, so the noise is unknown"
    return f"{_counted_seeds(seeds, figures)}, no interval"


def _counted_seeds(seeds: Sequence[int], figures: SeedFigures) -> str:
    if len(seeds) < len(figures.seeds):
        return f"{len(seeds)} of {counted(len(figures.seeds), 'seed')}"
    return counted(len(seeds), "seed")


def _unknown(figures: SeedFigures, ladder: Arm) -> str:
    """Why no comparison has a result."""
    if not ladder.losses:
        whys = dict.fromkeys(f"{result.run} {_ladder_state(result.why)}" for result in ladder.results)
        return f"Not known yet: {', '.join(whys)}."
    controls = [arm for arm in figures.arms if arm.name != LADDER]
    if not controls:
        return f"Not known: {figures.name} has no controls, so there is nothing to compare it with."
    waiting = [arm for arm in controls if not arm.losses]
    if not waiting:
        return (
            "Not known: no control that counts has the ladder's FLOPs, and their losses are not on both sides of its "
            "loss."
        )
    states = [f"{arm.name} ({', '.join(dict.fromkeys(r.why for r in arm.results if r.why))})" for arm in waiting]
    return f"Not known yet: {len(waiting)} of {counted(len(controls), 'control')} do not count: {', '.join(states)}."


def _ladder_state(why: str | None) -> str:
    return "diverged" if why == "diverged" else "is not finished"
