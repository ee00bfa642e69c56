"""What growctl asks of a tracker, and how it describes a run to one. Each tracker has a file of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Status = Literal["finished", "interrupted", "failed"]
"""How growctl left the run: all that it was asked to train is trained, it was stopped, or training failed."""


@dataclass(frozen=True)
class TrackedRun:
    """A run, as trackers show it."""

    name: str
    group: str
    """The ladder's name: a ladder and its controls are one group."""

    kind: str
    """`ladder`, or the kind of control."""

    schedule: dict[str, Any]
    """The resolved schedule, with every default written out."""


@dataclass(frozen=True)
class Place:
    """A place in a run, on each axis that a chart may have."""

    stage: str
    """The name of the stage; for a release, `STAGE/release`."""

    index: int
    """The number of the stage in the ladder, from 0."""

    step: int
    """Optimizer steps since the first stage began."""

    tokens: int
    """Data tokens that the model has been trained on."""

    flops: float
    """Training FLOPs that the model has cost."""

    num_parameters: int

    def on_axes(self) -> dict[str, int]:
        """The place on each axis of a tracker whose x axis is one whole number, by the prefix of its values' names.

        FLOPs become gigaFLOPs, because trackers keep 64 bits.
        """
        return {"": self.step, "by_tokens/": self.tokens, "by_gigaflops/": round(self.flops / 1e9)}

    def values(self) -> dict[str, float]:
        """The place as values, for trackers that can use any value as the x axis."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "flops": self.flops,
            "stage": self.index,
            "parameters": self.num_parameters,
        }


class Tracker(Protocol):
    """A tracker of one run. It may be slow, hang or raise: only its own process does."""

    id: str
    """The run's id in the tracker, which a resumed run continues with."""

    def __init__(self, run: TrackedRun, store: Path, known: str | None) -> None:
        """`store`: where it writes, unless the user's environment names a server. `known`: the id of an earlier start
        of this run, if there was one."""

    def log(self, place: Place, values: Mapping[str, float]) -> None:
        """Takes in values measured at a place."""

    def mark(self, place: Place, event: str, text: str, values: Mapping[str, float]) -> None:
        """Takes in an event: a growth, a rejected update."""

    def flush(self) -> None:
        """Writes what it has taken in, so that it outlives this process."""

    def finish(self, status: Status, table: list[dict[str, str]]) -> None:
        """Ends the run, with the report's row for each stage; columns as in stages.csv."""
