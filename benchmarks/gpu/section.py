"""A section of the benchmark and the process that it runs in:

    python -m benchmarks.gpu.section NAME --output FILE --seconds N [--trial] [--without triton]

A section is a module with `measure(section)`, which tries one case after another. Each has a process of its own, since
a fault of one kernel ends every use of CUDA in its process. What a case found, or why it failed, is written at once.
Exit code 2: there is no GPU.
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
"""Exit code."""


class Plan(NamedTuple):
    """How a section is run."""

    module: str
    weight: int
    """Its share of the time, about in seconds."""

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
    """What a section may use, and what it has found."""

    settings: Settings
    device: "torch.device"
    deadline: float
    """By time.monotonic()."""

    output: Path
    trial: bool = False
    without: frozenset[str] = frozenset()
    """Kernels that are known not to work here."""

    options: dict[str, Any] = field(default_factory=dict)
    screen: TextIO = sys.stdout
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    quickest_seconds: float = math.inf
    """Of the cases so far; the first ones compile what others use."""

    def left(self) -> float:
        """Seconds."""
        return self.deadline - time.monotonic()

    def case(self, work: Callable[[], dict[str, Any]], **case: Any) -> dict[str, Any] | None:
        """The row of what `work` found, or None where it failed or no time was left for it.

        `says` in what it found is for the screen alone. Raises DeviceLost where CUDA is of no more use.
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
        """Counts what `timing.interleaved` could not run as failures."""
        failed = {name: found["error"] for name, found in variants.items() if "error" in found}
        for name, error in failed.items():
            self.failures.append(case | {"variant": name, "error": error})
            self._say(f"{name}: {error[:200]}")

    def save(self) -> None:
        """Writes all that was found so far, whole."""
        found = {"rows": self.rows, "failures": self.failures, "skipped": self.skipped, **self.facts}
        write_json(self.output, found)

    def _say(self, line: str) -> None:
        print(f"  {line}", file=self.screen, flush=True)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Under another name first: whoever reads `path` finds a whole document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    staging.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(staging, path)


def _last_lines(error: Exception) -> list[str]:
    """The innermost calls, file by file."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return [f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}" for frame in frames]


def choose_device(trial: bool) -> "torch.device":
    """The GPU; in a trial the CPU where there is none, with all that does not run there stood in for."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if not trial:
        print(
            "no GPU: torch.cuda.is_available() is false; --trial runs everything in small on the CPU", file=sys.stderr
        )
        sys.exit(NO_GPU)
    os.environ |= {"DS_ACCELERATOR": "cpu", "TRITON_INTERPRET": "1"}  # before the next line has triton imported
    torch.compiler.set_stance("force_eager")  # compiling for the CPU takes minutes and says nothing of a GPU
    torch.set_num_threads(1)
    return torch.device("cpu")


def run_section(
    name: str, output: Path, seconds: float, *, trial: bool, without: Iterable[str], screen: TextIO = sys.stdout
) -> None:
    """Runs one section in this process; what it has found is in `output`, whatever it ends by."""
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
    """Runs the section of the command line; exit code 1 where it ended by a fault of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=SECTIONS)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--without", action="append", default=[])
    arguments = parser.parse_args()
    # Ends this process by itself where nobody is left to end it.
    signal.setitimer(signal.ITIMER_REAL, 2 * arguments.seconds + 60)
    screen = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
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
    os._exit(0)  # what NCCL or a compiler has left running does not keep a section that is done


if __name__ == "__main__":
    main()
