"""The section on seeds: what each one ended with, and which differences are larger than the noise between them."""

from collections.abc import Collection, Iterator, Sequence

from growctl.seeds.grouping import seeds_text
from growctl.seeds.replicates import Arm, LossDifference, Saving, SeedComparison, SeedFigures
from growctl.seeds.statistics import Difference, Interval
from growctl.text.formatting import scientific, short_count
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table
from growctl.verdicts.compare import BEST_SCRATCH, EQUAL_FLOPS_TOLERANCE, is_scratch

INTERVALS = (
    "Intervals of savings: bootstrap over the seeds, widened to the t interval of their own savings. "
    "Intervals of losses: t, paired by seed."
)


def section(figures: Sequence[SeedFigures], swept: Collection[str] = ()) -> Section | None:
    """The figures of each ladder with several seeds; None without one.

    `swept`: the names of those that stand in the table of a sweep. If no other has several seeds, all are details.
    """
    several = [found for found in figures if len(found.seeds) > 1]
    if not several:
        return None
    parts: list[Part] = [_table(several)]
    for found in several:
        conclusions = list(_conclusions(found))
        parts += [Paragraph(found.name, "heading"), *conclusions] if conclusions else []
    parts += [Paragraph(INTERVALS, "note")] if any(found.comparisons for found in several) else []
    in_brief = any(found.name not in swept for found in several)
    return Section("seeds", "Seeds", tuple(parts), in_terminal=in_brief)


def interval_text(interval: Interval, digits: int = 4) -> str:
    """`2.7123 to 2.7423`."""
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def times_interval(interval: Interval) -> str:
    """`1.10x to 1.40x`."""
    return f"{interval.low:.2f}x to {interval.high:.2f}x"


def rival(comparison: SeedComparison) -> str:
    """What a ladder is compared with: `training 262k parameters from scratch`."""
    size = f"{short_count(comparison.num_parameters or 0)} parameters"
    return {
        BEST_SCRATCH: "training the best size from scratch",
        "transformer-scratch": f"training a Transformer of {size} from scratch",
        "single-jump": f"growing to {size} in a single jump",
        "official-growth": f"growing to {size} as the official code does",
    }.get(comparison.control, f"training {size} from scratch")


def rival_needs(comparison: SeedComparison, saving: float, who: str) -> str:
    """`Training the best size from scratch to the same loss takes 1.32x the FLOPs that growing took`."""
    said = f"{capitalised(rival(comparison))} to the same loss takes"
    if abs(saving - 1.0) <= EQUAL_FLOPS_TOLERANCE:
        return f"{said} about the FLOPs that {who} took, {saving:.2f}x"
    return f"{said} {'only ' if saving < 1.0 else ''}{saving:.2f}x the FLOPs that {who} took"


def lower_by(difference: float, digits: int) -> str:
    """`reached a loss 0.137 nats lower than`, for a negative difference."""
    if round(abs(difference), digits) == 0.0:
        return "reached the same loss as"
    return f"reached a loss {abs(difference):.{digits}f} nats {'lower' if difference < 0 else 'higher'} than"


def size_of(difference: Difference) -> Interval | None:
    """The interval of how much lower the loss is, or how much higher, whichever the mean says."""
    found = difference.interval
    return Interval(-found.high, -found.low) if found and difference.mean < 0 else found


def capitalised(text: str) -> str:
    """The text with a capital letter first."""
    return text[:1].upper() + text[1:]


def _table(figures: Sequence[SeedFigures]) -> Table:
    seeds = sorted({seed for found in figures for seed in found.seeds})
    columns = (
        Column("run", is_number=False),
        Column("FLOPs", drop=1),
        Column("mean loss"),
        Column("interval (95 %)"),
        *(Column(f"seed {seed}", drop=3) for seed in seeds),
    )
    groups = [
        Rows(tuple(_row(arm, seeds) for arm in found.arms), found.name, seeds_text(found.seeds), found.repeated)
        for found in figures
    ]
    return Table("seeds", columns, tuple(groups), "Final losses, in nats per token. The interval is that of the mean.")


