"""The section on seeds: what each one ended with, and which differences are larger than the noise between them."""

from collections.abc import Iterator, Sequence

from growctl.content.section import Cell, Column, Paragraph, Part, Rows, Section, Table
from growctl.report.compare import BEST_SCRATCH, EQUAL_FLOPS_TOLERANCE, is_scratch
from growctl.report.grouping import seeds_text
from growctl.report.replicates import Arm, LossDifference, Saving, SeedComparison, SeedFigures
from growctl.report.seeds import Interval
from growctl.text.formatting import scientific, short_count


def section(figures: Sequence[SeedFigures]) -> Section | None:
    """The figures of each ladder over its seeds; None without a ladder."""
    several = [found for found in figures if len(found.seeds) > 1]
    single = [found for found in figures if len(found.seeds) == 1]
    parts: list[Part] = [_table(several)] if several else []
    for found in several:
        conclusions = list(_conclusions(found))
        parts += [Paragraph(found.name, "heading"), *conclusions] if conclusions else []
    parts += [_one_seed(single)] if single else []
    parts += [Paragraph(sentence, "note") for found in single for sentence in found.repeated]
    return Section("seeds", "Seeds", tuple(parts)) if parts else None


def interval_text(interval: Interval, digits: int = 4) -> str:
    """`2.7123 to 2.7423`."""
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def times_interval(interval: Interval) -> str:
    """`1.10x to 1.40x`."""
    return f"{interval.low:.2f}x to {interval.high:.2f}x"


def bar(comparison: SeedComparison) -> str:
    """What a ladder is compared with, in words."""
    size = f"{short_count(comparison.num_parameters or 0)} parameters"
    return {
        BEST_SCRATCH: "the best size trained from scratch",
        "transformer-scratch": f"a Transformer of {size} trained from scratch",
        "single-jump": f"growing to {size} in a single jump",
        "official-growth": f"growing to {size} as the official code does",
    }.get(comparison.control, f"{size} trained from scratch")


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


def cost(saving: float) -> str:
    """`cost 1.24x less than`, or what is true instead."""
    if abs(saving - 1.0) <= EQUAL_FLOPS_TOLERANCE:
        return f"cost about as much ({saving:.2f}x) as"
    return f"cost {saving:.2f}x less than" if saving > 1.0 else f"cost {1.0 / saving:.2f}x more than"


def _at_equal_loss(comparison: SeedComparison) -> str | None:
    found, seeds = comparison.at_equal_loss, seeds_text(comparison.seeds)
    who = "growing" if is_scratch(comparison.control) else "this ladder"
    if found is None:
        return None
    if found.saving is None:
        return f"At equal loss against {bar(comparison)} ({seeds}), there is no figure: {_not_bracketed(found)}."
    each = ", ".join("not bracketed" if value is None else f"{value:.2f}x" for value in found.by_seed.values())
    saved = f"At equal loss, {who} {cost(found.saving)} {bar(comparison)}"
    if found.interval is None:
        if len(comparison.seeds) == 1:
            return f"{saved} ({seeds} alone, so the noise is unknown)."
        return f"{saved} ({seeds}: {each}; no interval, because some draws of the seeds are not bracketed)."
    how = "bootstrap over seeds, widened to their t interval"
    noise = "within the noise between seeds" if found.within_noise else "beyond the noise between seeds"
    return f"{saved}: {noise} (saving of {seeds}: {each}; 95 % interval {times_interval(found.interval)}, {how})."


def _not_bracketed(found: Saving) -> str:
    if found.at_least is not None:
        return f"no control reached the ladder's mean loss, the best with {found.at_least:.2f}x its FLOPs"
    return (
        f"the cheapest control, with {found.at_most or 0.0:.2f}x its FLOPs, already ended below the ladder's mean loss"
    )


def _at_equal_flops(comparison: SeedComparison, found: LossDifference) -> str:
    difference = found.difference
    who = "growing" if is_scratch(comparison.control) else "this ladder"
    side = "below" if difference.mean < 0 else "above"
    said = f"At equal FLOPs, {who} ended {abs(difference.mean):.4f} nats {side} {found.control}"
    if difference.interval is None:
        return f"{said} ({seeds_text(difference.seeds)} alone, so the noise is unknown)."
    noise = "within the noise between seeds" if difference.within_noise else "beyond the noise between seeds"
    how = f"ladder minus control, paired over {seeds_text(difference.seeds)}"
    return f"{said}: {noise} (95 % interval {interval_text(difference.interval)}, {how})."


def _one_seed(single: Sequence[SeedFigures]) -> Paragraph:
    names = [f"{found.name} ({seeds_text(found.seeds)})" for found in single]
    shown = ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} others"
    each = "has one seed" if len(names) == 1 else "have one seed each"
    return Paragraph(
        f"{shown} {each}, so the noise between seeds is unknown: a small difference may be chance. "
        "`growctl run SCHEDULE --seeds 0,1,2` trains more."
    )
