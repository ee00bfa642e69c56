"""A law of growth, and what it predicts of runs, as sections and as a figure."""

import io
from collections.abc import Sequence
from typing import get_args

import numpy as np

from growctl.analysis.conditions import conditions_of
from growctl.law.fit import SIGNIFICANCE
from growctl.law.formula import Advice, Law
from growctl.law.measured import read_models, shared_conditions, unlike
from growctl.report.chart import FigureFormat
from growctl.runs.runs import RunReport
from growctl.text.section import Cell, Column, Paragraph, Section, Table, figure


def section(runs: Sequence[RunReport], law: Law) -> Section:
    """What `law` says of the finished models of those of `runs` that were trained like its own."""
    own, rows = law.recipe.conditions, []
    alike = [run for run in runs if not unlike(own, shared_conditions(conditions_of(run)))]
    for model in read_models(alike, runs)[0]:
        predicted, outside = law.interval(model.path, model.flops), law.outside(model.path, model.flops)
        interval = Cell(f"{predicted.low:.4f} to {predicted.high:.4f}")
        figures = figure(model.loss), figure(predicted.estimate)
        rows.append((Cell(model.name), *figures, interval, Cell(outside or "")))
    columns = [Column("model", False), Column("measured"), Column("predicted"), Column("95% interval", False)]
    columns += [Column("outside the fitted range", False, drop=1)]
    table = Table.of("law", columns, rows, f"Nats per token; the interval is for one run. {law.caution}".strip())
    none = Paragraph("No finished model here was trained as the law's runs were.")
    return Section("law", "Predicted by the law", (table if rows else none,))


def law_figure(law: Law, kind: FigureFormat) -> bytes:
    """A file with two charts: measured against predicted losses, and losses against FLOPs."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    from growctl.report.drawing import NO_DATE, SETTINGS

    buffer, flops = io.BytesIO(), np.geomspace(*law.ranges["flops"], 100)
    groups = {"from scratch": [m for m in law.models if not m.is_grown], "grown": [m for m in law.models if m.is_grown]}
    with matplotlib.rc_context(SETTINGS):
        drawn = Figure(figsize=(9.6, 3.8), layout="constrained")
        left, right = drawn.subplots(1, 2)
        for (name, models), form in zip((groups | {"held out": law.held_out}).items(), ("s", "o", "^"), strict=True):
            measured = [model.measured for model in models]
            left.plot([model.predicted for model in models], measured, form, label=name, alpha=0.7)
            right.plot([model.flops for model in models], measured, form, label=name, alpha=0.7)
        left.axline((law.models[0].measured,) * 2, slope=1, color="grey", zorder=0)
        best = law.formula.best_scratch(law.c_MP[:1], flops)[0]
        right.plot(flops, best, color="grey", label="best size from scratch, predicted", zorder=0)
        left.set(xlabel="predicted loss (nats per token)", ylabel="measured loss (nats per token)")
        right.set(xlabel="training FLOPs", xscale="log")
        right.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        right.xaxis.set_minor_formatter(NullFormatter())
        right.legend()
        drawn.savefig(buffer, format=kind, metadata=NO_DATE[kind])
    return buffer.getvalue()


def fit_sections(law: Law) -> list[Section]:
    """What a fit found."""
    columns = (Column("coefficient", False), Column("estimate"), Column("95% interval", False))
    rows = [
        (Cell(name), figure(value.estimate, "{:.4g}"), Cell(f"{value.low:.4g} to {value.high:.4g}"))
        for name, value in (law.parameters | law.terms).items()
    ]
    rms = ", ".join(f"{kind} {value:.4f}" for kind, value in law.rms.items() if value is not None)
    fits = "do not fit" if law.form_p < SIGNIFICANCE else "fit"
    terms = "ln w" if law.form == "effective tokens" else "the loss minus that of the best trained size from scratch"
    texts = [
        f"N counts {law.counts}. Root mean square of the residuals, in nats: {rms}.",
        f"Effective tokens {fits} grown models (p = {law.form_p:.2g}). The terms give {terms}.",
        *(f"Dropped: {name}: {why}." for name, why in law.dropped.items()),
        *(f"Left out: {why}" for why in law.left_out),
    ]
    if law.tested:
        advice = [each.advice for each in law.held_out]
        counts = ", ".join(f"{advice.count(kind)} {kind}" for kind in get_args(Advice))
        texts += [
            law.caution or "Held out: the median error is {:.3f} nats; up to {:.3f} are noise.".format(*law.tested),
            f"Whether growing beats the best held-out size from scratch: {counts}.",
        ]
    table = Table.of("coefficients", columns, rows)
    return [Section("law", f"The law, fitted to {len(law.models)} models", (table, *map(Paragraph, texts)))]
