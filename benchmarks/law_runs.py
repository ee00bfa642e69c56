"""Trains what docs/law.md lists: sizes from scratch, ladders, and ladders held out with their opponents.

    python -m benchmarks.law_runs run --directory DIR --text TEXT [--only 'scratch-*']
    python -m benchmarks.law_runs table --directory DIR    # fits the law: results/law.json

TEXT is that of benchmarks/three_questions.py. Ladders and opponents are drawn with a fixed seed, before any fit. All of
it takes about 30 hours of a core.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import rows
from benchmarks.rows import Row
from benchmarks.three_questions import other_text

LAW = Path(__file__).resolve().parent / "results" / "law.json"
LENGTHS = (1, 2, 4, 8, 16)
"""Millions of data tokens of a run from scratch."""

SEVERAL_SEEDS = (2, 4)
"""The lengths that have three seeds."""

BEFORE, AFTER = (10, 100), (5, 40)
"""Between how many tokens a parameter a growth comes, and how many follow."""


class Size(NamedTuple):
    """A size of the quickstart's width."""

    attention_tokens: int
    layers: int = 3

    @property
    def parameters(self) -> int:
        """All of them, with the embedding and the final norm."""
        return 65_664 + self.layers * self.attention_tokens * 1024

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs of a data token."""
        from model.config import tokenformer_config
        from model.flops import training_flops_per_token

        config = tokenformer_config(
            num_layers=self.layers,
            attention_tokens=self.attention_tokens,
            ffn_tokens=4 * self.attention_tokens,
            vocab_size=1024,
            hidden_size=64,
            num_heads=4,
        )
        return training_flops_per_token(config, 64).total

    def stage(self, tokens: float) -> str:
        """A stage that trains it."""
        keys = f"attention_tokens: {self.attention_tokens}, ffn_tokens: {4 * self.attention_tokens}"
        return f"{{name: {self}, num_layers: {self.layers}, {keys}, train_tokens: {round(tokens)}}}"

    def __str__(self) -> str:
        return f"{self.layers}x{self.attention_tokens}"


SCRATCH = tuple(map(Size, (16, 32, 64, 96, 160)))
GROWTHS = {
    "tokens": [(Size(a), Size(b)) for a, b in ((16, 64), (16, 96), (32, 64), (32, 96), (32, 160), (64, 160))],
    "depth": [(Size(64, a), Size(64, b)) for a, b in ((1, 3), (1, 4), (2, 4), (1, 6), (2, 6))],
}


class Ladder(NamedTuple):
    """A growth from one size to another."""

    sizes: tuple[Size, Size]
    tokens: tuple[float, float]
    """Data tokens before the growth and after it."""

    @property
    def flops(self) -> float:
        """Of both stages."""
        return sum(size.flops_per_token * tokens for size, tokens in zip(self.sizes, self.tokens, strict=True))


def drawn(number: int, generator: random.Random) -> Iterator[Ladder]:
    """So many ladders, in turn in tokens and in depth; ratios are drawn evenly in logarithms."""
    for index in range(number):
        sizes = generator.choice(GROWTHS["depth" if index % 2 else "tokens"])
        ratios = [math.exp(generator.uniform(*map(math.log, ends))) for ends in (BEFORE, AFTER)]
        before, after = (ratio * size.parameters for ratio, size in zip(ratios, sizes, strict=True))
        yield Ladder(sizes, (before, after))


def row(name: str, sizes: tuple[Size, ...], tokens: tuple[float, ...], text: str) -> Row:
    """A run of these stages."""
    stages = ", ".join(size.stage(each) for size, each in zip(sizes, tokens, strict=True))
    depth = f"model.num_layers={sizes[0].layers}"
    same = ("controls=[]", "launch.devices=1", "launch.kernels=compiled", "evaluation.every=500", *other_text(text))
    return Row(name, "quickstart", (depth, f"stages=[{stages}]", *same))


def made(text: str = "") -> list[tuple[Row, tuple[int, ...]]]:
    """Every row, with its seeds."""
    three: tuple[int, ...] = (0, 1, 2)
    generator = random.Random(33)
    found = [
        (row(f"scratch-{size}-{length}M", (size,), (1e6 * length,), text), three if length in SEVERAL_SEEDS else (0,))
        for size in SCRATCH
        for length in LENGTHS
    ]
    held_out = list(drawn(12, generator))
    for number, ladder in enumerate(drawn(24, generator)):
        found.append((row(f"grown-{number}", *ladder, text), (0,)))
    for number, ladder in enumerate(held_out):
        found.append((row(f"test-{number}", *ladder, text), three))
        lengths = {size: ladder.flops / size.flops_per_token for size in SCRATCH}
        by_distance = sorted(SCRATCH, key=lambda size: abs(math.log(lengths[size] / size.parameters / 20)))
        for size in by_distance[:2]:
            found.append((row(f"test-{number}-scratch-{size}", (size,), (lengths[size],), text), three))
    return found


def main() -> None:
    """Runs the command on the command line."""
    parser = rows.parser(__doc__)
    parser.add_argument("--text", default="", help="the folder of the text")
    arguments = parser.parse_args()
    found, directory, asked = made(arguments.text), arguments.directory.resolve(), arguments.seeds
    if arguments.what == "table":
        names = [row.run_name(seed, None) for row, seeds in found for seed in seeds]
        held_out = [f"--held-out={name}" for name in names if name.startswith("test-")]
        fitted = [name for name in names if not name.startswith("test-")]
        rows.growctl(directory, "law", "law", "fit", *fitted, *held_out, f"--runs-dir={directory}", f"--output={LAW}")
    for seeds in sorted({each for _, each in found}) if arguments.what == "run" else []:
        arguments.seeds = [seed for seed in seeds if seed in asked]
        rows.run([row for row, each in found if each == seeds], arguments)


if __name__ == "__main__":
    main()
