"""The validation losses that the evaluations of a stage have measured so far. Imports no torch."""

from typing import TYPE_CHECKING

from stages.checkpoint.lineage import Losses, TrainingRecord

if TYPE_CHECKING:
    from stages.train.evaluate import Measured


class StageLosses:
    """The losses at the steps of a stage. Its checkpoints store them, so that a resumed stage knows them too."""

    def __init__(self, main: Losses | None = None, own: Losses | None = None) -> None:
        """`own`: the losses at the stage's own context; None if `main` was measured there."""
        self.main = main or []
        """At the context of the ladder's last stage, so that the losses of all stages compare."""

        self.own_context = own or []

    @classmethod
    def of(cls, record: TrainingRecord) -> "StageLosses":
        """The losses that a checkpoint's record has."""
        return cls(list(record.losses), list(record.own_context_losses))

    @property
    def own(self) -> Losses:
        """At the context that the stage trains, which its trigger follows."""
        return self.own_context or self.main

    def add(self, step: int, found: "Measured") -> None:
        """Adds what the evaluation at `step` found."""
        self.main.append((step, found.result.loss))
        if found.own:
            self.own_context.append((step, found.own.loss))
