"""The result in one sentence, with its interval; or why there is none yet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from growctl.seeds.grouping import seeds_text
from growctl.seeds.over_seeds import (
    capitalised,
    interval_text,
    lower_by,
    rival,
    rival_needs,
    size_of,
    times_interval,
)
from growctl.seeds.replicates import DIVERGED, LADDER, Arm, Saving, SeedComparison, SeedFigures
from growctl.seeds.statistics import Difference, Interval
from growctl.text.formatting import short_count
from growctl.text.section import Paragraph, Section
from growctl.verdicts.compare import BEST_SCRATCH, EQUAL_FLOPS_TOLERANCE, is_scratch
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
    """The result of the strictest comparison that has one, at equal loss where controls bracket it.

    Whatever speaks against it, or is still missing, is one of its cautions.
    """
    ladder, strictest = figures.arms[0], sorted(figures.comparisons, key=_strictness)
    results = [(comparison, found) for comparison in strictest if (found := _result(figures, ladder, comparison))]
    if not results:
        unknown = Headline(figures.name, _unknown(figures, ladder), "unknown", None, None, None, None, None, ())
        return replace(unknown, cautions=figures.repeated)
    [(decisive, found), *others] = results
    stricter = strictest[: strictest.index(decisive)]
    said = (
        *decisive.cautions,
        *(
            f"Caution: the result is worse against another bar. {other.sentence}"
            for _, other in others
            if _is_worse(other, found)
        ),
        *(f"Caution: {rival(one)} has no result yet{_lacking(one)}." for one in stricter),
        *_missing_arms(figures, decisive),
        *((ONE_SEED,) if len(figures.seeds) == 1 else ()),
        *figures.repeated,
    )
    return replace(found, cautions=tuple(dict.fromkeys(said)))


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


_FAVOUR: dict[Outcome, int] = {"unknown": 0, "lost": 0, "within noise": 1, "even": 1, "won": 2}
"""How much an outcome speaks for growing."""


def _is_worse(other: Headline, found: Headline) -> bool:
    return _FAVOUR[other.outcome] < _FAVOUR[found.outcome]


def _lacking(comparison: SeedComparison) -> str:
    sizes = " and ".join(map(short_count, comparison.missing_sizes))
    return f": no control of {sizes} parameters counts" if sizes else ""


def _missing_arms(figures: SeedFigures, decisive: SeedComparison) -> Iterator[str]:
    """What does not count in a result, and might change it."""
    for arm in figures.arms:
        if seeds := [result.seed for result in arm.results if result.why == DIVERGED]:
            what = "the ladder" if arm.name == LADDER else arm.name
            yield f"Caution: {what} diverged with {seeds_text(seeds)}, which does not count."
    if waiting := _waiting(figures):
        yield f"Caution: {counted(len(waiting), 'control')} without a result might change this: {', '.join(waiting)}."
    if decisive.left_out:
        yield f"Caution: at equal loss, {', '.join(decisive.left_out)} is left out: most seeds do not have it."


def _waiting(figures: SeedFigures) -> list[str]:
    """The controls that count with no seed, each with the reason."""
    arms = (arm for arm in figures.arms if arm.name != LADDER and not arm.losses)
    return [f"{arm.name} ({', '.join(dict.fromkeys(r.why for r in arm.results if r.why))})" for arm in arms]


def _result(figures: SeedFigures, ladder: Arm, comparison: SeedComparison) -> Headline | None:
    """The result of one comparison; None if it is not known."""
    found = _of_loss(figures, ladder, comparison) or _of_flops(figures, ladder, comparison)
    if found is None or not figures.unknown_start or not is_scratch(comparison.control) or found.outcome == "lost":
        return found
    why = "Not known, because nothing says what the start checkpoint cost (start.flops). Without that cost: "
    kind, seeds = comparison.control, found.seeds
    return Headline(figures.name, why + found.sentence, "unknown", None, kind, None, None, None, seeds)


def _of_loss(figures: SeedFigures, ladder: Arm, comparison: SeedComparison) -> Headline | None:
    """The result at equal loss; None if it is not known, or if equal FLOPs say more."""
    found, at_equal_flops = comparison.at_equal_loss, _of_flops(figures, ladder, comparison)
    if found is None:
        return None
    who = _who(ladder, comparison)
    if found.saving is None:
        return _bound(figures, who, comparison, found)
    if found.interval is None and at_equal_flops and at_equal_flops.interval:
        return None
    outcome, known = (
        _outcome(found.saving - 1.0, _less_one(found.interval), EQUAL_FLOPS_TOLERANCE),
        _certainty(times_interval(found.interval) if found.interval else None, comparison.seeds, figures),
    )
    said = f"{rival_needs(comparison, found.saving, who)} ({known})"
    if outcome == "within noise":
        said = f"{said}, which is within the noise between seeds"
    if at_equal_flops and at_equal_flops.interval and at_equal_flops.outcome != outcome:
        said = f"{said}. But {at_equal_flops.sentence.removesuffix('.').replace('At', 'at', 1)}"
    shared = (comparison.control, found.saving, None, found.interval, comparison.seeds)
    return Headline(figures.name, f"{said}.", outcome, "equal loss", *shared)


def _bound(figures: SeedFigures, who: str, comparison: SeedComparison, found: Saving) -> Headline | None:
    """What is known where the controls do not bracket the ladder's loss; None if equal FLOPs say more."""
    if found.edge is None or found.edge.difference.within_noise:
        return None
    seeds = _counted_seeds(comparison.seeds, figures)
    sure = "so the noise is unknown" if found.edge.difference.interval is None else "beyond the noise between seeds"
    shared = (comparison.control, None, None, None, comparison.seeds)
    if found.at_least is not None and found.at_least > 1.0 + EQUAL_FLOPS_TOLERANCE:
        sentence = (
            f"{capitalised(who)} won: even with {found.at_least:.2f}x its FLOPs, {rival(comparison)} did not reach its "
            f"loss ({seeds}, {sure})."
        )
        return Headline(figures.name, sentence, "won", "equal loss", *shared)
    if found.at_most is not None and found.at_most < 1.0 - EQUAL_FLOPS_TOLERANCE:
        sentence = (
            f"{capitalised(who)} lost: with only {found.at_most:.2f}x its FLOPs, {rival(comparison)} reached a lower "
            f"loss ({seeds}, {sure})."
        )
        return Headline(figures.name, sentence, "lost", "equal loss", *shared)
    return None


