"""Measures how the cost of reading metrics.jsonl and recording it in the ledger grows with its length.

    python -m benchmarks.history > benchmarks/results/history.json    # two minutes
    python -m benchmarks.history --lines 10000 100000

For each number of lines this writes a metrics.jsonl with a `checkpoint` every thousand lines and `train` lines between.
Then it times three things. `read`: StageHistory reads the file from the top, as a run does once when it resumes.
`resume`: the same, with every record booked. `event`: the median of the run's next hundred checkpoints after that many
lines, a hundred lines each, read and booked one by one as `growctl run` does. Seconds are CPU time, so that other work
on the machine and waiting for the disk do not count. `growth` compares the longest file with the shortest: it is 1 if a
line, or an event, costs the same however many lines precede it.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import options, print_results
from growctl.ledger.books import StageBooks
from growctl.ledger.entries import RunEntry, StageEntry
from growctl.ledger.ledger import Ledger
from growctl.run.attempt import StageHistory
from growctl.runs_dir import RunsPaths
from model.flops import Flops
from stages.metrics import MetricsWriter

LINES = (100_000, 1_000_000)
CHECKPOINT_EVERY = 1000
EVENTS = 100
LINES_PER_EVENT = 100
TRAIN = {
    "loss": 3.4375,
    "learning_rate": 0.000612,
    "gradient_norm": 0.8125,
    "tokens_seen": 10**9,
    "tokens_per_second": 45678.9,
    "data_wait_seconds": 0.0125,
}
START = {"device": "cpu", "num_devices": 1, "precision": "fp32", "zero_stage": 1, "resumed_from": None}
START |= {"converted": False, "recomputed_step_flops": 0.0, "peak_flops": None, "price_per_device_hour": None}
STAGE = StageEntry("small", 800_000, 200_000, 10**12, 10**9, 1000, Flops(6e5, 2e5, 1e5), 3000.0)
RUN = RunEntry("benchmark", "benchmark", None, None, 1, "data", "f00d")


def main() -> None:
    """Runs the benchmark and prints one JSON document."""
    parser = options(__doc__)
    parser.add_argument("--lines", type=int, nargs="+", default=LINES, help="lines of metrics.jsonl before the events")
    arguments = parser.parse_args()
    print_results(arguments.note, **measured(sorted(arguments.lines)))


def measured(lengths: list[int]) -> dict[str, Any]:
    """The benchmark's document."""
    runs = []
    for num_lines in lengths:
        with tempfile.TemporaryDirectory(prefix="growctl-history-") as folder:
            runs.append(one_length(num_lines, Path(folder)))
        print(rounded(runs[-1]), file=sys.stderr, flush=True)
    shortest, longest = runs[0], runs[-1]
    more_lines = longest["lines"] / shortest["lines"]
    return {
        "settings": {"lines": lengths, "checkpoint_every": CHECKPOINT_EVERY, "lines_per_event": LINES_PER_EVENT},
        "growth": {
            "read_seconds_per_line": round(longest["read_seconds"] / shortest["read_seconds"] / more_lines, 3),
            "resume_seconds_per_line": round(longest["resume_seconds"] / shortest["resume_seconds"] / more_lines, 3),
            "event_seconds": round(longest["event_seconds"] / shortest["event_seconds"], 3),
        },
        "runs": [rounded(run) for run in runs],
    }


def rounded(run: dict[str, Any]) -> dict[str, Any]:
    """`run` with its seconds to the microsecond."""
    return {name: round(value, 6) if name.endswith("_seconds") else value for name, value in run.items()}


def one_length(num_lines: int, folder: Path) -> dict[str, Any]:
    """CPU seconds for a stage of `num_lines` lines, with its files in `folder`."""
    run = RunsPaths(folder).run("benchmark")
    stage = run.stage(0, STAGE.name)
    stage.directory.mkdir(parents=True)
    lines = Lines(stage.metrics)
    lines.write(num_lines, CHECKPOINT_EVERY)

    start = time.process_time()
    history = StageHistory(stage.metrics).read_to_the_end()
    read = time.process_time() - start
    assert history.complaint() is None, "every line must be as workers write it"

    with Ledger(run.ledger) as ledger:
        ledger.record_run(RUN, [STAGE])
        start = time.process_time()
        history = StageHistory(stage.metrics)
        books = ledger.books(STAGE.name)
        for records in history.read():
            books.sync(records)
        resume = time.process_time() - start
        events = list(timed_events(lines, history, books))
    return {
        "lines": num_lines,
        "file_bytes": stage.metrics.stat().st_size,
        "read_seconds": read,
        "resume_seconds": resume,
        "event_seconds": statistics.median(events),
    }


def timed_events(lines: "Lines", history: StageHistory, books: StageBooks) -> Iterator[float]:
    """Yields the CPU seconds to read and book each of the next checkpoints, without those to write the lines."""
    for _ in range(EVENTS):
        lines.write(LINES_PER_EVENT, LINES_PER_EVENT)
        start = time.process_time()
        for records in history.read():
            books.sync(records)
        yield time.process_time() - start


class Lines:
    """Writes a stage's lines: `start` first, then a `train` line per step."""

    def __init__(self, path: Path) -> None:
        self._writer = MetricsWriter(path, attempt=1)
        self._step = 0

    def write(self, num_lines: int, checkpoint_every: int) -> None:
        """Writes the next lines; every `checkpoint_every` lines, one is a `checkpoint`."""
        for _ in range(num_lines):
            self._step += 1
            seconds = 0.25 * self._step
            if self._step == 1:
                self._writer.write("start", 0, seconds, **START)
            elif self._step % checkpoint_every == 0:
                self._writer.write("checkpoint", self._step, seconds, path="checkpoint")
            else:
                self._writer.write("train", self._step, seconds, **TRAIN)


if __name__ == "__main__":
    main()
