"""Makes the table of docs/growing.md about depth and tokens from benchmarks/results/."""

import statistics
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from tools.pages import REPOSITORY, filled
from tools.performance import RESULTS, Results, read_results
from tools.tables import NOT_MEASURED, table

PAGE = REPOSITORY / "docs/growing.md"

KINDS = {
    "append": "depth, appended",
    "interleave": "depth, interleaved",
    "copy-stack": "depth, copied",
    "tokens": "tokens",
    "both": "depth and tokens",
}
ARM, MANY = 20, 3
"""The data tokens per parameter of the table, and the seeds that a row must have."""


class Size(BaseModel):
    """A size of the model."""

    layers: int
    attention_tokens: int
    ffn_tokens: int

    def __str__(self) -> str:
        layers = f"{self.layers} layer{'' if self.layers == 1 else 's'}"
        return f"{layers} x {self.attention_tokens}" if self.layers else layers


class Outcome(BaseModel):
    """One finished run."""

    loss: float
    flops: float
    jumps: list[float]


class Row(BaseModel):
    """One way to spend the budget, with its runs by seed."""

    arm: int
    name: str
    kind: str
    sizes: list[Size]
    until: list[float]
    budget: float
    tokens: int
    peak: float
    """The peak learning rate: the one of `tried` at which seed 0 ended best."""

    tried: dict[str, float]
    """The final losses of seed 0 by peak, in nats."""

    by_seed: dict[str, Outcome]

    @property
    def loss(self) -> float:
        """The mean final loss, in nats."""
        return statistics.mean(outcome.loss for outcome in self.by_seed.values())

    @property
    def shown(self) -> str:
        """The row in words."""
        if self.kind == "scratch":
            return f"{self.sizes[0]}, from scratch"
        stages = [
            f"{size} to {share:.0%}".replace("%", " %") for size, share in zip(self.sizes, self.until, strict=False)
        ]
        return f"{KINDS[self.kind]}: {', '.join(stages)}, then {self.sizes[-1]}"


class GrowthAxes(Results):
    """The results file of benchmarks/growth_axes.py."""

    parameters: int
    rows: list[Row]

    def shown(self) -> list[Row]:
        """The rows with several seeds, the best first."""
        rows = (row for row in self.rows if (row.arm, row.budget) == (ARM, 1) and len(row.by_seed) >= MANY)
        return sorted(rows, key=lambda row: row.loss)


def axes_table(results: Path = RESULTS) -> str:
    """The rows with several seeds, the best first."""
    found = read_results(results / "growth_axes.json", GrowthAxes)
    if found is None:
        return NOT_MEASURED
    headings = ("run", "tokens", "peak", "jump, nats", "mean loss", "by seed")
    return table(headings, map(_cells, found.shown()))


def _cells(row: Row) -> tuple[str, ...]:
    jumps = [jump for outcome in row.by_seed.values() for jump in outcome.jumps]
    largest = max(jumps, key=abs, default=None)
    is_scratch = row.kind == "scratch"
    return (
        f"**{row.shown}**" if is_scratch else row.shown,
        f"{row.tokens / 1e6:.1f}M",
        f"{1e3 * row.peak:g}e-3",
        "-" if largest is None else f"{largest:+.3f}" if abs(largest) > 1e-5 else "0",
        f"{row.loss:.4f}",
        ", ".join(f"{outcome.loss:.4f}" for outcome in row.by_seed.values()),
    )


def with_table(page: str, results: Path = RESULTS) -> str:
    """`page` with the table between its marks."""
    return filled(page, {"depth-and-tokens": partial(axes_table, results)})
