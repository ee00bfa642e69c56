"""Rows of a benchmark that trains: every row is real `growctl run`s, a run for each seed, several at once.

Repeating the command resumes what was interrupted and leaves alone what has finished. Rows are tuned: seed 0 runs each
at all its peak rates before the other seeds begin; they take the one at which it ended best. What two rows have in
common, such as a base, is trained once (growctl reuses it).
"""

import argparse
import fnmatch
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import machine

MOST_SEEDS = 10
"""Seeds are looked for below this."""


class Row(NamedTuple):
    """One setting of a schedule."""

    name: str
    """Unique in its benchmark; the first part of its runs' names."""

    schedule: str
    """A schedule's path, or the name of a shipped one."""

    overrides: tuple[str, ...]
    """Of the schedule, without the seed and the peak."""

    peaks: tuple[float, ...] = ()
    """Peak rates to try; empty: the schedule's own."""

    facts: Mapping[str, Any] = {}
    """What the results say of it."""

    def run_name(self, seed: int, peak: float | None) -> str:
        """The name of its run with this seed and peak."""
        return f"{self.name}{'' if peak is None else f'-peak{1e3 * peak:g}'}-seed{seed}"


def growctl(directory: Path, log: str, *arguments: str) -> int:
    """Runs a command of growctl on one core, with its output in a log of `directory`; returns its exit code."""
    command = [sys.executable, "-m", "growctl.cli.app", *arguments]
    with (directory / f"{log}.log").open("ab") as output:
        code = subprocess.run(
            command, stdout=output, stderr=output, env=os.environ | {"OMP_NUM_THREADS": "1"}
        ).returncode
    print(f"{datetime.now(UTC):%H:%M:%S} {log}: exit code {code}", flush=True)
    return code


def train(row: Row, seed: int, directory: Path) -> None:
    """Runs a row at its peaks, with seed 0, or at its best one; resumes the runs, or finds them done."""
    best = best_peak(row, directory) if seed else None
    for peak in [best] if best is not None else row.peaks or [None]:
        name = row.run_name(seed, peak)
        if not result(name, directory):
            overrides = [*row.overrides, f"seed={seed}", *([] if peak is None else [f"learning_rate.peak={peak}"])]
            options = ["--name", name, "--runs-dir", str(directory), "--no-controls"]
            growctl(directory, name, "run", row.schedule, *overrides, *options)


def result(name: str, directory: Path) -> dict[str, Any] | None:
    """Final loss (nats), size, FLOPs and jumps of one run; None if it has not finished."""
    from growctl.runs.find import RunNotFoundError, find_runs

    try:
        [found] = find_runs(directory, [name])
    except RunNotFoundError:
        return None
    if found.final_loss is None:
        return None
    jumps = [stage.jump for stage in found.stages if stage.jump is not None]
    size = found.stages[-1].num_parameters
    return {"loss": found.final_loss, "num_parameters": size, "flops": found.cumulative_flops, "jumps": jumps}


def tried(row: Row, directory: Path) -> dict[float, float]:
    """Final losses of seed 0 by peak rate, of those that have finished."""
    found = {peak: result(row.run_name(0, peak), directory) for peak in row.peaks}
    return {peak: outcome["loss"] for peak, outcome in found.items() if outcome}


def best_peak(row: Row, directory: Path) -> float | None:
    """The peak at which seed 0 ended best; None if it has not finished at any."""
    losses = tried(row, directory)
    return min(losses, key=lambda peak: losses[peak], default=None)


def collect(rows: Sequence[Row], directory: Path, **facts: Any) -> dict[str, Any]:
    """The results of every row that has finished with a seed, below the date and the machine."""
    found = []
    for row in rows:
        peak = best_peak(row, directory)
        by_seed = {str(seed): result(row.run_name(seed, peak), directory) for seed in range(MOST_SEEDS)}
        if any(by_seed.values()):
            losses = {f"{rate:g}": loss for rate, loss in tried(row, directory).items()}
            tuned = {"peak": peak, "tried": losses} if row.peaks else {}
            finished = {seed: outcome for seed, outcome in by_seed.items() if outcome}
            found.append({"name": row.name, **row.facts, **tuned, "by_seed": finished})
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", **facts, "machine": machine("deepspeed"), "rows": found}


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark of rows takes."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("what", choices=["run", "table"])
    made.add_argument("--directory", type=Path, required=True, help="where the runs are")
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    made.add_argument("--only", default="*", help="rows whose names match this pattern")
    made.add_argument("--workers", type=int, default=2, help="number of simultaneous runs, each on one core")
    return made


def run(rows: Sequence[Row], arguments: argparse.Namespace) -> None:
    """Trains the rows that were asked for: seed 0 first, then the others."""
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    chosen = [row for row in rows if fnmatch.fnmatch(row.name, arguments.only)]
    with ThreadPoolExecutor(arguments.workers) as pool:
        for seeds in ([0] if 0 in arguments.seeds else [], [seed for seed in arguments.seeds if seed]):
            jobs = [(row, seed) for seed in seeds for row in chosen]
            list(pool.map(lambda job: train(job[0], job[1], directory), jobs))


def command(description: str | None, results: Path, made: Callable[[str], Sequence[Row]]) -> None:
    """Does what the command line asks: trains the rows that `made` gives for a text, or writes their results."""
    options = parser(description)
    options.add_argument("--text", default="", help="the folder of the text")
    arguments = options.parse_args()
    if arguments.what == "run":
        run(made(arguments.text), arguments)
    else:
        write(results, collect(made(arguments.text), arguments.directory.resolve(), schedule="quickstart"))


def write(results: Path, document: Mapping[str, Any]) -> None:
    """Writes a results file."""
    results.write_text(json.dumps(document, indent=1) + "\n")
    print(results)
