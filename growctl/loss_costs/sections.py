"""Words what each loss costs: sentences on every ladder against its controls, and a table for each currency."""

from collections.abc import Iterator, Sequence

from growctl.analysis.runs import RunReport
from growctl.loss_costs.equal_loss import (
    Board,
    Curve,
    FinishedModel,
    boards,
    cost_of_loss,
    known_currencies,
    ladder_boards,
)
from growctl.runs_dir import CONTROL_INFIX
from growctl.text.section import Cell, Column, Paragraph, Rows, Section, Table
from growctl.verdicts.compare import EACH_SIZE, EQUAL_FLOPS_TOLERANCE, is_scratch
from growctl.verdicts.costs import FLOPS, Currency

RULES = (
    "Each cell: what it costs to reach that loss in that way, also as a multiple of what the row's own model cost. "
    "Read off between finished models whose learning rate has decayed, linear in loss and log cost, never beyond them. "
    "Counted: the start checkpoint, every stage and reused work; not replayed work."
)
DEVICE_RULES = "Device time depends on the machines and on what else ran there, and money and energy with it."

_EVEN = 1e-9
"""The relative difference of two costs up to which one is the other, up to rounding."""


def section(runs: Sequence[RunReport]) -> Section | None:
    """What each loss costs in FLOPs, and the result in every currency; None without controls to compare with."""
    found, ladders = boards(runs), answered(ladder_boards(runs))
    if not found and not ladders:
        return None
    parts: list[Paragraph | Table] = [Paragraph(sentence) for board in found for sentence in sentences(board)]
    if any(currency is not FLOPS for currency in known_currencies(found)):
        parts.append(Paragraph(DEVICE_RULES, "note"))
    parts += [_table(f"equal-loss-{FLOPS.key}", some, FLOPS, RULES) for some in (found, ladders) if some]
    return Section("equal-loss", "What each loss costs", tuple(parts), in_terminal=False)


def section_of_other_costs(runs: Sequence[RunReport]) -> Section | None:
    """The tables of the other currencies; None without any. The sentences of `section` have their results."""
    found = boards(runs)
    parts: list[Paragraph | Table] = []
    for currency in known_currencies(found):
        if currency is not FLOPS:
            parts += [Paragraph(f"In {currency.name} ({currency.unit})", "heading")]
            parts += [_table(f"equal-loss-{currency.key}", found, currency, "")]
    parts += [Paragraph(DEVICE_RULES, "note")] if parts else []
    heading = "What each loss costs in time, money and energy"
    if not parts:
        return None
    return Section("equal-loss-other-costs", heading, tuple(parts), in_terminal=False, is_detail=True)


def answered(ladders: Sequence[Board]) -> list[Board]:
    """The boards of `ladders` on which one ladder reaches a loss of another; the rest says nothing."""

    def answers(board: Board) -> Iterator[bool]:
        for curve in board.curves:
            for target in board.targets:
                yield target not in curve.models and cost_of_loss(curve, target.loss, FLOPS).cost is not None

    return [board for board in ladders if any(answers(board))]


def sentences(board: Board) -> Iterator[str]:
    """What each curve of controls costs at the losses of the ladder that it is to be compared with."""
    own, *controls = board.curves
    for model in own.models:
        for curve in controls:
            is_same_size = curve.num_parameters == model.num_parameters
            if is_same_size if curve.control == EACH_SIZE else model is own.models[-1]:
                yield from _sentence(board, model, curve)


def _sentence(board: Board, model: FinishedModel, curve: Curve) -> Iterator[str]:
    """What the curve costs at the loss of a model; nothing if no cost is known, for which the table has the reason."""
    name = board.name if model is board.curves[0].models[-1] else f"{model.stage} of {board.name}"
    who = "growing" if is_scratch(curve.control or "") else "this ladder"
    costs = []
    for currency in known_currencies([board]):
        found, spent = cost_of_loss(curve, model.loss, currency).cost, model.costs.get(currency.key)
        if found and spent:
            of = "" if currency is FLOPS else "of "
            costs.append(f"{currency.shown(found)} {of}{currency.name} ({_result(who, found / spent)})")
    if costs:
        yield f"{curve.name} needs {_listed(costs)} for the loss of {name}, {model.loss:.4f} nats."


def _result(who: str, ratio: float) -> str:
    """What `who` saved, if the others need `ratio` times its cost."""
    if abs(ratio - 1) <= EQUAL_FLOPS_TOLERANCE:
        return f"{ratio:.2f}x, {who} came out even"
    if ratio > 1:
        return f"{ratio:.2f}x, {who} saved {1 - 1 / ratio:.0%}"
    return f"{ratio:.2f}x, {who} cost {1 / ratio - 1:.0%} more"


def _listed(parts: Sequence[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def _table(key: str, found: Sequence[Board], currency: Currency, caption: str) -> Table:
    """A row for each finished model, grouped by board, and a column for each way to reach its loss."""
    names = tuple(dict.fromkeys(curve.name for board in found for curve in board.curves))
    curves = [
        Column(name.replace("-", " "), drop=len(names) - index if index else 0) for index, name in enumerate(names)
    ]
    columns = (Column("whose loss", is_number=False), Column("nats"), *curves)
    groups = []
    for board in found:
        by_name = {curve.name: curve for curve in board.curves}
        rows = [
            (
                Cell(_short(target, board)),
                Cell(f"{target.loss:.4f}", target.loss),
                *(_cell(by_name.get(name), target, currency) for name in names),
            )
            for target in board.targets
        ]
        groups.append(Rows(tuple(rows), board.name))
    return Table(key if found[0].has_controls else f"{key}-ladders", columns, tuple(groups), caption)


def _short(model: FinishedModel, board: Board) -> str:
    """The name of a model below the name of its board."""
    if model.run == board.name:
        return model.stage
    if board.has_controls:
        return model.run.removeprefix(f"{board.name}{CONTROL_INFIX}")
    return model.run


def _cell(curve: Curve | None, target: FinishedModel, currency: Currency) -> Cell:
    if curve is None:
        return Cell("-", why="There are no such controls.")
    found, spent = cost_of_loss(curve, target.loss, currency), target.costs.get(currency.key)
    if found.cost is None:
        return Cell(found.word, why=found.why)
    shown = currency.shown(found.cost)
    if not spent or abs(found.cost / spent - 1) <= _EVEN:
        return Cell(shown, found.cost)
    return Cell(f"{shown}, {found.cost / spent:.2f}x", found.cost)
