"""The validation losses that the evaluations of a stage have measured so far. Imports no torch."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stages.checkpoint.lineage import TrainingRecord

if TYPE_CHECKING:
    from stages.train.evaluate import Measured

Losses = list[tuple[int, float]]
"""(step, validation loss) pairs, oldest first."""


class StageLosses:
    """The losses at the steps of a stage. Its checkpoints store them, so that a resumed stage knows them too."""

    def __init__(self, main: Losses | None = None, own: Losses | None = None) -> None:
        """`own`: the losses at the stage's own context; None if `main` was measured there."""
        self.main = main or []
        """At the context of the ladder's last stage, so that the losses of all stages compare."""

        self._own = own or []

    @classmethod
    def of(cls, record: TrainingRecord) -> "StageLosses":
        """The losses that a checkpoint's record has."""
        return cls(_read(record.losses), _read(record.own_context_losses))

    @property
    def own(self) -> Losses:
        """At the context that the stage trains, which its trigger follows."""
        return self._own or self.main

    def add(self, step: int, found: "Measured") -> None:
        """Adds what the evaluation at `step` found."""
        self.main.append((step, found.result.loss))
        if found.own:
            self._own.append((step, found.own.loss))

    def record(self) -> dict[str, Losses]:
        """The losses as fields of a TrainingRecord."""
        return {"losses": self.main, "own_context_losses": self._own}


def _read(losses: Iterable[tuple[int, float | None]]) -> Losses:
    """The losses of a record: JSON stores NaN as null."""
    return [(step, math.nan if loss is None else loss) for step, loss in losses]
