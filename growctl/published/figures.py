"""Words and draws published figures: series of a layer of their own, and a section that is never compared."""

from collections.abc import Iterator, Sequence

from growctl.published.overlays import Published, Row
from growctl.report.chart import Mark, Series
from growctl.text.formatting import short_count
from growctl.text.section import Cell, Column, Paragraph, Rows, Section, Table
from growctl.verdicts.costs import CURRENCIES, Currency

LABEL = "published"

NOTE = (
    "Published by others: growctl did not measure these figures, on other data and with other tokenizers than the runs "
    "above. They are a scale. No comparison, headline or verdict uses them."
)
COMPUTED = "computed by growctl from the shape and the tokens"


def published_series(overlay: Published) -> tuple[Series, ...]:
    """The rows of `overlay` that have a perplexity and a cost, one series each; a growth starts at its base."""
    names = dict.fromkeys(row.series for row in overlay.rows)
    found = []
    for name in names:
        rows = [row for row in overlay.rows if row.series == name]
        first = rows[0].grown_from
        if first is not None and overlay.row(first).series != name:
            rows.insert(0, overlay.row(first))
        marks = tuple(mark for row in rows if (mark := _mark(overlay, row)))
        if marks:
            found.append(Series(f"{name} ({LABEL})", marks, role="published", group=f"{LABEL}: {overlay.title}"))
    return tuple(found)


def section(overlays: Sequence[Published]) -> Section | None:
    """The published figures as tables; None without any."""
    if not overlays:
        return None
    parts: list[Paragraph | Table] = [Paragraph(NOTE, "note")]
    for number, overlay in enumerate(overlays, 1):
        parts += [Paragraph(f"{overlay.title} ({LABEL})", "heading"), Paragraph(f"Source: {overlay.source}.")]
        parts += [_table(f"published-{number}", overlay), *(Paragraph(note, "note") for note in overlay.notes)]
    return Section("published", "Published figures", tuple(parts))


def _mark(overlay: Published, row: Row) -> Mark | None:
    perplexity = overlay.perplexity(row)
    costs = {currency: overlay.cost(row, currency.key) for currency in CURRENCIES if hasattr(row, currency.key)}
    x = {currency.key: cost for currency, cost in costs.items() if cost is not None}
    if perplexity is None or not x:
        return None
    return Mark(x, perplexity, tuple(_facts(overlay, row, costs)), is_end=True)


def _facts(overlay: Published, row: Row, costs: dict[Currency, float | None]) -> Iterator[tuple[str, str]]:
    yield row.model, f"{LABEL}, not measured by growctl"
    yield ("perplexity", f"{row.perplexity:g}") if row.loss is None else ("loss", f"{row.loss:g} nats per token")
    for currency, cost in costs.items():
        if cost is not None:
            how = f", {COMPUTED}" if currency.key == "flops" and overlay.computes_flops(row) else ""
            yield f"{currency.name} so far", f"{currency.shown(cost)}{how}"
    if (tokens := overlay.tokens(row)) is not None:
        yield "tokens of this model's own training", short_count(tokens)
    if row.grown_from:
        yield "grown from", row.grown_from
    yield "data", row.data or overlay.data
    yield "source", overlay.source


def _table(key: str, overlay: Published) -> Table:
    """The rows as published, with the FLOPs up to each."""
    columns = (Column("model", is_number=False), Column("tokens", drop=1), Column("FLOPs so far"), Column("perplexity"))
    groups = []
    for name in dict.fromkeys(row.series for row in overlay.rows):
        rows = [_row(overlay, row) for row in overlay.rows if row.series == name]
        groups.append(Rows(tuple(rows), name, LABEL))
    computed = any(overlay.cost(row, "flops") and overlay.computes_flops(row) for row in overlay.rows)
    return Table(key, columns, tuple(groups), f"FLOPs are {COMPUTED}." if computed else "")


def _row(overlay: Published, row: Row) -> tuple[Cell, ...]:
    tokens, flops, perplexity = overlay.tokens(row), overlay.cost(row, "flops"), overlay.perplexity(row)
    unknown = "Neither the FLOPs nor the shape and the tokens were published."
    return (
        Cell(row.model),
        Cell("-", why="Not published.") if tokens is None else Cell(short_count(tokens), tokens),
        Cell("-", why=unknown) if flops is None else Cell(CURRENCIES[0].shown(flops), flops),
        Cell("-", why="Not published.") if perplexity is None else Cell(f"{perplexity:.4g}", perplexity),
    )
