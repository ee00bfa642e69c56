"""A law of growth, and what it predicts of runs, as sections and as a figure."""

from statistics import median
from typing import get_args

from growctl.law.formula import Advice, Law
from growctl.text.section import Cell, Column, Paragraph, Section, Table, figure


def fit_sections(law: Law) -> list[Section]:
    """What a fit found."""
    columns = (Column("coefficient", False), Column("estimate"), Column("95% interval", False))
    rows = [
        (Cell(name), figure(value.estimate, "{:.4g}"), Cell(f"{value.low:.4g} to {value.high:.4g}"))
        for name, value in (law.parameters | law.terms).items()
    ]
    rms = ", ".join(f"{kind} {value:.4f}" for kind, value in law.rms.items() if value is not None)
    is_worth = law.form == "effective tokens"
    terms = "ln w" if is_worth else "the loss minus that of the best size from scratch at equal FLOPs"
    texts = [
        f"N counts {law.counts}. Root mean square of the residuals, in nats: {rms}.",
        f"Effective tokens {'' if is_worth else 'do not '}fit grown models (p = {law.form_p:.2g}): terms give {terms}.",
        *(f"Dropped: {name}: {why}." for name, why in law.dropped.items()),
        *(f"Left out: {why}" for why in law.left_out),
    ]
    errors = [(abs(each.measured - each.predicted), each.standard_error) for each in law.held_out]
    if known := [pair for pair in errors if pair[1] is not None]:
        error, standard = (median(column) for column in zip(*known, strict=True))
        advice = [each.advice for each in law.held_out]
        counts = ", ".join(f"{advice.count(kind)} {kind}" for kind in get_args(Advice))
        texts += [
            f"Held out: the median error is {error:.4f} nats; the median standard error, {standard:.4f}.",
            f"Whether growing beats the best held-out size from scratch: {counts}.",
        ]
    table = Table.of("coefficients", columns, rows)
    return [Section("law", f"The law, fitted to {len(law.models)} models", (table, *map(Paragraph, texts)))]