def _row(arm: Arm, seeds: Sequence[int]) -> tuple[Cell, ...]:
    by_seed = {result.seed: result for result in arm.results}
    cells = []
    for seed in seeds:
        result = by_seed.get(seed)
        if result is None:
            cells.append(Cell("-"))
        elif result.loss is None:
            cells.append(Cell("-", why=f"{arm.name} of seed {seed} does not count: {result.why}."))
        else:
            cells.append(Cell(f"{result.loss:.4f}", result.loss))
    return (
        Cell(arm.name),
        Cell("-") if arm.flops is None else Cell(scientific(arm.flops), arm.flops),
        Cell("-") if arm.mean is None else Cell(f"{arm.mean:.4f}", arm.mean),
        Cell(interval_text(arm.interval))
        if arm.interval
        else Cell("unknown", why="One seed says nothing about the noise."),
        *cells,
    )


def _conclusions(figures: SeedFigures) -> Iterator[Paragraph]:
    """What the seeds say of each comparison, then which seeds and controls are missing."""
    for comparison in figures.comparisons:
        if text := _at_equal_loss(comparison):
            yield Paragraph(text)
        if comparison.at_equal_flops:
            yield Paragraph(_at_equal_flops(comparison, comparison.at_equal_flops))
    if figures.unknown_start:
        yield Paragraph(
            "Nothing says what the start checkpoint cost (start.flops), so no figure here counts it.", "note"
        )
    for sentence in missing(figures):
        yield Paragraph(sentence, "note")


def missing(figures: SeedFigures) -> list[str]:
    """What keeps seeds from counting, a sentence for each seed, and which controls are left out."""
    sentences = []
    for seed in figures.seeds:
        lacks = [
            f"{arm.name} ({result.why})"
            for arm in figures.arms
            for result in arm.results
            if result.seed == seed and result.why
        ]
        if lacks:
            sentences.append(f"Seed {seed} does not count in {', '.join(lacks)}.")
    left_out = dict.fromkeys(name for comparison in figures.comparisons for name in comparison.left_out)
    return sentences + [f"At equal loss, {name} is left out: most seeds do not have it." for name in sorted(left_out)]


def _at_equal_loss(comparison: SeedComparison) -> str | None:
    found, seeds = comparison.at_equal_loss, seeds_text(comparison.seeds)
    who = "growing" if is_scratch(comparison.control) else "this ladder"
    if found is None:
        return None
    if found.saving is None:
        return f"How much {rival(comparison)} to the same loss takes is not known ({seeds}): {_not_bracketed(found)}."
    each = ", ".join("not bracketed" if value is None else f"{value:.2f}x" for value in found.by_seed.values())
    saved = rival_needs(comparison, found.saving, who)
    if found.interval is None:
        if len(comparison.seeds) == 1:
            return f"{saved} ({seeds} alone, so the noise is unknown)."
        return f"{saved} ({seeds}: {each}; no interval, because some draws of the seeds are not bracketed)."
    noise = "within the noise between seeds" if found.within_noise else "beyond the noise between seeds"
    return f"{saved}: {noise} ({seeds}: {each}; 95 % interval {times_interval(found.interval)})."


def _not_bracketed(found: Saving) -> str:
    if found.at_least is not None:
        return f"no control reached the ladder's mean loss, the best with {found.at_least:.2f}x its FLOPs"
    return (
        f"the cheapest control, with {found.at_most or 0.0:.2f}x its FLOPs, already ended below the ladder's mean loss"
    )


def _at_equal_flops(comparison: SeedComparison, found: LossDifference) -> str:
    difference = found.difference
    who = "growing" if is_scratch(comparison.control) else "this ladder"
    said = f"At equal FLOPs, {who} {lower_by(difference.mean, 4)} {found.control}"
    interval = size_of(difference)
    if interval is None:
        return f"{said} ({seeds_text(difference.seeds)} alone, so the noise is unknown)."
    noise = "within the noise between seeds" if difference.within_noise else "beyond the noise between seeds"
    return f"{said}: {noise} ({seeds_text(difference.seeds)}; 95 % interval {interval_text(interval)})."
