"""Compares growth in depth, in tokens and in both, early and late, with training from scratch at equal FLOPs.

    python -m benchmarks.growth_axes run --text TEXT --directory DIR [--arms 20 100] [--seeds 0 1 2] [--only PATTERN]
    python -m benchmarks.growth_axes table --directory DIR    # results/growth_axes.json

All rows end in the same size and cost the same, except the smaller sizes from scratch, which cost the same too, and the
final size from scratch at other budgets, which gives the curve for FLOPs to equal loss. The budget of an arm is that of
the final size, trained from scratch on 20 or 100 tokens a parameter. A row's growths come at shares of its own data
tokens; how many these are follows from the budget.

Rows are tuned: seed 0 runs each at every peak rate of its arm, if it has several, before the other seeds begin. The
best one counts, and the other seeds take it.
Rows are real `growctl run`s, which resume when the command is repeated. Rows with the same base train it once.

The results are of files of Linux 6.1.176, as Debian's package linux-source-6.1 has them:

    tar xf linux-source-6.1.tar.xz --strip-components=1 --directory TEXT --wildcards \\
        linux-source-6.1/{fs,kernel,mm,drivers/net/wireless}/*.c linux-source-6.1/Documentation/*.rst
"""

import argparse
import fnmatch
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.machine import machine

if TYPE_CHECKING:
    from model.config import TokenformerConfig

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


class Row(NamedTuple):
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
MAIN_ROWS = (
    *(Row((FULL,), budget=budget) for budget in (0.5, 1.0, 1.4)),
    *(Row((size,)) for size in (Size(4), Size(3), TWO)),
    *(Row((ONE, FULL), (share,)) for share in JUMPS),
    *(Row((FEW, FULL), (share,)) for share in (0.5, 0.8)),
    *(Row((ONE, FULL), (share,), "copy-stack") for share in (0.5, 0.8)),
    Row((BOTH, FULL), (0.5,)),
    Row((TWO, FULL), (0.5,), "interleave"),
    Row((ONE, Size(3), FULL), (0.3, 0.6)),
)
"""The rows of every arm."""
MORE_ROWS = (
    *(Row((FULL,), budget=budget) for budget in (0.7, 2.0)),
    *(Row((size,)) for size in (ONE, FEW, BOTH, Size(6, 12, 48))),
    Row((ONE, FULL), (0.3,)),
    *(Row((FEW, FULL), (share,)) for share in (0.3, 0.7)),
    Row((ONE, FULL), (0.7,), "copy-stack"),
    *(Row((BOTH, FULL), (share,)) for share in (0.3, 0.7, 0.8)),
    *(Row((TWO, FULL), (share,), "interleave") for share in (0.7, 0.8)),
    *(Row((TWO, FULL), (share,), depth) for depth in ("append", "copy-stack") for share in JUMPS),
    Row((NONE, FULL), (0.3,)),
    Row((NONE, FULL), (0.8,)),
    Row((ONE, TWO, FULL), (0.4, 0.8)),
    Row((ONE, Size(3), FULL), (0.3, 0.6), "interleave"),
    Row((FEW, Size(6, 16, 64), FULL), (0.33, 0.67)),
    Row((BOTH, Size(4, 16, 64), FULL), (0.33, 0.67)),
)
"""The rows of the cheaper arm only."""
ROWS = {20: (*MAIN_ROWS, *MORE_ROWS), 100: MAIN_ROWS}


def model_of(size: Size) -> "TokenformerConfig":
    """The model of this size."""
    from model.config import tokenformer_config

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
    from model.config import num_parameters

    return num_parameters(model_of(FULL))


def ladder_tokens(row: Row, arm: int) -> int:
    """Data tokens for which the row costs what it may."""
    budget = row.budget * arm * full_parameters() * flops_per_token(FULL)
    ends = (*row.until, 1.0)
    shares = [end - start for start, end in zip((0.0, *row.until), ends, strict=True)]
    return round(budget / sum(share * flops_per_token(size) for share, size in zip(shares, row.sizes, strict=True)))


def overrides(row: Row, arm: int, seed: int, peak: float, text: str) -> list[str]:
    """The overrides of the schedule."""
    stages = []
    for number, size in enumerate(row.sizes):
        keys = {"name": f"{number}-{size}", "num_layers": size.layers}
        keys |= {"attention_tokens": size.attention_tokens, "ffn_tokens": size.ffn_tokens} if size.layers else {}
        keys |= {"until": row.until[number]} if number < len(row.until) else {}
        stages.append("{" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}")
    return [
        f"data.source={text}",
        f"seed={seed}",
        f"model.num_layers={row.sizes[0].layers}",
        f"stages=[{', '.join(stages)}]",
        f"learning_rate.peak={peak}",
        f"training.batch_size={ARMS[arm]}",
        f"training.ladder_tokens={ladder_tokens(row, arm)}",
        *([f"growth.depth={row.depth}"] if row.kind in ("interleave", "copy-stack") else []),
        *(["growth.allow_jump=true"] if row.kind == "copy-stack" else []),
    ]


