"""Runs one section of the GPU benchmark in its own process.

    python -m benchmarks.gpu.section NAME --output FILE --seconds N [--trial] [--without triton]

A section is a module with `measure(section)`, which runs one case after another. Each section has its own process,
because a fault in one kernel makes CUDA unusable in that process. Each case's result or error is written at once. Exit
code 2 means that there is no GPU.
"""

import argparse
import importlib
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from benchmarks.gpu.settings import PAPER, TRIAL, Settings

if TYPE_CHECKING:
    import torch

NO_GPU = 2
"""The exit code if there is no GPU."""


class Plan(NamedTuple):
    """How a section is run."""

    module: str
    weight: int
    """Its share of the time, roughly in seconds."""

    imports: tuple[str, ...] = ("torch", "numpy", "pydantic")
    options: dict[str, Any] = {}


TRITON = ("torch", "numpy", "pydantic", "triton")
ENGINE = ("torch", "numpy", "pydantic", "deepspeed", "safetensors")
WORKER = (*ENGINE, "tokenizers", "fsspec", "orjson")

SECTIONS = {
    "device": Plan("device", 12, ("torch",)),
    "kernels": Plan("kernels", 110, ("torch", "numpy", "triton")),
    "pattention": Plan("pattention", 80),
    "training_eager": Plan("training", 45, options={"kernels": "eager"}),
    "training_compiled": Plan("training", 90, options={"kernels": "compiled"}),
    "training_triton": Plan("training", 60, (*TRITON, "liger_kernel"), options={"kernels": "triton"}),
    "zero": Plan("zero", 45, ENGINE),
    "contexts": Plan("contexts", 90),
    "host_syncs": Plan("host_syncs", 20, WORKER),
    "repeatability": Plan("repeatability", 50),
}


@dataclass
class Section:
    """A section's settings and results."""

    settings: Settings
    device: "torch.device"
    deadline: float
    """In time.monotonic() seconds."""

    output: Path
    trial: bool = False
    without: frozenset[str] = frozenset()
    """Kernels known to fail here."""

    options: dict[str, Any] = field(default_factory=dict)
    screen: TextIO = sys.stdout
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    quickest_seconds: float = math.inf
    """Duration of the quickest case so far; the first cases also compile kernels for later ones."""

    def left(self) -> float:
        """The remaining seconds."""
        return self.deadline - time.monotonic()

    def case(self, work: Callable[[], dict[str, Any]], **case: Any) -> dict[str, Any] | None:
        """Runs `work` and returns its row, or None if it failed or there was no time left.

        The key `says` of the result is only printed. Raises DeviceLost if CUDA has become unusable.
        """
        from benchmarks.gpu.timing import DeviceLost, free_memory, in_a_line, raise_if_lost

        name = " ".join(str(value) for value in case.values())
        if self.left() < (0 if math.isinf(self.quickest_seconds) else self.quickest_seconds):
            self.skipped.append(case)
            self._say(f"{name}: skipped, no time is left")
            self.save()
            return None
        start = time.monotonic()
        row: dict[str, Any] | None = None
        try:
            found = work()
            says = found.pop("says", "done")
            row = case | found
            self.rows.append(row)
            self._say(f"{name}: {says}")
        except Exception as error:
            self.failures.append(case | {"error": in_a_line(error), "where": _last_lines(error)})
            self._say(f"{name}: {in_a_line(error)[:200]}")
            if isinstance(error, DeviceLost):
                raise
            raise_if_lost(error)
        finally:
            self.quickest_seconds = min(self.quickest_seconds, time.monotonic() - start)
            free_memory()
            self.save()
        return row

    def note_failures(self, variants: dict[str, dict[str, Any]], **case: Any) -> None:
        """Records the variants that `timing.interleaved` could not run as failures."""
        failed = {name: found["error"] for name, found in variants.items() if "error" in found}
        for name, error in failed.items():
            self.failures.append(case | {"variant": name, "error": error})
            self._say(f"{name}: {error[:200]}")

    def save(self) -> None:
        """Writes all results so far."""
        found = {"rows": self.rows, "failures": self.failures, "skipped": self.skipped, **self.facts}
        write_json(self.output, found)

    def _say(self, line: str) -> None:
        print(f"  {line}", file=self.screen, flush=True)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Writes `document` to a temporary file and renames it, so that readers of `path` find a complete document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    staging.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(staging, path)


def _last_lines(error: Exception) -> list[str]:
    """The innermost calls of the traceback, with file and line."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return [f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}" for frame in frames]


def choose_device(trial: bool) -> "torch.device":
    """The GPU; a trial without a GPU gets the CPU, with emulated kernels and without compilation."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if not trial:
        print("no GPU: torch.cuda.is_available() is false; --trial runs tiny sizes on the CPU", file=sys.stderr)
        sys.exit(NO_GPU)
    os.environ |= {"DS_ACCELERATOR": "cpu", "TRITON_INTERPRET": "1"}  # before the next line imports triton
    torch.compiler.set_stance("force_eager")  # compiling for the CPU takes minutes and tells nothing about a GPU
    torch.set_num_threads(1)
    return torch.device("cpu")


def run_section(
    name: str, output: Path, seconds: float, *, trial: bool, without: Iterable[str], screen: TextIO = sys.stdout
) -> None:
    """Runs one section in this process; `output` keeps its results however it ends."""
    deadline = time.monotonic() + seconds
    section = Section(
        settings=TRIAL if trial else PAPER,
        device=choose_device(trial),
        deadline=deadline,
        output=output,
        trial=trial,
        without=frozenset(without),
        options=SECTIONS[name].options,
        screen=screen,
    )
    module = importlib.import_module(f"benchmarks.gpu.{SECTIONS[name].module}")
    module.measure(section)
    section.save()


def main() -> None:
    """Runs the section on the command line; the exit code is 1 if it failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=SECTIONS)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--without", action="append", default=[])
    arguments = parser.parse_args()
    # Ends this process even if its parent can no longer do so.
    signal.setitimer(signal.ITIMER_REAL, 2 * arguments.seconds + 60)
    screen = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # send libraries' output to the log
    run_section(
        arguments.name,
        arguments.output,
        arguments.seconds,
        trial=arguments.trial,
        without=arguments.without,
        screen=screen,
    )
    for stream in (screen, sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # threads of NCCL or a compiler may still run and must not delay the exit


if __name__ == "__main__":
    main()
