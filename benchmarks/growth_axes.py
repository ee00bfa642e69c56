"""Compares growth in depth, in tokens and in both, early and late, with training from scratch at equal FLOPs.

    python -m benchmarks.growth_axes run --text TEXT --directory DIR [--seeds 0 1 2] [--only 'arm20-*']
    python -m benchmarks.growth_axes table --directory DIR    # results/growth_axes.json

All rows end in the same size and cost the same, except the smaller sizes from scratch, which cost the same too, and the
final size from scratch at other budgets, which gives the curve for FLOPs to equal loss. The budget of an arm is that of
the final size, trained from scratch on 20 or 100 tokens a parameter. A row's growths come at shares of its own data
tokens; how many these are follows from the budget.

The results are of files of Linux 6.1.176, as Debian's package linux-source-6.1 has them:

    tar xf linux-source-6.1.tar.xz --strip-components=1 --directory TEXT --wildcards \\
        linux-source-6.1/{fs,kernel,mm,drivers/net/wireless}/*.c linux-source-6.1/Documentation/*.rst
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import rows

if TYPE_CHECKING:
    from model.tokenformer_config import TokenformerConfig

HERE = Path(__file__).resolve().parent
SCHEDULE = HERE / "growth_axes.yaml"
RESULTS = HERE / "results" / "growth_axes.json"
WIDTH, VOCABULARY, CONTEXT, HEADS = 48, 512, 64, 3
ARMS = {20: 8, 100: 40}
"""Training tokens a parameter of the final size from scratch, and the sequences in a batch: 5,284 steps each."""
PEAKS = {20: (2e-3, 4e-3), 100: (4e-3,)}
"""The peak learning rates of each arm."""


class Size(NamedTuple):
    """A size of the model."""

    layers: int
    attention_tokens: int = 24
    ffn_tokens: int = 96

    def __str__(self) -> str:
        return f"{self.layers}x{self.attention_tokens}"


class Way(NamedTuple):
    """One way to spend the budget."""

    sizes: tuple[Size, ...]
    until: tuple[float, ...] = ()
    """The share of the row's data tokens at which each size but the last ends."""

    depth: str = "append"
    budget: float = 1.0
    """FLOPs, as a multiple of the arm's."""

    @property
    def kind(self) -> str:
        """What grows: the row's group in the table."""
        first, last = self.sizes[0], self.sizes[-1]
        if len(self.sizes) == 1:
            return "scratch"
        deeper, wider = first.layers < last.layers, first.attention_tokens < last.attention_tokens
        return "both" if deeper and wider else self.depth if deeper else "tokens"

    @property
    def name(self) -> str:
        """The row's name, unique in its arm and seed."""
        sizes = "-".join(map(str, self.sizes))
        at = "".join(f"-at{100 * share:.0f}" for share in self.until)
        return f"{self.kind}-{sizes}{at}" + (f"-budget{self.budget:g}" if self.budget != 1 else "")


FULL = Size(6)
ONE, TWO, NONE = Size(1), Size(2), Size(0)
FEW, BOTH = Size(6, 8, 32), Size(2, 8, 32)
JUMPS = (0.5, 0.7, 0.8)
MAIN_WAYS = (
    *(Way((FULL,), budget=budget) for budget in (0.5, 1.0, 1.4)),
    *(Way((size,)) for size in (Size(4), Size(3), TWO)),
    *(Way((ONE, FULL), (share,)) for share in JUMPS),
    *(Way((FEW, FULL), (share,)) for share in (0.5, 0.8)),
    *(Way((ONE, FULL), (share,), "copy-stack") for share in (0.5, 0.8)),
    Way((BOTH, FULL), (0.5,)),
    Way((TWO, FULL), (0.5,), "interleave"),
    Way((ONE, Size(3), FULL), (0.3, 0.6)),
)
"""Those of every arm."""
MORE_WAYS = (
    *(Way((FULL,), budget=budget) for budget in (0.7, 2.0)),
    *(Way((size,)) for size in (ONE, FEW, BOTH, Size(6, 12, 48))),
    Way((ONE, FULL), (0.3,)),
    *(Way((FEW, FULL), (share,)) for share in (0.3, 0.7)),
    Way((ONE, FULL), (0.7,), "copy-stack"),
    *(Way((BOTH, FULL), (share,)) for share in (0.3, 0.7, 0.8)),
    *(Way((TWO, FULL), (share,), "interleave") for share in (0.7, 0.8)),
    *(Way((TWO, FULL), (share,), depth) for depth in ("append", "copy-stack") for share in JUMPS),
    Way((NONE, FULL), (0.3,)),
    Way((NONE, FULL), (0.8,)),
    Way((ONE, TWO, FULL), (0.4, 0.8)),
    Way((ONE, Size(3), FULL), (0.3, 0.6), "interleave"),
    Way((FEW, Size(6, 16, 64), FULL), (0.33, 0.67)),
    Way((BOTH, Size(4, 16, 64), FULL), (0.33, 0.67)),
)
"""Those of the cheaper arm only."""
WAYS = {20: (*MAIN_WAYS, *MORE_WAYS), 100: MAIN_WAYS}