def run_name(row: Row, arm: int, seed: int, peak: float) -> str:
    """The name of a row's run."""
    return f"arm{arm}-seed{seed}-peak{1e3 * peak:g}-{row.name}"


def run(row: Row, arm: int, seed: int, text: str, directory: Path) -> None:
    """Runs one row at its peaks, resumes the runs, or finds them done."""
    best = best_peak(row, arm, directory) if seed else None
    for peak in PEAKS[arm] if best is None else [best]:
        _run(row, arm, seed, peak, text, directory)


def _run(row: Row, arm: int, seed: int, peak: float, text: str, directory: Path) -> None:
    name = run_name(row, arm, seed, peak)
    if result(name, directory):
        return
    command = [sys.executable, "-m", "growctl.cli.app", "run", str(SCHEDULE), *overrides(row, arm, seed, peak, text)]
    command += ["--name", name, "--runs-dir", str(directory), "--no-controls"]
    with (directory / f"{name}.log").open("ab") as log:
        code = subprocess.run(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode
    print(f"{datetime.now(UTC):%H:%M:%S} {name}: exit code {code}", flush=True)


def result(name: str, directory: Path) -> dict[str, Any] | None:
    """Final loss (nats), its jumps and costs of one run; None if it has not finished."""
    from growctl.runs.find import RunNotFoundError, find_runs

    try:
        [found] = find_runs(directory, [name])
    except RunNotFoundError:
        return None
    if found.final_loss is None:
        return None
    jumps = [stage.jump for stage in found.stages if stage.jump is not None]
    return {"loss": found.final_loss, "flops": found.cumulative_flops, "jumps": jumps}


def tried(row: Row, arm: int, directory: Path) -> dict[float, float]:
    """Final losses of seed 0 by peak rate, of those that have finished."""
    found = {peak: result(run_name(row, arm, 0, peak), directory) for peak in PEAKS[arm]}
    return {peak: outcome["loss"] for peak, outcome in found.items() if outcome}


def best_peak(row: Row, arm: int, directory: Path) -> float | None:
    """The peak at which seed 0 ended best; None if it has not finished at any."""
    losses = tried(row, arm, directory)
    return min(losses, key=lambda peak: losses[peak], default=None)


def jobs(arms: Sequence[int], seeds: Sequence[int], pattern: str) -> Iterator[tuple[Row, int, int]]:
    """The rows to run: every row of one seed and arm before the next."""
    for arm in arms:
        for seed in seeds:
            yield from ((row, arm, seed) for row in ROWS[arm] if fnmatch.fnmatch(row.name, pattern))


def collect(directory: Path) -> dict[str, Any]:
    """Every finished row of every arm, with its results by seed."""
    rows = []
    for arm in ARMS:
        for row in ROWS[arm]:
            peak = best_peak(row, arm, directory)
            if peak is not None:
                by_seed = {seed: result(run_name(row, arm, seed, peak), directory) for seed in range(3)}
                rows.append(
                    {
                        "arm": arm,
                        "name": row.name,
                        "kind": row.kind,
                        "sizes": [size._asdict() for size in row.sizes],
                        "until": row.until,
                        "budget": row.budget,
                        "tokens": ladder_tokens(row, arm),
                        "peak": peak,
                        "tried": {f"{rate:g}": loss for rate, loss in tried(row, arm, directory).items()},
                        "by_seed": {str(seed): found for seed, found in by_seed.items() if found},
                    }
                )
    return {
        "schedule": SCHEDULE.name,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "parameters": full_parameters(),
        "machine": machine(),
        "rows": rows,
    }


def main() -> None:
    """Runs the command on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--text", help="a text that growctl can prepare: a file, a folder or a dataset")
    parser.add_argument("--arms", type=int, nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", default="*", help="rows whose names match this pattern")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2, help="number of simultaneous runs, each on one core")
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    if arguments.what == "run":
        directory.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(arguments.workers) as pool:
            for seeds in ([0] if 0 in arguments.seeds else [], [seed for seed in arguments.seeds if seed]):
                chosen = jobs(arguments.arms, seeds, arguments.only)
                list(pool.map(lambda job: run(job[0], job[1], job[2], arguments.text, directory), chosen))
    else:
        RESULTS.write_text(json.dumps(collect(directory), indent=1) + "\n")
        print(RESULTS)


if __name__ == "__main__":
    main()
