"""What a sweep found, for its ladders and for each of their controls: a table by swept values, and the best value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from growctl.seeds.grouping import SCHEDULE, SEED, Replicates, seeds_text, shown, values_text
from growctl.seeds.over_seeds import interval_text
from growctl.seeds.replicates import DIVERGED, LADDER, Arm, SeedFigures
from growctl.seeds.statistics import Difference, difference
from growctl.text.formatting import scientific
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table
from growctl.verdicts.compare import EQUAL_FLOPS_TOLERANCE


@dataclass(frozen=True)
class SweepPoint:
    """A ladder, or a control, at one point of a sweep, with every seed."""

    ladder: str
    """The name of the ladders, or of their set with the values."""
    values: dict[str, Any]
    """The values of the swept keys, without the seed."""
    arm: Arm


@dataclass(frozen=True)
class Best:
    """The point with the lowest mean loss."""

    point: SweepPoint
    next_best: SweepPoint | None
    """None if no other point has a loss."""
    difference: Difference | None
    """The best minus the next best, in nats per token."""
    lowest: tuple[str, ...]
    """The keys whose lowest value in the sweep this is: smaller values may be better."""
    highest: tuple[str, ...]
    """The keys whose highest value this is."""


@dataclass(frozen=True)
class SweptArm:
    """The ladder of a sweep, or one of its controls, at every point."""

    name: str
    """`ladder`, or the end of the control's name."""
    points: tuple[SweepPoint, ...]
    best: Best | None
    """None if no point has a loss, or if the runs differ in more than the keys."""


@dataclass(frozen=True)
class TunedControl:
    """A control of about the ladder's FLOPs, each at the best value of its own."""

    name: str
    kind: str
    difference: Difference
    """Ladder minus control, in nats per token."""
    elsewhere: bool
    """Whether the control is best at another value than the ladder."""


@dataclass(frozen=True)
class Sweep:
    """The points of a sweep, or the groups of --group-by."""

    name: str
    keys: tuple[str, ...]
    arms: tuple[SweptArm, ...]
    """The ladder first."""
    is_grid: bool
    """Whether it is a sweep; else the groups of --group-by."""


def sweeps(groups: Sequence[Replicates], figures: Sequence[SeedFigures]) -> list[Sweep]:
    """The sweeps among `groups`, whose `figures` come in the same order; with --group-by, all groups as one."""
    if groups and groups[0].values:
        keys = tuple(groups[0].values)
        rows = [(group.values, found) for group, found in zip(groups, figures, strict=True)]
        is_sweep = not {SEED, SCHEDULE} & set(keys) and len({group.first.dataset_fingerprint for group in groups}) == 1
        return [_sweep(f"By {', '.join(keys)}", keys, rows, has_best=is_sweep, is_grid=False)]
    found_in: dict[str, list[tuple[Replicates, SeedFigures]]] = {}
    for group, found in zip(groups, figures, strict=True):
        if group.first.group is not None and group.swept:
            found_in.setdefault(group.first.group, []).append((group, found))
    made = []
    for name, points in found_in.items():
        if len(points) > 1:
            keys = tuple(dict.fromkeys(key for group, _ in points for key in group.swept))
            made.append(
                _sweep(name, keys, [(group.swept, found) for group, found in points], has_best=True, is_grid=True)
            )
    return made


def section(found: Sequence[Sweep]) -> Section | None:
    """A table for each sweep, with the best values below it, which for a grid's ladder are its headline."""
    parts: list[Part] = []
    for sweep in found:
        parts += [Paragraph(sweep.name, "heading")] if len(found) > 1 else []
        parts += [
            _table(sweep),
            *(Paragraph(best_text(arm)) for arm in sweep.arms[sweep.is_grid :] if arm.best),
        ]
        parts += [Paragraph(tuned_text(control), "note") for control in tuned(sweep)]
    return Section("sweep", _heading(found), tuple(parts)) if parts else None


def _heading(found: Sequence[Sweep]) -> str:
    if len(found) > 1:
        return "Sweeps"
    return f"Sweep {found[0].name}" if found[0].is_grid else found[0].name


def _sweep(
    name: str,
    keys: Sequence[str],
    rows: Sequence[tuple[dict[str, Any], SeedFigures]],
    *,
    has_best: bool = True,
    is_grid: bool = True,
) -> Sweep:
    by_arm: dict[str, list[SweepPoint]] = {}
    for values, figures in rows:
        for arm in figures.arms:
            by_arm.setdefault(arm.name, []).append(SweepPoint(figures.name, values, arm))
    arms = [
        SweptArm(arm, tuple(points), _best_of(points) if has_best and _differ(points) else None)
        for arm, points in by_arm.items()
    ]
    return Sweep(name, tuple(keys), tuple(arms), is_grid)


def _differ(points: Sequence[SweepPoint]) -> bool:
    """Whether no two points have the same values: else they differ in something else, too."""
    return len({values_text(point.values) for point in points}) == len(points)


