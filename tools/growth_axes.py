"""Makes the tables and the picture of docs/growing.md about depth and tokens from benchmarks/results/."""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel

from tools.pages import REPOSITORY, filled
from tools.performance import RESULTS, Results, read_results
from tools.tables import NOT_MEASURED, table

PAGE = REPOSITORY / "docs/growing.md"
PICTURE = REPOSITORY / "docs/growing-axes.png"

KINDS = {
    "append": "depth, appended",
    "interleave": "depth, interleaved",
    "copy-stack": "depth, copied",
    "tokens": "tokens",
    "both": "depth and tokens",
}
COLOURS = dict(zip(KINDS, ("#1f6f8b", "#3aa17e", "#8a6bbe", "#c8553d", "#b8860b"), strict=True))


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
    def flops(self) -> float:
        """The training FLOPs, the mean over the seeds, which differ by less than a step."""
        return statistics.mean(outcome.flops for outcome in self.by_seed.values())

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

    def of_arm(self, arm: int) -> list[Row]:
        """The rows at the arm's own budget, the best first."""
        return sorted((row for row in self.rows if row.arm == arm and row.budget == 1), key=lambda row: row.loss)

    def curve(self, arm: int) -> list[tuple[float, float]]:
        """(FLOPs, mean loss) of the final size from scratch, the cheapest first."""
        last = max(self.rows, key=lambda row: row.sizes[-1].layers * row.sizes[-1].attention_tokens).sizes[-1]
        return sorted(
            (row.flops, row.loss) for row in self.rows if (row.arm, row.kind, row.sizes) == (arm, "scratch", [last])
        )


def flops_from_scratch(curve: Sequence[tuple[float, float]], loss: float) -> float | None:
    """The FLOPs at which a curve of (FLOPs, loss) reaches `loss`, between two measured points; None outside them.

    Between points, the loss is linear in the logarithm of the FLOPs.
    """
    for (cheap, high), (dear, low) in pairwise(curve):
        if low <= loss <= high and low < high:
            share = (high - loss) / (high - low)
            return math.exp(math.log(cheap) + share * (math.log(dear) - math.log(cheap)))
    return None


def saving(results: GrowthAxes, row: Row) -> float | None:
    """How many times the row's FLOPs the final size from scratch needs for the row's mean loss.

    None if the loss lies outside the curve.
    """
    needed = flops_from_scratch(results.curve(row.arm), row.loss)
    return None if needed is None else needed / row.flops


def arm_table(arm: int, results: Path = RESULTS) -> str:
    """All rows of an arm at its budget, the best first."""
    found = read_results(results / "growth_axes.json", GrowthAxes)
    if found is None or not found.of_arm(arm):
        return NOT_MEASURED
    rows = found.of_arm(arm)
    headings = ("run", "tokens", "peak", "jump, nats", "loss", "by seed", "FLOPs to equal loss")
    return table(headings, (_cells(found, row) for row in rows))


def _cells(results: GrowthAxes, row: Row) -> tuple[str, ...]:
    jumps = [jump for outcome in row.by_seed.values() for jump in outcome.jumps]
    largest = max(jumps, key=abs, default=None)
    factor = saving(results, row)
    is_scratch = row.kind == "scratch"
    return (
        f"**{row.shown}**" if is_scratch else row.shown,
        f"{row.tokens / 1e6:.1f}M",
        f"{1e3 * row.peak:g}e-3" + (f" of {len(row.tried)}" if len(row.tried) > 1 else ""),
        "-" if largest is None else f"{largest:+.3f}" if abs(largest) > 1e-5 else "0",
        f"{row.loss:.4f}",
        ", ".join(f"{outcome.loss:.4f}" for outcome in row.by_seed.values()),
        "-" if factor is None else f"{factor:.2f}x",
    )


def with_tables(page: str, results: Path = RESULTS) -> str:
    """`page` with the tables between its marks."""
    parts: dict[str, Callable[[], str]] = {
        "depth-and-tokens-few": partial(arm_table, 20, results),
        "depth-and-tokens-many": partial(arm_table, 100, results),
    }
    return filled(page, parts)


def draw(results: Path, picture: Path) -> bool:
    """Draws the final loss against the share of tokens before the last growth, for each axis; False without results."""
    found = read_results(results / "growth_axes.json", GrowthAxes)
    arms = sorted({row.arm for row in found.rows}) if found else []
    if found is None or not arms:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(arms), 4.8), layout="constrained")
    for number, arm in enumerate(arms):
        axes = figure.add_subplot(1, len(arms), number + 1)
        rows = found.of_arm(arm)
        jumps = [row for row in rows if len(row.until) == 1]
        for kind, first in sorted({(row.kind, str(row.sizes[0])) for row in jumps}):
            points = sorted((r.until[0], r.loss) for r in jumps if (r.kind, str(r.sizes[0])) == (kind, first))
            shares, losses = zip(*points, strict=True)
            line = "s--" if first.startswith("2") else "o-"
            axes.plot(shares, losses, line, color=COLOURS[kind], label=f"{KINDS[kind]}, from {first}")
        scratch = [row for row in rows if row.kind == "scratch"]
        lines = {"best from scratch": (scratch[:1], "-"), "final size from scratch": (_final_size(scratch), "--")}
        for label, (found_rows, style) in lines.items():
            for row in found_rows:
                axes.axhline(row.loss, color="#777777", linewidth=1, linestyle=style, label=f"{label}: {row.sizes[0]}")
        axes.set_title(f"{arm} training tokens a parameter", fontsize=10)
        axes.set_xlabel("share of the tokens before the growth")
        axes.set_ylabel("validation loss at the end, nats a token")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    figure.savefig(picture, dpi=110)
    return True


def _final_size(scratch: Sequence[Row]) -> list[Row]:
    """The largest of the sizes from scratch, which every growth ends in."""
    largest = max(scratch, key=lambda row: row.sizes[0].layers * row.sizes[0].attention_tokens, default=None)
    return [largest] if largest else []
