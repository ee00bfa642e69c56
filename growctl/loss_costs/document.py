"""What each loss costs, as values for scripts."""

from collections.abc import Sequence
from dataclasses import dataclass

from growctl.analysis.runs import RunReport
from growctl.loss_costs.equal_loss import Board, boards, cost_of_loss, known_currencies, ladder_boards
from growctl.verdicts.costs import CURRENCIES


@dataclass(frozen=True)
class CurrencyEntry:
    """Something that training spends."""

    key: str
    name: str
    unit: str


@dataclass(frozen=True)
class ModelCostEntry:
    """A finished model whose learning rate has decayed."""

    run: str
    stage: str
    """The stage that it ends with, or its release."""
    num_parameters: int
    loss: float
    """Nats per token."""
    costs: dict[str, float | None]
    """What it cost, by the key of the currency: start checkpoint, all stages and reused work, without replayed work.
    None if any part is not known."""


@dataclass(frozen=True)
class CostOfLossEntry:
    """What one way to train would have cost for the loss of a model."""

    run: str
    """The model whose loss it is, as in ModelCostEntry."""
    stage: str
    curve: str
    """The way to train: `this ladder`, the kind and size of controls, or the name of a ladder."""
    curve_runs: tuple[str, ...]
    """The runs between whose finished models the cost is read off."""
    currency: str
    """Its key."""
    cost: float | None
    """None if it cannot be read off between two finished models."""
    ratio: float | None
    """`cost` / what the model itself cost; below 1, this way is cheaper."""
    why: str
    """Why there is no cost, in a sentence; empty if there is one."""


@dataclass(frozen=True)
class EqualLossBoard:
    """Ways to train whose losses are comparable: a ladder and its controls, or ladders on the same data."""

    name: str
    models: tuple[ModelCostEntry, ...]
    """The highest loss first."""
    costs: tuple[CostOfLossEntry, ...]


@dataclass(frozen=True)
class EqualLossDocument:
    """What each run would have had to spend for the losses that the others reached."""

    currencies: tuple[CurrencyEntry, ...]
    boards: tuple[EqualLossBoard, ...]


def equal_loss_document(runs: Sequence[RunReport]) -> EqualLossDocument:
    """The costs of all losses, in all currencies."""
    currencies = tuple(CurrencyEntry(currency.key, currency.name, currency.unit) for currency in CURRENCIES)
    return EqualLossDocument(currencies, tuple(map(_board, [*boards(runs), *ladder_boards(runs)])))


def _board(board: Board) -> EqualLossBoard:
    models = tuple(
        ModelCostEntry(
            *(model.run, model.stage, model.num_parameters, model.loss),
            costs={currency.key: model.costs.get(currency.key) for currency in CURRENCIES},
        )
        for model in board.targets
    )
    costs = []
    for target in board.targets:
        for curve in board.curves:
            runs = tuple(dict.fromkeys(model.run for model in curve.models))
            for currency in known_currencies([board]):
                found, spent = cost_of_loss(curve, target.loss, currency), target.costs.get(currency.key)
                ratio = found.cost / spent if found.cost and spent else None
                place = (target.run, target.stage, curve.name, runs, currency.key)
                costs.append(CostOfLossEntry(*place, found.cost, ratio, found.why))
    return EqualLossBoard(board.name, models, tuple(costs))
