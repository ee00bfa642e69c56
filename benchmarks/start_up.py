"""Times growctl's start: `growctl --help`, `growctl plan quickstart`, and a run up to its first step.

    python -m benchmarks.start_up > benchmarks/results/start_up.json    # two minutes
    python -m benchmarks.start_up --repetitions 1

The first step is that of `growctl run quickstart` on a dataset prepared before, timed from the start of the command;
the run is then stopped. Every repetition is a new process. The first one, with cold caches, is not counted. `python` is
the time of an interpreter that does nothing, the lower limit.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import options, print_results
from growctl.runs_dir import RunPaths

SCHEDULE = "quickstart"
FIRST_STEP = ["training.log_every=1"]
"""Makes the worker log its first optimizer step at once."""

HEAVY = ("torch", "deepspeed", "matplotlib", "numpy", "pydantic", "hydra", "datatrove", "rich")
"""Packages to look for among the imports of `--help`."""

LONGEST_SECONDS = 120.0
IMPORTS = """
import contextlib, io, json, sys
before = set(sys.modules)
from growctl.cli.app import app
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    app(["--help"])
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def main() -> None:
    """Runs the benchmark and prints one JSON document."""
    parser = options(__doc__)
    parser.add_argument("--repetitions", type=int, default=5, help="counted repetitions of each command")
    parser.add_argument("--schedule", default=SCHEDULE, help="schedule to plan and run")
    parser.add_argument(
        "--runs-dir", type=Path, help="runs directory, perhaps with the prepared dataset; by default a temporary folder"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="growctl-start-up-") as folder:
        runs_dir = arguments.runs_dir or Path(folder)
        document = measured(arguments.schedule, runs_dir, arguments.repetitions)
    print_results(arguments.note, "deepspeed", **document)


def measured(schedule: str, runs_dir: Path, repetitions: int) -> dict[str, Any]:
    """The benchmark's document."""
    subprocess.run([*growctl(), "prepare", schedule, "--runs-dir", runs_dir], check=True, stdout=sys.stderr)
    timed: dict[str, Callable[[int], dict[str, float]]] = {
        "python": lambda _: whole([sys.executable, "-c", "pass"]),
        "help": lambda _: whole([*growctl(), "--help"]),
        "plan": lambda _: whole([*growctl(), "plan", schedule, "--runs-dir", str(runs_dir)]),
        "first_step": lambda number: first_step(schedule, runs_dir, f"start-up-{number}"),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in timed}
    for number in range(repetitions + 1):
        for name, measure in timed.items():
            load = os.getloadavg()[0]
            run = measure(number)
            say(f"{name} {number}/{repetitions}: {run['seconds']:.2f} s")
            if number:
                runs[name].append(run | {"load_average_before": round(load, 2)})
    modules = help_imports()
    return {
        "settings": {"schedule": schedule, "repetitions": repetitions},
        "median_seconds": {
            name: round(statistics.median(run["seconds"] for run in of), 3) for name, of in runs.items()
        },
        "help_imports": {
            "modules": len(modules),
            "packages": sorted({name.split(".")[0] for name in modules} - sys.stdlib_module_names),
            "heavy": [name for name in HEAVY if name in modules],
        },
        "runs": runs,
    }


def growctl() -> list[str]:
    """The command as it is installed beside this interpreter, else as a module."""
    installed = Path(sys.executable).with_name("growctl")
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "growctl.cli.app"]


def whole(command: list[str]) -> dict[str, float]:
    """The seconds that a command takes from start to end."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return {"seconds": round(time.perf_counter() - start, 4)}


def first_step(schedule: str, runs_dir: Path, name: str) -> dict[str, float]:
    """Seconds from a run's start to its worker's `start` record, after all imports, and to the first optimizer step."""
    command = [*growctl(), "run", schedule, *FIRST_STEP, "--no-controls", "--name", name, "--runs-dir", str(runs_dir)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        worker = seconds_until('"start"', runs_dir / name, start, process)
        step = seconds_until('"train"', runs_dir / name, start, process)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    return {"seconds": round(step, 3), "worker_seconds": round(worker, 3)}


def seconds_until(event: str, run: Path, start: float, process: subprocess.Popen[str]) -> float:
    """Seconds from `start` until the first stage's metrics.jsonl has a record of that event."""
    while time.perf_counter() - start < LONGEST_SECONDS:
        stages = [stage for index, _, stage in RunPaths(run).stages_found() if index == 0]
        if any(f'"event": {event}' in stage.metrics.read_text() for stage in stages if stage.metrics.exists()):
            return time.perf_counter() - start
        if process.poll() is not None:
            _, told = process.communicate()
            raise RuntimeError(f"growctl run ended with exit code {process.returncode} before {event}: {told[-800:]}")
        time.sleep(0.01)
    raise RuntimeError(f"growctl run had no {event} in {LONGEST_SECONDS:.0f} s")


def help_imports() -> list[str]:
    """Modules that `growctl --help` imports, without those that every interpreter imports."""
    told = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True).stdout
    return json.loads(told)


def say(text: str) -> None:
    """Prints a progress line to standard error."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
