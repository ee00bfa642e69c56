"""What each run would have had to spend for the losses that the others reached, in every currency that is known.

Figures only; growctl/loss_costs/sections.py words them. A cost is read off the lower convex envelope of finished
models whose learning rate has decayed, linear in loss and log cost, and never beyond them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from growctl.analysis.runs import RunReport
from growctl.seeds.ladders import MEASUREMENT
from growctl.text.formatting import short_count
from growctl.verdicts.compare import Comparison, compare
from growctl.verdicts.costs import CURRENCIES, Currency
from growctl.verdicts.envelope import crossing, lower_envelope
from growctl.verdicts.family import compare_family, finished_models


@dataclass(frozen=True)
class FinishedModel:
    """A finished model whose learning rate has decayed, and what it cost from its start checkpoint on."""

    run: str
    stage: str
    """The stage that it ends with, or its release."""
    num_parameters: int
    loss: float
    """Nats per token."""
    costs: Mapping[str, float]
    """By the key of the currency, for those in which it is known."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """The part that is not known, for the others."""

    @classmethod
    def of(cls, run: RunReport, name: str) -> "FinishedModel":
        """The model that `run` ends with; `name`: that of the directory of its run."""
        assert run.final_loss is not None
        costs = {currency.key: currency.of_run(run) for currency in CURRENCIES}
        unknown = {currency.key: part for currency in CURRENCIES if (part := currency.unknown_part(run))}
        known = {key: cost for key, cost in costs.items() if cost is not None}
        last = run.stages[-1]
        return cls(name, last.name, last.num_parameters, run.final_loss, known, unknown)


@dataclass(frozen=True)
class Curve:
    """Finished models of one way to train: those of a ladder, or its controls of one kind and size."""

    name: str
    models: tuple[FinishedModel, ...]
    control: str | None = None
    """The kind of the controls; None for a ladder."""
    num_parameters: int | None = None
    """The size of the controls; None for a ladder and for `best-scratch`."""


@dataclass(frozen=True)
class Reach:
    """What a curve costs at a loss."""

    cost: float | None
    """None if the curve does not tell, for the reason `why`."""
    why: str = ""
    word: str = ""
    """The same in two words."""


@dataclass(frozen=True)
class Board:
    """Curves whose losses are comparable: all were measured on the same text."""

    name: str
    """The ladder that they belong to, or what they have in common."""
    curves: tuple[Curve, ...]
    """The ladder's own first, where there are controls."""

    @property
    def has_controls(self) -> bool:
        """Whether it holds a ladder with its controls, and not several ladders."""
        return any(curve.control for curve in self.curves)

    @property
    def targets(self) -> tuple[FinishedModel, ...]:
        """The finished models of all curves, the highest loss first."""
        models = {(model.run, model.stage): model for curve in self.curves for model in curve.models}
        return tuple(sorted(models.values(), key=lambda model: (-model.loss, model.run, model.stage)))


def cost_of_loss(curve: Curve, loss: float, currency: Currency) -> Reach:
    """What `curve` costs at `loss`, between its finished models."""

    def cost(model: FinishedModel) -> float:
        return model.costs[currency.key]

    if not curve.models:
        return Reach(None, f"{curve.name} has no finished model yet.", "no model")
    for model in curve.models:
        if currency.key not in model.costs:
            part = model.unknown.get(currency.key, model.stage)
            return Reach(None, f"The {currency.name} of {model.run} is not known: {part}.", "unknown")
    envelope = lower_envelope(curve.models, cost)
    if not envelope:
        return Reach(None, f"{curve.name} has no model that cost any {currency.name}.", "unknown")
    best, cheapest = envelope[-1], envelope[0]
    found = crossing(curve.models, loss, cost)
    if found is None:
        why = f"{curve.name} did not reach that loss: its best is {best.loss:.4f}{_of(best, curve)}."
        return Reach(None, why, "not reached")
    if not found.bracketed:
        ended = f"{cheapest.loss:.4f}{_of(cheapest, curve)}"
        return Reach(None, f"even the cheapest of {curve.name} ended below that loss, at {ended}.", "not bracketed")
    return Reach(found.cost)


