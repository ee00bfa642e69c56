"""Runs growctl itself on a GPU: does it train and resume with the same bits, and what does a real ladder show?

    python -m benchmarks.gpu.whole_runs bits --directory DIR --output FILE [KEY=VALUE ...]
    python -m benchmarks.gpu.whole_runs ladder --directory DIR --output FOLDER --seconds 540 KEY=VALUE ...

`bits` trains a schedule twice without interruption and once killed with -9 twice, and compares the final checkpoints of
all stages. It also records what `doctor` and `plan --measure` print. `ladder` trains benchmarks/gpu/ladder.yaml until
it is done or the seconds are over, and reports on it in FOLDER; repeat the command to go on. KEY=VALUE are overrides of
the schedule: `data.source=TEXT` gives the ladder its text. `--schedule` names another schedule.

Needs growctl with all that it depends on. Exit code: 0 if done, 1 if bits differ, a kill came too late or growctl
failed, 3 if a ladder needs another call.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gpu.section import write_json
from growctl.runs_dir import RunPaths
from stages.checkpoint.manifest import read_manifest
from stages.metrics import read_metrics

HERE = Path(__file__).resolve().parent
KILLED_AT = (0.35, 0.7)
"""The shares of all optimizer steps after which a run is killed."""

GRACE_SECONDS = 45.0
"""Time for a ladder to save and to be reported on."""

POLL_SECONDS = 0.05
UNFINISHED = 3
"""Exit code of a ladder that needs another call."""

STOPPED = 128 + signal.SIGTERM
"""growctl's exit code after it has saved because of SIGTERM."""

KEPT_LINES = 40


class Growctl:
    """growctl, run with one schedule. Each run has a runs directory of its own: in a common one, a run would take over
    what another has trained, instead of training it again."""

    def __init__(self, schedule: str, overrides: Sequence[str], directory: Path) -> None:
        self.schedule, self.overrides, self.directory = schedule, overrides, directory
        directory.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: str, *arguments: object) -> subprocess.Popen[str]:
        """Starts a command on the runs directory of run `name`; what it prints goes to `growctl.log`."""
        runs = ["--runs-dir", str(self.directory / name)]
        words = [sys.executable, "-m", "growctl.cli.app", command, *map(str, arguments), *runs]
        with (self.directory / "growctl.log").open("a") as log:
            return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, text=True)

    def train(self, name: str, *options: str) -> subprocess.Popen[str]:
        """Starts or resumes a run of the schedule."""
        return self.start(name, "run", self.schedule, *self.overrides, "--name", name, *options)

    def says(self, *arguments: str) -> dict[str, Any]:
        """The exit code of a command that needs no runs directory, and the end of what it prints."""
        command = [sys.executable, "-m", "growctl.cli.app", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return {
            "exit_code": done.returncode,
            "output": [line.rstrip() for line in done.stdout.splitlines()[-KEPT_LINES:]],
        }

    def steps(self, name: str) -> int:
        """Optimizer steps that a run has logged so far."""
        stages = (stage for _, _, stage in RunPaths(self.directory / name / name).stages_found())
        return sum(max((record["step"] for record in read_metrics(stage.metrics)), default=0) for stage in stages)

    def final_files(self, name: str) -> dict[str, str]:
        """The SHA-256 of each file of a run's final checkpoints, by stage and name."""
        found: dict[str, str] = {}
        for _, stage_name, stage in RunPaths(self.directory / name / name).stages_found():
            files = read_manifest(stage.final).files
            found |= {f"{stage_name}/{file}": entry.sha256 for file, entry in files.items()}
        return found


def bits(growctl: Growctl, output: Path) -> int:
    """Whether an unbroken run ends in the same bits as another one, and as one that was killed and resumed."""
    found: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "schedule": growctl.schedule,
        "overrides": list(growctl.overrides),
        "doctor": growctl.says("doctor"),
        "seconds": {},
    }
    for name in ("whole", "again"):
        started = time.monotonic()
        code = growctl.train(name, "--no-controls").wait()
        found["seconds"][name] = round(time.monotonic() - started, 1)
        write_json(output, found)
        if code:
            return _failed(growctl)
    total = growctl.steps("whole")
    killed_at = [_kill(growctl, "killed", round(share * total)) for share in KILLED_AT]
    found |= {"steps": total, "killed_at": killed_at}
    if None in killed_at or growctl.train("killed", "--no-controls").wait():
        return _failed(growctl)
    whole = growctl.final_files("whole")
    for name in ("again", "killed"):
        other = growctl.final_files(name)
        found[f"differs_{name}"] = sorted(file for file in whole | other if whole.get(file) != other.get(file))
    found |= {"files": len(whole), "plan": growctl.says("plan", growctl.schedule, *growctl.overrides, "--measure")}
    write_json(output, found)
    differing = {name: len(found[f"differs_{name}"]) for name in ("again", "killed")}
    print(f"{len(whole)} files; differing in a second run: {differing['again']}, after kills: {differing['killed']}")
    return int(any(differing.values()))


def _kill(growctl: Growctl, name: str, step: int) -> int | None:
    """Kills a run and its workers with -9 once it has logged `step` steps, and returns those it had; None if it ended
    first."""
    process = growctl.train(name, "--no-controls")
    while process.poll() is None and growctl.steps(name) < step:
        time.sleep(POLL_SECONDS)
    if process.poll() is not None:
        return None
    for victim in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    process.wait()
    return growctl.steps(name)


def ladder(growctl: Growctl, output: Path, seconds: float) -> int:
    """Trains for up to `seconds`, then writes the report, whatever is finished."""
    process = growctl.train("ladder")
    try:
        code = process.wait(seconds - GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        code = process.wait()
    steps = growctl.steps("ladder")
    print(f"steps of the ladder: {steps}; {'not done' if code else 'done'}")
    if code not in (0, STOPPED):
        return _failed(growctl)
    output.mkdir(parents=True, exist_ok=True)
    if steps and growctl.start("ladder", "report", "ladder", "--output", output).wait():
        return _failed(growctl)
    return UNFINISHED if code else 0


def _failed(growctl: Growctl) -> int:
    lines = (growctl.directory / "growctl.log").read_text(errors="replace").splitlines()
    print("\n".join(lines[-KEPT_LINES:]), file=sys.stderr)
    return 1


def main() -> int:
    """Runs the command on the command line and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bits", "ladder"])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="overrides of the schedule")
    parser.add_argument("--schedule", help="by default the quickstart for bits, ladder.yaml beside this for ladder")
    parser.add_argument("--directory", type=Path, required=True, help="for the runs; a ladder goes on in it")
    parser.add_argument("--output", type=Path, required=True, help="a file for bits, a folder for ladder")
    parser.add_argument("--seconds", type=float, default=540.0, help="time for one call of ladder (540)")
    arguments = parser.parse_intermixed_args()
    if arguments.seconds <= GRACE_SECONDS:
        parser.error(
            f"--seconds {arguments.seconds:g}: must be above {GRACE_SECONDS:g}, which saving and reporting take"
        )
    if arguments.what == "bits" and arguments.directory.exists() and any(arguments.directory.iterdir()):
        parser.error(f"--directory {arguments.directory}: holds runs already; a comparison of bits begins anew")
    schedule = arguments.schedule or {"bits": "quickstart", "ladder": str(HERE / "ladder.yaml")}[arguments.what]
    growctl = Growctl(schedule, arguments.overrides, arguments.directory.resolve())
    if arguments.what == "bits":
        return bits(growctl, arguments.output)
    return ladder(growctl, arguments.output, arguments.seconds)


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "120")
    sys.exit(main())
