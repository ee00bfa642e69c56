"""Measures how fast training samples are read from a URL, against the same samples on local disk.

    python -m benchmarks.remote_data > benchmarks/results/remote_data.json    # one minute
    python -m benchmarks.remote_data --tokens 2000000 --turns 2 --batches 50

A web server on the loopback has a dataset of 16-bit tokens. Each batch is (8, 1024) inputs and the token after each, as
int64, in training order:

- `local`: TrainingSamples of the dataset's directory, from the page cache
- `remote`: TrainingSamples of its URL, once all shards are in the cache on this machine
- `first_read`: the same while nothing is in the cache, with samples announced ahead as training does

`local` and `remote` take turns. Their seconds are CPU time of one thread, and the ratio is the median over turns of
their seconds in the same turn. `first_read` is wall time: the server shares the machine. `goals` are what we aim at.
"""

import re
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import BATCH, LENGTH, print_measured, write_dataset
from stages.corpus.prepare import prepare
from stages.data.samples import TrainingSamples
from stages.data.spec import DataSpec
from stages.stage_dir import TOKENIZER_NAME
from stages.train.rank_data import EXPECTED_SAMPLES

GOALS = {"remote_over_local": 1.5}


def main() -> None:
    """Runs the benchmark and prints one JSON document."""
    print_measured(measured, str(__doc__))


def measured(folder: Path, num_tokens: int, turns: int, batches: int) -> dict[str, Any]:
    """The benchmark's document."""
    local = written(folder / "web/tokens", num_tokens)
    with served(folder / "web") as url:
        remote = prepare(DataSpec(source=f"{url}/tokens"), folder / "datasets")
        samples = {"local": TrainingSamples(local, LENGTH, seed=0), "remote": TrainingSamples(remote, LENGTH, seed=0)}
        first_read = cold(samples["remote"], batches)
        num_windows = samples["remote"].num_windows
        for first in range(0, num_windows, BATCH):  # fills the cache
            samples["remote"].batch(first, BATCH)
    seconds: dict[str, list[float]] = {name: [] for name in samples}
    for turn in range(turns + 1):
        for name in samples if turn % 2 else reversed(samples):
            start = time.process_time()
            for number in range(turn * batches, (turn + 1) * batches):
                samples[name].batch(number * BATCH, BATCH)
            if turn:  # the first turn only warms up
                seconds[name].append(time.process_time() - start)
        print(f"turn {turn} of {turns}", file=sys.stderr)
    ratios = [there / here for there, here in zip(seconds["remote"], seconds["local"], strict=True)]
    tokens = batches * BATCH * LENGTH
    return {
        "settings": {"tokens": num_tokens, "shape": [BATCH, LENGTH], "turns": turns, "batches_per_turn": batches},
        "tokens_per_second": {name: round(tokens / statistics.median(each)) for name, each in seconds.items()}
        | {"first_read": round(tokens / first_read)},
        "ratios": {"remote_over_local": round(statistics.median(ratios), 3)},
        "quartiles": {"remote_over_local": [round(q, 3) for q in statistics.quantiles(ratios, n=4)[::2]]},
        "goals": GOALS,
    }


def cold(samples: TrainingSamples, batches: int) -> float:
    """Wall seconds of the first batches, with samples announced ahead."""
    start = time.perf_counter()
    for number in range(batches):
        samples.expect(number * BATCH + EXPECTED_SAMPLES, BATCH)
        samples.batch(number * BATCH, BATCH)
    return time.perf_counter() - start


def written(directory: Path, num_tokens: int) -> Path:
    """Writes a dataset of random tokens."""
    tokens = np.random.default_rng(0).integers(0, 50_000, num_tokens, np.uint16)
    write_dataset(directory, tokens)
    (directory / TOKENIZER_NAME).write_bytes(b"")
    return directory


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of a server of a folder's files, with ranges."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_GET(self) -> None:
            path = folder / self.path.lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            size = path.stat().st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, stop = (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(stop - start))
            self.end_headers()
            if self.command == "GET":
                with path.open("rb") as file:
                    file.seek(start)
                    self.wfile.write(file.read(stop - start))

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
