"""Ladders of different schedules on the same data, compared with each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from growctl.analysis.runs import RunReport
from growctl.seeds.grouping import SEED, Replicates, of_data, recipe
from growctl.seeds.over_seeds import interval_text
from growctl.seeds.replicates import SeedFigures
from growctl.seeds.statistics import Difference, difference
from growctl.text.section import Paragraph, Part, Section
from growctl.verdicts.compare import EQUAL_FLOPS_TOLERANCE, Point, flops_to_loss
from growctl.verdicts.family import finished_models

MOST_PAIRS = 10
"""With more pairs, each ladder is compared with the best one alone."""

MEASUREMENT = ("evaluation.", "model.vocab_size", "training.sequence_length")
"""Conditions without which losses are not of the same thing."""


@dataclass(frozen=True)
class LadderPair:
    """Two ladders on the same data."""

    first: str
    second: str
    flops_ratio: float
    """The first one's FLOPs / the second one's."""
    difference: Difference | None
    """The first minus the second, in nats per token; None unless their FLOPs are about equal."""
    saving: float | None
    """FLOPs that the second needs for the first one's loss / the first one's, off the curve of the second one's
    finished models; None if they do not bracket it."""
    why_no_saving: str | None
    differing: tuple[str, ...]
    """The conditions in which they differ."""
    why_not: str | None
    """Why their losses cannot be compared; None if they can."""


def ladder_pairs(groups: Sequence[Replicates], figures: Sequence[SeedFigures]) -> list[LadderPair]:
    """The pairs of ladders with final losses; `figures` come in the order of `groups`.

    The points of one sweep are left to its table, and the seeds of one schedule to theirs.
    """
    ended = [pair for pair in zip(groups, figures, strict=True) if pair[1].arms[0].losses]
    pairs = [(one, other) for one, other in combinations(ended, 2) if not _belong_together(one[0], other[0])]
    if len(pairs) > MOST_PAIRS:
        best = min(ended, key=lambda pair: pair[1].arms[0].mean or 0.0)
        pairs = [(one, other) for one, other in pairs if one is best or other is best]
    return [_pair_of(one, other) for one, other in pairs]


def section(pairs: Sequence[LadderPair]) -> Section | None:
    """The pairs in words; None without any."""
    parts: list[Part] = []
    for pair in pairs:
        parts.append(Paragraph(f"{pair.first} and {pair.second}", "heading"))
        parts += _words(pair)
    return Section("ladders", "Ladders compared", tuple(parts)) if parts else None


def _belong_together(one: Replicates, other: Replicates) -> bool:
    same_set = one.first.group is not None and one.first.group == other.first.group
    return (same_set and one.swept != other.swept) or recipe(one.first) == recipe(other.first)


def _pair_of(one: tuple[Replicates, SeedFigures], other: tuple[Replicates, SeedFigures]) -> LadderPair:
    """The two, in the order in which the second one's curve reaches the loss of the first, if there is one."""
    pair, turned = _pair(*one, *other), _pair(*other, *one)
    return turned if pair.saving is None and turned.saving is not None else pair


def _pair(one: Replicates, its: SeedFigures, other: Replicates, others: SeedFigures) -> LadderPair:
    ratio = (its.arms[0].flops or 0.0) / (others.arms[0].flops or 1.0)
    why_not = _why_not(one.first, other.first)
    is_equal = abs(ratio - 1.0) <= EQUAL_FLOPS_TOLERANCE
    apart = difference(its.arms[0].losses, others.arms[0].losses) if is_equal and not why_not else None
    saving, why = (None, None) if why_not else _saving(its, other, others)
    return LadderPair(its.name, others.name, ratio, apart, saving, why, _differing(one.first, other.first), why_not)


def _why_not(one: RunReport, other: RunReport) -> str | None:
    if one.dataset_fingerprint != other.dataset_fingerprint:
        return "they were trained and validated on different data"
    measured = [path for path in _differing(one, other) if path.startswith(MEASUREMENT)]
    return f"their losses are measured differently: they differ in {', '.join(measured)}" if measured else None


def _differing(one: RunReport, other: RunReport) -> tuple[str, ...]:
    paths = (path for path in sorted(one.conditions | other.conditions) if path != SEED and not of_data(path))
    found = [path for path in paths if one.conditions.get(path) != other.conditions.get(path)]
    if one.precisions and other.precisions and one.precisions != other.precisions:
        found.append("precision")
    return tuple(found)


def _saving(its: SeedFigures, other: Replicates, others: SeedFigures) -> tuple[float | None, str | None]:
    """What the second ladder would spend for the first one's mean loss, as a multiple; or why that is not known."""
    seeds = others.arms[0].losses
    curves = [finished_models(member.ladder) for member in other.members if member.seed in seeds]
    num_models = min(map(len, curves), default=0)
    if num_models < 2:
        return (
            None,
            f"{others.name} has {'one finished model' if num_models else 'no finished model'}, and a curve needs two",
        )
    points = []
    for models in zip(*curves, strict=False):
        losses = [model.final_loss for model in models]
        known = [loss for loss in losses if loss is not None]
        if len(known) == len(losses):
            flops = sum(model.cumulative_flops for model in models) / len(models)
            points.append(Point(models[0].name, models[0].stages[-1].num_parameters, flops, sum(known) / len(known)))
    equal = flops_to_loss(points, its.arms[0].mean or 0.0)
    if equal and equal.bracketed and its.arms[0].flops:
        return equal.flops / its.arms[0].flops, None
    return None, f"the finished models of {others.name} are all on one side of that loss"


def _words(pair: LadderPair) -> list[Part]:
    if pair.why_not:
        return [Paragraph(f"Not compared: {pair.why_not}.")]
    said: list[Part] = []
    if pair.difference:
        mean, interval = pair.difference.mean, pair.difference.interval
        sure = "the noise between seeds is unknown"
        if interval:
            noise = "within" if pair.difference.within_noise else "beyond"
            sure = f"{noise} the noise between seeds, 95 % interval {interval_text(interval)}"
        side = "below" if mean < 0 else "above"
        said.append(
            Paragraph(
                f"At equal FLOPs, {pair.first} ended {abs(mean):.4f} nats {side} {pair.second} ({sure}).", "strong"
            )
        )
    else:
        said.append(
            Paragraph(
                f"At equal FLOPs, there is no result: {pair.first} has {pair.flops_ratio:.2f}x the FLOPs of "
                f"{pair.second}.",
                "strong",
            )
        )
    if pair.saving is not None:
        said.append(
            Paragraph(
                f"At equal loss, {pair.second} needs {pair.saving:.2f}x the FLOPs of {pair.first}, by the curve of its "
                "finished models."
            )
        )
    else:
        said.append(Paragraph(f"At equal loss, there is no figure: {pair.why_no_saving}."))
    if pair.differing:
        said.append(Paragraph(f"They also differ in {', '.join(pair.differing)}.", "note"))
    return said
