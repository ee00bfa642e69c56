"""Trains what docs/law.md lists: sizes from scratch, ladders, and ladders held out with their opponents.

    python -m benchmarks.law_runs run --directory DIR --text TEXT [--only 'scratch-*']
    python -m benchmarks.law_runs table --directory DIR    # fits the law: results/law.json

TEXT is that of benchmarks/three_questions.py. Ladders and opponents are drawn with a fixed seed, before any fit. All of
it takes about nine hours of a core, because runs that begin alike train once: rows with the same first size and seed
follow one another, the shortest first, and each continues from the last checkpoint that both have in common.
"""

import fnmatch
import math
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks import rows
from benchmarks.rows import Row
from benchmarks.three_questions import other_text

LAW = Path(__file__).resolve().parent / "results" / "law.json"
LENGTHS = (1.5, 3, 6, 12, 24)
"""Training FLOPs of a run from scratch, in 1e12."""

SEVERAL_SEEDS = (3, 6)
"""The lengths that have three seeds."""

BEFORE, AFTER = (10, 60), (4, 16)
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
        from model.flops import training_flops_per_token
        from model.tokenformer_config import tokenformer_config

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
    "tokens": [(Size(a), Size(b)) for a, b in ((16, 64), (16, 96), (32, 64), (32, 96))],
    "depth": [(Size(64, a), Size(64, b)) for a, b in ((1, 3), (1, 4), (2, 4))],
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


class Run(NamedTuple):
    """A row with one seed."""

    row: Row
    seed: int
    first: Size
    """Its first size."""

    constant_tokens: float
    """Data tokens before the learning rate decays or the model grows."""


def made(text: str = "") -> list[Run]:
    """Every run."""
    three, found = (0, 1, 2), list[Run]()

    def add(name: str, sizes: tuple[Size, ...], tokens: tuple[float, ...], seeds: tuple[int, ...]) -> None:
        constant = tokens[0] if len(tokens) > 1 else 0.75 * tokens[0]
        found.extend(Run(row(name, sizes, tokens, text), seed, sizes[0], constant) for seed in seeds)

    for size in SCRATCH:
        for length in LENGTHS:
            tokens = (1e12 * length / size.flops_per_token,)
            add(f"scratch-{size}-{length:g}e12", (size,), tokens, three if length in SEVERAL_SEEDS else (0,))
    generator = random.Random(33)
    held_out = list(drawn(12, generator))
    for number, ladder in enumerate(drawn(24, generator)):
        add(f"grown-{number}", *ladder, (0,))
    for number, ladder in enumerate(held_out):
        add(f"test-{number}", *ladder, three)
        lengths = {size: ladder.flops / size.flops_per_token for size in SCRATCH}
        by_distance = sorted(SCRATCH, key=lambda size: abs(math.log(lengths[size] / size.parameters / 20)))
        for size in by_distance[:2]:
            add(f"test-{number}-scratch-{size}", (size,), (lengths[size],), three)
    return found


def train(runs: list[Run], directory: Path) -> None:
    """Trains runs that begin alike, the shortest first, so that each finds the checkpoints of those before it."""
    for each in sorted(runs, key=lambda run: run.constant_tokens):
        rows.train(each.row, each.seed, directory)


def main() -> None:
    """Runs the command on the command line."""
    parser = rows.parser(__doc__)
    parser.add_argument("--text", default="", help="the folder of the text")
    arguments = parser.parse_args()
    found, directory = made(arguments.text), arguments.directory.resolve()
    if arguments.what == "table":
        names = [run.row.run_name(run.seed, None) for run in found]
        held_out = [f"--held-out={name}" for name in names if name.startswith("test-")]
        fitted = [name for name in names if not name.startswith("test-")]
        rows.growctl(directory, "law", "law", "fit", *fitted, *held_out, f"--runs-dir={directory}", f"--output={LAW}")
        return
    directory.mkdir(parents=True, exist_ok=True)
    alike: dict[tuple[int, Size], list[Run]] = {}
    for run in found:
        if run.seed in arguments.seeds and fnmatch.fnmatch(run.row.name, arguments.only):
            alike.setdefault((run.seed, run.first), []).append(run)
    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(lambda key: train(alike[key], directory), sorted(alike)))


if __name__ == "__main__":
    main()