def _of(model: FinishedModel, curve: Curve) -> str:
    """The run of a model in brackets, unless its curve has that name."""
    return "" if model.run == curve.name else f" ({model.run})"


def boards(runs: Sequence[RunReport]) -> list[Board]:
    """A board for each ladder among `runs` that has controls to compare it with."""
    found = []
    for ladder in (run for run in runs if run.control is None):
        curves = (Curve("this ladder", models_of(ladder)), *_control_curves(ladder, runs))
        if sum(bool(curve.models) for curve in curves) > 1:
            found.append(Board(ladder.name, curves))
    return found


def ladder_boards(runs: Sequence[RunReport]) -> list[Board]:
    """A board of the ladders that were trained on the same data with the same seed, if there are several.

    Runs of other seeds are left out: seeds are compared by their means, not one by one.
    """
    groups: dict[tuple[object, ...], list[Curve]] = {}
    for ladder in (run for run in runs if run.control is None):
        measured = (pair for pair in sorted(ladder.conditions.items()) if pair[0].startswith(MEASUREMENT))
        key = (ladder.seed, ladder.dataset_fingerprint, *measured)
        if models := models_of(ladder):
            groups.setdefault(key, []).append(Curve(ladder.name, models))
    return [
        Board(f"ladders on the same data, seed {seed}", tuple(curves))
        for (seed, *_), curves in groups.items()
        if len(curves) > 1
    ]


def known_currencies(boards: Sequence[Board]) -> list[Currency]:
    """The currencies in which any model of `boards` has a cost above 0."""
    costs = [model.costs for board in boards for model in board.targets]
    return [currency for currency in CURRENCIES if any(known.get(currency.key) for known in costs)]


def family_from_scratch(ladder: RunReport, runs: Sequence[RunReport], currency: Currency) -> Reach:
    """What the losses of all finished models of `ladder` cost, each from scratch at its own size."""
    family = compare_family(ladder, runs)
    total = 0.0
    for comparison in family.models if family else ():
        loss, name = comparison.ladder.final_loss, comparison.ladder.name
        if loss is None:
            return Reach(None, f"{name} is not finished.", "unknown")
        found = cost_of_loss(Curve(f"From scratch, {name}", _control_models(comparison, runs)), loss, currency)
        if found.cost is None:
            return found
        total += found.cost
    return Reach(total) if family else Reach(None, f"{ladder.name} has no family.", "unknown")


def models_of(ladder: RunReport) -> tuple[FinishedModel, ...]:
    """The finished, fully decayed models of a ladder, in the order of their stages."""
    models = finished_models(ladder)
    if ladder.decays and ladder.stages and not ladder.stages[-1].decayed:
        models.append(ladder)  # its rate decays over all stages
    return tuple(FinishedModel.of(model, ladder.name) for model in models if model.final_loss is not None)


def _control_curves(ladder: RunReport, runs: Sequence[RunReport]) -> Iterator[Curve]:
    """A curve for each kind and size of controls that count and decay."""
    family = compare_family(ladder, runs)
    known: set[frozenset[str]] = set()
    for comparison in (*compare(ladder, runs), *(family.models if family else ())):
        if comparison.missing_sizes:
            continue  # the best of all sizes is not known yet
        models = _control_models(comparison, runs)
        kind, size, names = comparison.control, comparison.num_parameters, frozenset(model.run for model in models)
        if names and names not in known:
            known.add(names)
            label = f"{kind} {short_count(size)}" if size else kind
            yield Curve(label, models, kind, size)


def _control_models(comparison: Comparison, runs: Sequence[RunReport]) -> tuple[FinishedModel, ...]:
    """The models of the controls that count in a comparison and decay."""
    by_name = {run.name: run for run in runs}
    controls = (by_name[point.run] for point in comparison.points)
    return tuple(FinishedModel.of(run, run.name) for run in controls if run.decays)