def _best_of(points: Sequence[SweepPoint]) -> Best | None:
    ordered = sorted((point for point in points if point.arm.mean is not None), key=lambda point: point.arm.mean or 0.0)
    if not ordered:
        return None
    best, following = ordered[0], ordered[1] if len(ordered) > 1 else None
    lowest, highest = [], []
    for key, value in best.values.items():
        grid = [number for point in points if (number := _number(point.values.get(key))) is not None]
        if len(grid) == len(points) and len(set(grid)) > 1:
            lowest += [key] if value == min(grid) else []
            highest += [key] if value == max(grid) else []
    apart = difference(best.arm.losses, following.arm.losses) if following else None
    return Best(best, following, apart, tuple(lowest), tuple(highest))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def best_text(arm: SweptArm) -> str:
    """The best point, how sure that is, and whether the grid ends there."""
    best = arm.best
    if best is None:
        return "None of its runs is finished."
    of = "" if arm.name == LADDER else f" for {arm.name}"
    point, values = best.point, values_text(best.point.values)
    noise = f", 95 % interval {interval_text(point.arm.interval)}" if point.arm.interval else ", of one seed"
    sentences = [f"Best{of}: {values}, with a mean loss of {point.arm.mean or 0.0:.4f} nats{noise}."]
    if best.next_best and best.difference:
        other, apart = values_text(best.next_best.values), abs(best.difference.mean)
        sure = {
            None: "the noise between seeds is unknown, so this may be chance",
            True: "that is within the noise between seeds",
            False: "that is beyond the noise between seeds",
        }[best.difference.within_noise]
        sentences.append(f"The next best, {other}, is {apart:.4f} nats worse: {sure}.")
        costs = (point.arm.flops or 0.0, best.next_best.arm.flops or 0.0)
        if abs(costs[0] - costs[1]) > EQUAL_FLOPS_TOLERANCE * max(costs):
            sentences.append("The two cost different numbers of FLOPs.")
    if diverged := [result.seed for result in point.arm.results if result.why == DIVERGED]:
        sentences.append(f"It diverged with {seeds_text(diverged)}, which does not count in the mean.")
    for keys, which, further in ((best.lowest, "smallest", "smaller"), (best.highest, "largest", "larger")):
        sentences += [
            f"{shown(point.values[key])} is at the edge of the grid, the {which} {key} tried: {further} ones may be "
            "better."
            for key in keys
        ]
    return " ".join(sentences)


def tuned(sweep: Sweep) -> list[TunedControl]:
    """The ladder against each control of about its FLOPs, each at its own best value."""
    ladder, *controls = sweep.arms
    if ladder.best is None:
        return []
    own, found = ladder.best.point, []
    for control in controls:
        theirs = control.best.point if control.best else None
        if theirs and own.arm.flops and abs((theirs.arm.flops or 0.0) / own.arm.flops - 1.0) <= EQUAL_FLOPS_TOLERANCE:
            apart = difference(own.arm.losses, theirs.arm.losses)
            found.append(TunedControl(control.name, theirs.arm.control or "", apart, theirs.ladder != own.ladder))
    return found


def tuned_text(control: TunedControl) -> str:
    """The comparison in a sentence."""
    mean, sure = control.difference.mean, "noise unknown"
    if control.difference.interval:
        within = "within" if control.difference.within_noise else "beyond"
        sure = f"{within} the noise between seeds, 95 % interval {interval_text(control.difference.interval)}"
    return (
        f"Each at its best value, at equal FLOPs: the ladder ended {abs(mean):.4f} nats "
        f"{'below' if mean < 0 else 'above'} {control.name} ({sure})."
    )


def untuned(sweep: Sweep) -> list[str]:
    """The controls that were tried at fewer values than the ladder, which the best of the ladder is compared with."""
    tried = {arm.name: sum(point.arm.mean is not None for point in arm.points) for arm in sweep.arms}
    return [name for name, number in tried.items() if 0 < number < tried[LADDER]]


def _table(sweep: Sweep) -> Table:
    values = [point.values.get(key) for arm in sweep.arms for point in arm.points for key in sweep.keys]
    numeric = all(_number(value) is not None for value in values)
    columns = (
        *(Column(heading, is_number=numeric) for heading in _headings(sweep.keys)),
        Column("FLOPs", drop=1),
        Column("mean loss"),
        Column("interval (95 %)"),
        Column("which seeds", drop=2),
        Column("finished"),
    )
    if not sweep.is_grid:
        columns = (Column("run", is_number=False), *columns)
    groups = [
        Rows(tuple(_row(sweep, point) for point in arm.points), arm.name if len(sweep.arms) > 1 else "")
        for arm in sweep.arms
    ]
    return Table("sweep", columns, tuple(groups), "Final losses, in nats per token.")


def _headings(keys: Sequence[str]) -> list[str]:
    """The last words of dotted keys, if they tell them apart."""
    short = [key.rpartition(".")[2] for key in keys]
    return short if len(set(short)) == len(short) and not any(word.isdigit() for word in short) else list(keys)


def _row(sweep: Sweep, point: SweepPoint) -> tuple[Cell, ...]:
    arm = point.arm
    there = [result for result in arm.results if result.loss is not None]
    lacking = [f"seed {result.seed}: {result.why}" for result in arm.results if result.why]
    cells = [Cell(shown(value), _number(value)) for value in (point.values.get(key) for key in sweep.keys)]
    return (
        *([Cell(point.ladder)] if not sweep.is_grid else []),
        *cells,
        Cell("-") if arm.flops is None else Cell(scientific(arm.flops), arm.flops),
        Cell("-") if arm.mean is None else Cell(f"{arm.mean:.4f}", arm.mean),
        Cell(interval_text(arm.interval)) if arm.interval else Cell("unknown", why="At most one seed has a loss."),
        Cell(", ".join(str(result.seed) for result in there) or "-"),
        Cell(f"{len(there)} of {len(arm.results)}", len(there), "; ".join(lacking)),
    )
