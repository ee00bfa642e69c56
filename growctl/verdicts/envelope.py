"""Reads off a curve of measured models what a loss costs, without extrapolation, in whatever a cost is counted."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeVar


class Measured(Protocol):
    """A finished model."""

    @property
    def loss(self) -> float:
        """Nats per token."""


Model = TypeVar("Model", bound=Measured)


@dataclass(frozen=True)
class Crossing(Generic[Model]):
    """The point at which a curve reaches a loss."""

    cost: float
    """An upper bound if it is not `bracketed`."""
    bracketed: bool
    """Whether a cheaper model ended above the loss, or one ended right at it."""
    model: Model
    """The cheapest model on the envelope that ended at or below the loss."""


def lower_envelope(models: Iterable[Model], cost: Callable[[Model], float]) -> list[Model]:
    """The models on the lower convex envelope of the losses, sorted by cost, down to the lowest loss.

    The envelope is convex in log cost, as losses of well-tuned models are. It leaves out a model that costs more than
    another and has no lower loss, and one above the line between two others, such as a size too large or too small for
    its budget. It has no place for a model whose loss is not finite, or whose cost is not finite and above 0.
    """
    placed = [model for model in models if math.isfinite(model.loss) and 0 < cost(model) < math.inf]
    envelope: list[Model] = []
    for model in sorted(placed, key=lambda model: (cost(model), model.loss)):
        if envelope and model.loss >= envelope[-1].loss:
            continue
        while len(envelope) > 1 and _loss_at(cost(envelope[-1]), envelope[-2], model, cost) <= envelope[-1].loss:
            envelope.pop()
        envelope.append(model)
    return envelope


def crossing(models: Iterable[Model], loss: float, cost: Callable[[Model], float]) -> Crossing[Model] | None:
    """The point at which the lower envelope of `models` reaches `loss`; None if it does not.

    If the cheapest model of the envelope is already below `loss`, its cost is an upper bound, and the result is not
    bracketed.
    """
    envelope = lower_envelope(models, cost)
    if not envelope or not envelope[-1].loss <= loss:
        return None
    if envelope[0].loss <= loss:
        return Crossing(cost(envelope[0]), envelope[0].loss == loss, envelope[0])
    low, high = next((low, high) for low, high in pairwise(envelope) if high.loss <= loss)
    share = (low.loss - loss) / (low.loss - high.loss)
    return Crossing(cost(low) * (cost(high) / cost(low)) ** share, True, high)


def _loss_at(budget: float, low: Model, high: Model, cost: Callable[[Model], float]) -> float:
    """The loss for `budget`, interpolated linearly in log cost between two models."""
    share = math.log(budget / cost(low)) / math.log(cost(high) / cost(low))
    return low.loss + share * (high.loss - low.loss)
