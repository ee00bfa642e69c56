"""What each stage cost, alone and from the start on, in every currency; releases and the whole family apart."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from growctl.analysis.runs import RunReport
from growctl.loss_costs.equal_loss import family_from_scratch
from growctl.text.section import Cell, Column, Rows, Section, Table
from growctl.verdicts.costs import CURRENCIES, FLOPS, Currency
from growctl.verdicts.family import finished_models

CAPTION = (
    "So far: with the start checkpoint and all stages before; compare these figures. Alone: this stage only, which "
    "needed those before it. A release is a branch: the stages after it do not count it. Reused work counts, replayed "
    "work does not. A dash: the cost of some part is not known."
)


@dataclass(frozen=True)
class StageCost:
    """The cost of a stage, of a release, of a start checkpoint, or of all finished models of a ladder."""

    what: str
    run: RunReport
    """The run as if it had ended here."""
    alone: dict[str, float | None]
    """By the key of the currency."""
    so_far: dict[str, float | None]


def costs(run: RunReport) -> Iterator[StageCost]:
    """The costs of a run in the order in which they were spent."""
    if run.base:
        base = {currency.key: currency.of_base(run.base) for currency in CURRENCIES}
        yield StageCost("start checkpoint", replace(run, stages=()), base, base)
    for number, stage in enumerate(run.stages, 1):
        trunk = run.stages[:number]
        yield _cost(stage.name, replace(run, stages=trunk))
        for release in run.releases:
            if release.branch_of == stage.name:
                yield _cost(f"{release.name} (branch)", replace(run, stages=(*trunk, release)))


def family_costs(ladder: RunReport, runs: Sequence[RunReport]) -> Iterator[StageCost]:
    """What all finished models of a ladder cost together, by growing and from scratch; none for a single model."""
    models = [model for model in finished_models(ladder) if model.final_loss is not None]
    if len(models) > 1:
        nothing: dict[str, float | None] = {currency.key: None for currency in CURRENCIES}
        grown = {currency.key: currency.of_all(models) for currency in CURRENCIES}
        yield StageCost(f"all {len(models)} models", replace(ladder, stages=ladder.parts), nothing, grown)
        scratch = {currency.key: family_from_scratch(ladder, runs, currency).cost for currency in CURRENCIES}
        if scratch[FLOPS.key] is not None:
            yield StageCost("all from scratch", replace(ladder, stages=()), nothing, scratch)


def section(runs: Sequence[RunReport]) -> Section | None:
    """The table; None if no run has a stage."""
    found = [(run, [*costs(run), *(() if run.control else family_costs(run, runs))]) for run in runs if run.stages]
    known = [
        currency for currency in CURRENCIES if any(cost.so_far[currency.key] for _, some in found for cost in some)
    ]
    if not known:
        return None
    columns = [Column("stage", is_number=False)]
    for currency in known:
        columns += [Column(f"{currency.name} so far"), Column(f"{currency.name} alone")]
    groups = [Rows(tuple(_row(cost, known) for cost in some), run.name) for run, some in found]
    table = Table("cost-by-stage", tuple(columns), tuple(groups), CAPTION)
    return Section("cost-by-stage", "Cost by stage", (table,), in_terminal=False, is_detail=True)


def _cost(what: str, run: RunReport) -> StageCost:
    """The cost of the last stage of `run`."""
    alone = {currency.key: currency.of_stage(run.stages[-1]) for currency in CURRENCIES}
    return StageCost(what, run, alone, {currency.key: currency.of_run(run) for currency in CURRENCIES})


def _row(cost: StageCost, known: Sequence[Currency]) -> tuple[Cell, ...]:
    cells = [Cell(cost.what)]
    for currency in known:
        unknown = currency.unknown_part(cost.run)
        why = f"Not known of {unknown}." if unknown else ""
        for value in (cost.so_far[currency.key], cost.alone[currency.key]):
            cells.append(Cell("-", why=why) if value is None else Cell(currency.shown(value), value))
    return tuple(cells)
