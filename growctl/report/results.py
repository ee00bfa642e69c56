"""What the judge found, as sections: the result, other opponents, families, seeds, sweeps, ladders compared.

Draws the records of growctl/analysis and computes nothing.
"""

from collections.abc import Collection, Iterator, Sequence

from growctl.analysis.conditions import grows_nothing, shown
from growctl.analysis.costs import CURRENCIES, FLOPS, Currency
from growctl.analysis.family import Family
from growctl.analysis.groups import seeds_text, values_text
from growctl.analysis.judge import STRONGEST, Side, Verdict, multiplier_text
from growctl.analysis.results import ArmLosses, Ladders, Pair, Results, Sweep
from growctl.runs.runs import RunReport, StageReport
from growctl.text.formatting import scientific, short_count
from growctl.text.section import Cell, Column, Listing, Paragraph, Part, Rows, Section, Table, figure, rows_of


def sections(results: Results) -> list[Section]:
    """What the judge found beside the result."""
    said = {caution for verdict in results.headlines for caution in verdict.cautions}
    several = [ladders for ladders in results.ladders if len(ladders.seeds) > 1]
    topics: list[tuple[str, str, list[Part]]] = [
        ("opponents", "Other opponents", [part for verdict in results.verdicts for part in _opponent(verdict, said)]),
        (
            "family",
            _SIZES,
            [part for each in results.families if not _decides(each, results) for part in _family(each)],
        ),
        ("sweep", "Sweeps", [part for sweep in results.sweeps for part in _sweep(sweep)]),
        ("seeds", "Seeds", [*_seeds(several)]),
        ("ladders", "Ladders compared", [part for pair in results.pairs for part in _pair(pair)]),
    ]
    return [Section(key, heading, tuple(parts)) for key, heading, parts in topics if parts]


def headline(results: Results) -> Section | None:
    """The verdict that decides for each ladder or sweep: its claim, both sides, what is not counted, its cautions."""
    parts: list[Part] = []
    for number, verdict in enumerate(results.headlines):
        name = verdict.ladder if len(results.headlines) > 1 else ""
        of_ladder = (family for family in results.families if family.ladder == verdict.ladder)
        parts += [part for family in of_ladder if _decides(family, results) for part in _family(family)]
        parts += _verdict(verdict, name, f"result-{number}" if number else "result")
    return Section("headline", "Result", tuple(parts)) if parts else None


def overview(results: Results) -> Section:
    """One line for each ladder or sweep."""
    columns = (
        Column("ladder", False, cell=lambda verdict: Cell(verdict.ladder)),
        Column("against", False, cell=lambda verdict: Cell(verdict.kind or "-")),
        Column("verdict", False, cell=lambda verdict: Cell(verdict.outcome)),
        Column("for the same loss", cell=lambda each: Cell(multiplier_text(each.multiplier).split(" (")[0])),
    )
    caption = "`growctl report LADDER` shows one of them."
    return Section("others", "Others", (Table.of("others", columns, rows_of(columns, results.headlines), caption),))


def compare_sections(pair: Pair, a: RunReport, b: RunReport) -> list[Section]:
    """Two runs compared: which is better, what they cost, and in what they differ."""
    parts: list[Part] = [Paragraph(f"{word} is {run.name} ({run.description}).") for word, run in (("A", a), ("B", b))]
    if pair.why_not:
        parts.append(Paragraph(f"Not compared: {pair.why_not}.", "strong"))
    elif pair.verdict:
        parts += _verdict(pair.verdict, "", "result")
    columns = [Column(heading, is_number=False) for heading in ("condition", "A", "B")]
    rows = [(Cell(each.key), Cell(shown(each.a)), Cell(shown(each.b))) for each in pair.differences]
    differ = (
        Table.of("differences", columns, rows) if rows else Paragraph("In nothing that changes a loss but the seed.")
    )
    return [
        Section("result", "Which is better", tuple(parts)),
        _figures(a, b, pair),
        Section("differences", "In what they differ", (differ,)),
    ]


def _verdict(verdict: Verdict, name: str, key: str) -> Iterator[Part]:
    answer, to_train = [Paragraph(f"{name}: {verdict.claim}" if name else verdict.claim, "strong")], list[Part]()
    if verdict.question:
        answer.insert(0, Paragraph(verdict.question, "note"))
    if verdict.missing:
        to_train = [Paragraph(verdict.missing, "strong")]
        to_train += [Listing("To train what is missing:", verdict.command, is_command=True)] if verdict.command else []
    yield from (*to_train, *answer) if verdict.missing.startswith(STRONGEST) else (*answer, *to_train)
    if verdict.ladder_side and verdict.opponent_side:
        yield _sides(verdict, verdict.ladder_side, verdict.opponent_side, key)
    yield from (Paragraph(caution, "note") for caution in verdict.cautions)