def _of_flops(figures: SeedFigures, ladder: Arm, comparison: SeedComparison) -> Headline | None:
    """The result at equal FLOPs; None if it is not known."""
    found = comparison.at_equal_flops
    if found is None:
        return None
    mean, interval, seeds = found.difference.mean, found.difference.interval, found.difference.seeds
    outcome = outcome_of_losses(found.difference)
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


def outcome_of_losses(found: Difference) -> Outcome:
    """The outcome of a difference at equal FLOPs, ladder minus control."""
    interval = found.interval
    return _outcome(-found.mean, interval and Interval(-interval.high, -interval.low), _EVEN_NATS)


def _certainty(interval: str | None, seeds: Sequence[int], figures: SeedFigures) -> str:
    if interval is not None:
        return f"95 % interval {interval}, {_counted_seeds(seeds, figures)}"
    if len(seeds) == 1:
        return f"{_counted_seeds(seeds, figures)}, so the noise is unknown"
    return f"{_counted_seeds(seeds, figures)}, no interval, so the noise is unknown"


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
    waiting = _waiting(figures)
    if not waiting:
        return (
            "Not known: no control that counts has the ladder's FLOPs, and their losses are not on both sides of its "
            "loss."
        )
    return f"Not known yet: {len(waiting)} of {counted(len(controls), 'control')} do not count: {', '.join(waiting)}."


def _ladder_state(why: str | None) -> str:
    return DIVERGED if why == DIVERGED else "is not finished"
