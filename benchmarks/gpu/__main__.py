"""Runs the GPU benchmark's sections one after another and writes their results to one JSON file.

The file is rewritten after every case, so that a killed run keeps its results. Each section gets a share of the
remaining time and is killed if it exceeds it. The exit code is 1 if a section or case failed or nothing was measured,
and 2 if there is no GPU.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.section import NO_GPU, SECTIONS, run_section, write_json

RESULTS = Path(__file__).resolve().parent.parent / "results"
GRACE_SECONDS = 10.0
"""Extra time for a section to end by itself after its share."""

SPARE_SECONDS = 5.0
"""Time kept in reserve before the deadline."""


ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main() -> int:
    """Runs the benchmark as the command line asks and returns the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks/gpu/run.sh", description=__doc__)
    parser.add_argument("--deadline", type=float, default=540.0, metavar="SECONDS", help="time for all sections (540)")
    parser.add_argument("--output", type=Path, help="by default benchmarks/results/gpu_DEVICE.json")
    parser.add_argument("--only", help=f"sections, separated by commas: {', '.join(SECTIONS)}")
    parser.add_argument("--trial", action="store_true", help="tiny sizes, on a CPU too; needs --output")
    parser.add_argument("--one-process", action="store_true", help="faster, for a trial; a fault ends all sections")
    parser.add_argument("--note", help="a note for the results file, such as what else ran on the machine")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(SECTIONS)
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"--only {unknown[0]!r}: must be among {', '.join(SECTIONS)}")
    if (arguments.trial or arguments.only) and not arguments.output:
        parser.error("--trial and --only need --output: their results are not a complete benchmark")
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, lambda number, _: sys.exit(128 + number))
    run = Run(names, arguments.output, time.monotonic() + arguments.deadline, arguments.trial, arguments.note)
    run.measure(run.section_here if arguments.one_process else run.section)
    print(run.summary())
    return run.exit_code()