def _sides(verdict: Verdict, ladder: Side, opponent: Side, key: str) -> Table:
    rows = [row for currency in CURRENCIES if (row := _cost_row(verdict, ladder, opponent, currency))]
    counts = (
        ("data tokens", ladder.train_tokens, opponent.train_tokens, short_count),
        ("epochs", ladder.epochs, opponent.epochs, "{:.3g}"),
        ("settings tried", ladder.settings_tried, opponent.settings_tried, "{}"),
        ("not counted: evaluations", ladder.evaluation_flops, opponent.evaluation_flops, scientific),
    )
    rows += [
        (Cell(name), figure(own, shown), figure(its, shown), Cell("")) for name, own, its, shown in counts if own or its
    ]
    who = "growing" if grows_nothing(verdict.kind) else ladder.name
    columns = (Column("", is_number=False), Column(who), Column(opponent.name), Column("for the same loss"))
    is_untuned = grows_nothing(verdict.kind) and opponent.settings_tried == 1
    tuned = "Nobody tuned the opponent: it has the ladder's learning rate. " if is_untuned else ""
    return Table.of(key, columns, rows, f"{tuned}What is not counted is in FLOPs.")


def _cost_row(verdict: Verdict, ladder: Side, opponent: Side, currency: Currency) -> tuple[Cell, ...] | None:
    costs = [side.costs.get(currency.key) for side in (ladder, opponent)]
    if not any(costs) and currency is not FLOPS:
        return None
    multiplier = verdict.multiplier if currency is FLOPS else verdict.other_costs.get(currency.key)
    cells = (figure(cost, currency.shown, "Not known.") for cost in costs)
    if multiplier is None:
        return Cell(currency.name), *cells, Cell("not comparable", why=f"{verdict.other_costs_unknown}.")
    return Cell(currency.name), *cells, Cell(multiplier_text(multiplier), multiplier.estimate)


def _opponent(verdict: Verdict, said: Collection[str]) -> Iterator[Paragraph]:
    yield Paragraph(f"{verdict.ladder} against {verdict.opponent}", "heading")
    yield Paragraph(verdict.claim)
    yield from (Paragraph(caution, "note") for caution in verdict.cautions if caution not in said)


_SIZES = "The price of several sizes"


def _decides(family: Family, results: Results) -> bool:
    """Whether the ladder was compared size by size only, so that the price of all sizes is its result."""
    alone = {verdict.ladder for verdict in results.headlines if not verdict.opponent}
    return family.ladder in alone and any(model.opponent_side for model in family.models)


def _family(family: Family) -> Iterator[Part]:
    yield Paragraph(f"{family.ladder}: {len(family.models)} finished models", "heading")
    yield Paragraph(family.question, "note")
    yield Paragraph(family.claim, "strong")
    yield from (Paragraph(f"{model.ladder}: {model.claim}") for model in family.models)
    if family.command:
        yield Listing("To train what is missing:", family.command, is_command=True)


def _seeds(several: Sequence[Ladders]) -> Iterator[Table]:
    """The final losses of every arm by seed, for ladders with several."""
    seeds = sorted({seed for each in several for seed in each.seeds})
    columns = (
        *(Column("run", is_number=False), Column("FLOPs", drop=1), Column("mean loss")),
        *(Column(f"seed {seed}", drop=3) for seed in seeds),
    )
    rows = [Rows(tuple(_arm(arm, seeds) for arm in each.arms), each.name, seeds_text(each.seeds)) for each in several]
    if rows:
        yield Table("seeds", columns, tuple(rows), "Final losses, in nats.")


def _arm(arm: ArmLosses, seeds: Sequence[int]) -> tuple[Cell, ...]:
    whys = {seed: f"{arm.name} of seed {seed} does not count: {why}." for seed, why in arm.absent.items()}
    by_seed = (figure(arm.losses.get(seed), why=whys.get(seed, "")) for seed in seeds)
    return Cell(arm.name), figure(arm.flops, scientific), figure(arm.mean), *by_seed


def _sweep(sweep: Sweep) -> Iterator[Part]:
    columns = (
        *(Column(key, is_number=False) for key in sweep.keys),
        *(Column("run", is_number=False, drop=3), Column("FLOPs", drop=1), Column("mean loss"), Column("seeds")),
    )
    rows: dict[str, list[tuple[Cell, ...]]] = {}
    for point in sweep.points:
        for arm in point.arms:
            rows.setdefault(arm.name, []).append(_point(point, arm))
    yield Paragraph(sweep.name, "heading")
    arms = tuple(Rows(tuple(cells), name) for name, cells in rows.items())
    yield Table("sweep", columns, arms, "Final losses, in nats.")
    yield from _best(sweep)