def model_of(size: Size) -> "TokenformerConfig":
    """The model of this size."""
    from model.tokenformer_config import tokenformer_config

    return tokenformer_config(
        num_layers=size.layers,
        attention_tokens=size.attention_tokens,
        ffn_tokens=size.ffn_tokens,
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_heads=HEADS,
    )


def flops_per_token(size: Size) -> float:
    """Training FLOPs of a data token."""
    from model.flops import training_flops_per_token

    return training_flops_per_token(model_of(size), CONTEXT).total


def full_parameters() -> int:
    """Parameters of the final size."""
    from model.shapes import num_parameters

    return num_parameters(model_of(FULL))


def ladder_tokens(way: Way, arm: int) -> int:
    """Data tokens for which the way costs what it may."""
    budget = way.budget * arm * full_parameters() * flops_per_token(FULL)
    ends = (*way.until, 1.0)
    shares = [end - start for start, end in zip((0.0, *way.until), ends, strict=True)]
    return round(budget / sum(share * flops_per_token(size) for share, size in zip(shares, way.sizes, strict=True)))


def overrides(way: Way, arm: int, text: str) -> list[str]:
    """The overrides of the schedule."""
    stages = []
    for number, size in enumerate(way.sizes):
        keys = {"name": f"{number}-{size}", "num_layers": size.layers}
        keys |= {"attention_tokens": size.attention_tokens, "ffn_tokens": size.ffn_tokens} if size.layers else {}
        keys |= {"until": way.until[number]} if number < len(way.until) else {}
        stages.append("{" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}")
    return [
        f"data.source={text}",
        f"model.num_layers={way.sizes[0].layers}",
        f"stages=[{', '.join(stages)}]",
        f"training.batch_size={ARMS[arm]}",
        f"training.ladder_tokens={ladder_tokens(way, arm)}",
        *([f"growth.depth={way.depth}"] if way.kind in ("interleave", "copy-stack") else []),
        *(["growth.allow_jump=true"] if way.kind == "copy-stack" else []),
    ]


def row(way: Way, arm: int, text: str) -> rows.Row:
    """The way as a row of an arm."""
    facts = {"arm": arm, "name": way.name, "kind": way.kind, "sizes": [size._asdict() for size in way.sizes]}
    facts |= {"until": way.until, "budget": way.budget, "tokens": ladder_tokens(way, arm)}
    return rows.Row(f"arm{arm}-{way.name}", str(SCHEDULE), tuple(overrides(way, arm, text)), PEAKS[arm], facts)


def main() -> None:
    """Runs the command on the command line."""
    parser = rows.parser(__doc__)
    parser.add_argument("--text", default="", help="a text that growctl can prepare: a file, a folder or a dataset")
    arguments = parser.parse_args()
    made = [row(way, arm, arguments.text) for arm in ARMS for way in WAYS[arm]]
    if arguments.what == "run":
        rows.run(made, arguments)
    else:
        facts = {"schedule": SCHEDULE.name, "parameters": full_parameters()}
        rows.write(RESULTS, rows.collect(made, arguments.directory.resolve(), **facts))


if __name__ == "__main__":
    main()