class Run:
    """One run of the benchmark, with its document and its output file."""

    def __init__(self, names: list[str], output: Path | None, deadline: float, trial: bool, note: str | None) -> None:
        self.names, self.given_output, self.deadline, self.trial = names, output, deadline, trial
        self.started = time.monotonic()
        self.missing = _missing_imports()
        self.document: dict[str, Any] = {
            "date": datetime.now(UTC).date().isoformat(),
            "note": note,
            "trial": trial,
            "deadline_seconds": round(deadline - self.started),
            "missing_imports": self.missing,
            "machine": {},
            "sections": {},
        }

    def measure(self, run_one: Callable[[str, float, Path], None]) -> None:
        """Runs every section in order with `run_one`. The document includes an interrupted section's results."""
        if self.missing:
            print(f"missing imports: {', '.join(self.missing)}")
        left = list(self.names)
        with tempfile.TemporaryDirectory(prefix="growctl-gpu-") as folder:
            while left:
                share = SECTIONS[left[0]].weight / sum(SECTIONS[name].weight for name in left)
                name = left.pop(0)
                if reason := self._obstacle(name):
                    self._record(name, {"status": "skipped", "reason": reason})
                    print(f"{name}: skipped, {reason}")
                    continue
                seconds = share * self._left()
                print(f"{name}: up to {seconds:.0f} s", flush=True)
                run_one(name, seconds, Path(folder))

    def summary(self) -> str:
        """One line per section, and the path of the file."""
        lines = []
        for name, section in self.document["sections"].items():
            counts = ", ".join(
                f"{len(section[what])} {label}"
                for what, label in (("rows", "done"), ("failures", "failed"), ("skipped", "without time"))
                if section.get(what)
            )
            lines.append(f"{name:18} {section['status']:9} {section.get('seconds', 0):6.1f} s  {counts}")
            if "reason" in section:
                lines[-1] += f"  {section['reason']}"
        return "\n".join([*lines, f"{time.monotonic() - self.started:.0f} s in all; {self.output}"])

    def exit_code(self) -> int:
        """1 if anything failed or nothing was measured, else 0."""
        sections = self.document["sections"].values()
        failed = any(section["status"] == "failed" or section.get("failures") for section in sections)
        return int(failed or not any(section.get("rows") for section in sections))

    @property
    def output(self) -> Path | None:
        """The results file; None until its device, and so its name, is known."""
        if self.given_output or "device" not in self.document["machine"]:
            return self.given_output
        device = re.sub(r"[^a-z0-9]+", "-", self.document["machine"]["device"].lower()).strip("-")
        return RESULTS / f"gpu_{device}.json"

    def _left(self) -> float:
        return self.deadline - SPARE_SECONDS - time.monotonic()

    def _obstacle(self, name: str) -> str | None:
        """The reason why a section cannot run; None if it can."""
        if lacking := [module for module in SECTIONS[name].imports if module in self.missing]:
            return f"there is no module {' nor '.join(lacking)}"
        if self._left() < GRACE_SECONDS:
            return "no time is left"
        if SECTIONS[name].options.get("kernels") == "triton" and (fault := self._triton_fault()):
            return fault
        return None

    def _triton_fault(self) -> str | None:
        """The reason not to run the triton kernels again; None if there is none."""
        section = self.document["sections"].get("kernels", {})
        return "the triton kernels failed in section kernels" if section.get("status") == "failed" else None

    def section_here(self, name: str, seconds: float, folder: Path) -> None:
        """Runs one section in this process."""
        started, found = time.monotonic(), folder / f"{name}.json"
        run_section(name, found, seconds, trial=self.trial, without=["triton"] if self._triton_fault() else [])
        self._take_over(name, "done", time.monotonic() - started, found)

    def section(self, name: str, seconds: float, folder: Path) -> None:
        """Runs one section in a new process for at most `seconds` and a grace time, and collects its results."""
        found, log = folder / f"{name}.json", folder / f"{name}.log"
        command = [sys.executable, "-m", "benchmarks.gpu.section", name, "--output", str(found)]
        command += ["--seconds", f"{seconds:.1f}"] + ["--trial"] * self.trial
        if self._triton_fault():
            command += ["--without", "triton"]
        started, seen, status = time.monotonic(), 0.0, "running"
        process = None
        try:
            with log.open("wb") as errors, _signals_delayed():
                process = subprocess.Popen(command, stderr=errors, start_new_session=True)
            while status == "running":
                try:
                    status = "done" if process.wait(timeout=0.5) == 0 else "failed"
                    if process.returncode == NO_GPU:
                        print(log.read_text(errors="replace").strip(), file=sys.stderr)
                        sys.exit(NO_GPU)
                except subprocess.TimeoutExpired:
                    if time.monotonic() - started > min(seconds + GRACE_SECONDS, self._left() + SPARE_SECONDS):
                        status = "ended"
                modified = found.stat().st_mtime if found.exists() else 0.0
                if status != "running" or modified > seen:
                    seen = modified
                    self._take_over(name, status, time.monotonic() - started, found, _ending(process, log))
        except BaseException:
            if process and process.returncode == NO_GPU:
                raise
            self._take_over(name, "interrupted", time.monotonic() - started, found)
            raise
        finally:
            if process:
                _kill_session(process)

    def _take_over(self, name: str, status: str, seconds: float, found: Path, ending: Sequence[str] = ()) -> None:
        section: dict[str, Any] = {"status": status, "seconds": round(seconds, 1)}
        section |= json.loads(found.read_text()) if found.exists() else {"rows": [], "failures": [], "skipped": []}
        if status == "done" and section["skipped"]:
            section["status"] = "shortened"
        if status == "ended":
            section["reason"] = "it did not end in its time"
        if status == "failed":
            section |= {"reason": f"its process failed: {ending[-1]}", "log": list(ending)}
        self._record(name, section)

    def _record(self, name: str, section: dict[str, Any]) -> None:
        machine = section.pop("machine", {})
        self.document["machine"] |= machine
        self.document["sections"][name] = section
        self.document["seconds"] = round(time.monotonic() - self.started, 1)
        if self.output:
            write_json(self.output, self.document)


def _missing_imports() -> list[str]:
    """The modules that sections need but that are not installed."""
    wanted = dict.fromkeys(module for plan in SECTIONS.values() for module in plan.imports)
    return [module for module in wanted if find_spec(module) is None]


def _ending(process: subprocess.Popen[bytes], log: Path) -> list[str]:
    """The exit code and last log lines of a failed process."""
    code = process.returncode
    last = log.read_text(errors="replace").strip().splitlines()[-12:]
    return [f"exit code {code}" if code is None or code >= 0 else f"signal {-code}", *last]


@contextmanager
def _signals_delayed() -> Iterator[None]:
    """Delays signals that end the benchmark until the block is over: a process that starts meanwhile is known then.

    It notes them in a handler. If it blocked them, the started process would inherit that.
    """
    noted: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: noted.append(number)) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if noted:
            signal.raise_signal(noted[0])


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kills a section's process and all its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