def _point(point: Ladders, arm: ArmLosses) -> tuple[Cell, ...]:
    values = (Cell(shown(value)) for value in point.values.values())
    why = "; ".join(f"seed {seed}: {why}" for seed, why in arm.absent.items())
    seeds = Cell(f"{len(arm.losses)} of {len(arm.losses) + len(arm.absent)}", len(arm.losses), why)
    return *values, Cell(point.name), *_arm(arm, ())[1:], seeds


def _best(sweep: Sweep) -> Iterator[Paragraph]:
    best = next((point for point in sweep.points if point.name == sweep.best), None)
    if best is None:
        return
    yield Paragraph(f"Best: {values_text(best.values)}, with a mean loss of {best.arms[0].mean or 0.0:.4f} nats.")
    if sweep.against_next:
        yield Paragraph(f"Against the next best: {sweep.against_next.claim}", "note")
    for key in sweep.at_edge:
        edge = f"{shown(best.values[key])} is at the edge of the grid of {key}"
        yield Paragraph(f"{edge}: values beyond may be better.", "note")


def _pair(pair: Pair) -> Iterator[Paragraph]:
    yield Paragraph(f"{pair.first} and {pair.second}", "heading")
    if pair.why_not or pair.verdict is None:
        yield Paragraph(f"Not compared: {pair.why_not}.")
        return
    yield Paragraph(pair.verdict.claim, "strong")
    if pair.differences:
        yield Paragraph(f"They differ in {'; '.join(map(str, pair.differences))}.", "note")


def _figures(a: RunReport, b: RunReport, pair: Pair) -> Section:
    """What both runs cost, and how good they are."""
    columns = (Column("", is_number=False), Column("A"), Column("B"), Column("B against A"))
    ends = [run.stages[-1] if run.stages else None for run in (a, b)]
    rows = []
    measured = {"validation_loss": "{:.4f}", "perplexity": "{:.4g}", "bits_per_byte": "{:.4f}"}
    for name, form in (measured | {"top1": "{:.2%}", "top5": "{:.2%}"}).items():
        values = [getattr(end, name) if end else None for end in ends]
        known = [value for value in values if value is not None]
        if not known and name not in measured:
            continue
        apart = known[1] - known[0] if len(known) == 2 and not pair.why_not else None
        cells = (figure(value, form) for value in values)
        rows.append((Cell(name.replace("_", " ")), *cells, figure(apart, "{:+.4f}")))
    for currency in CURRENCIES:
        costs = [currency.of(run.stages) for run in (a, b)]
        if any(costs):
            ratio = costs[1] / costs[0] if costs[0] and costs[1] else None
            cells = (figure(cost, currency.shown) for cost in costs)
            rows.append((Cell(currency.name), *cells, figure(ratio, "{:.2f}x")))
    return Section("figures", "Losses and costs", (Table.of("figures", columns, rows),))


_BY_STAGE = (
    "So far: with the start checkpoint and all stages before; compare these figures. Alone: this stage only, which "
    "needed those before it. The stages after a release do not count it. A dash: the cost of some part is not known."
)


def cost_by_stage(runs: Sequence[RunReport]) -> Section | None:
    """What each stage and release cost, alone and from the start on, in every currency; None without stages."""
    columns = [Column("stage", False, cell=lambda row: Cell(row[1].name))]
    for currency in CURRENCIES:
        if any(currency.of_stage(part) for run in runs for part in run.parts):
            columns += _cost_columns(currency, drop=len(columns) - 1)
    rows = tuple(Rows(rows_of(columns, [(run, part) for part in run.parts]), run.name) for run in runs if run.stages)
    if not rows or len(columns) == 1:
        return None
    table = Table("cost-by-stage", tuple(columns), rows, _BY_STAGE)
    return Section("cost-by-stage", "Cost by stage", (table,), in_terminal=False, is_detail=True)


def _cost_columns(currency: Currency, drop: int) -> Iterator[Column]:
    """A narrow terminal keeps what to compare, in FLOPs at least."""

    def so_far(row: tuple[RunReport, StageReport]) -> Cell:
        return figure(currency.of(row[0].path(row[1])), currency.shown)

    yield Column(f"{currency.name} so far", drop=drop and 20 - drop, cell=so_far)
    yield Column(f"{currency.name} alone", drop=1, cell=lambda row: figure(currency.of_stage(row[1]), currency.shown))
