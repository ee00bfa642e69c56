"""Real runs for tests: a ladder of two tiny stages on a short real text, in separate processes."""

import asyncio
import fcntl
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest
import typer.main

from growctl.cli.app import main
from stages.metrics import read_metrics
from tests import warm_start
from tests.growctl.text.schemas import assert_printed_as_documented
from tests.reliability.faults.sitecustomize import VARIABLE, described
from tests.workers import BUG, HANG_SECONDS, PRINT_TRACEBACKS, REPOSITORY, TrainingGuard

TEXT = Path(asyncio.__file__).parent
FAULTS = REPOSITORY / "tests/reliability/faults"
SCHEDULE = f"""
seed: 3
data: {{source: {TEXT}, include: "*.py", vocab_size: 300, validation_fraction: 0.2}}
model: {{num_layers: 2, hidden_size: 32, num_heads: 2}}
stages:
  - {{name: small, attention_tokens: 8, ffn_tokens: 16, train_steps: 30}}
  - {{name: large, attention_tokens: 16, ffn_tokens: 40, train_steps: 60}}
training: {{sequence_length: 32, batch_size: 8, log_every: 5, precision: fp32}}
learning_rate: {{peak: 5e-3, warmup_steps: 5, decay: 0.2}}
growth: {{ramp: 0.2}}
evaluation: {{every: 25, max_sequences: 64}}
checkpoint: {{every: 10, keep: 2}}
launch: {{devices: 1}}
"""
UNUSABLE_INPUT = 2
"""The exit code of a growctl that refuses what it is given: it has trained nothing."""

COMMAND_OF = functools.cache(typer.main.get_command)
"""The parser of all commands, built once: typer builds it anew whenever the application is called."""

CONTROL = "controls: [{kind: tokenformer-scratch}, {kind: decoder-scratch, budgets: [0.5]}]\n"


def write_schedule(folder: Path, text: str = SCHEDULE) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(text)
    return path


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` has filled, once for all the processes that run tests; nobody changes it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".made").exists():
            make(folder)
            (folder / ".made").touch()
    return folder


def growctl(
    *arguments: object,
    cwd: Path = REPOSITORY.parent,
    output: int = subprocess.PIPE,
    fork: bool = False,
    faults: str | None = None,
) -> subprocess.Popen:
    """growctl as a user starts it in `cwd`, output captured or written to `output`; a warm start with `fork` or faults.

    `faults` are those of this process and all that it starts, in place of those in the test's environment.
    """
    environment = os.environ | ({VARIABLE: faults} if faults else {})
    path = f"{FAULTS}:{REPOSITORY}" if VARIABLE in environment else str(REPOSITORY)
    environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100"} | PRINT_TRACEBACKS
    environment.pop("GROWCTL_RUNS_DIR", None)
    if fork or VARIABLE in environment:
        environment[warm_start.VARIABLE] = "1"
    command = [sys.executable, "-m", "growctl.cli.app", *map(str, arguments)]
    return subprocess.Popen(command, stdout=output, stderr=output, text=True, env=environment, cwd=cwd)


def paused_rank(folder: Path, stage: str, steps: int = 6) -> str:
    """The faults that make rank 0 of a stage stop itself, once, after some steps of an attempt.

    Other ranks then wait for it, so the test has time to act, however busy the machine is. Then `held` lets the rank
    continue, or `kill` ends it. Choose a step between two log lines: the pause lowers the speed of the next line, and
    the rank then looks for requests at every step.
    """
    folder.mkdir(exist_ok=True)
    fault = {"name": f"paused-{stage}-{steps}", "at": "stages.train.worker:Worker.train_step", "nth": steps + 1}
    fault |= {"command": stage, "process": "rank", "rank": 0, "do": "SIGSTOP"}
    return json.dumps({"folder": str(folder), "faults": [fault]})


def finish(process: subprocess.Popen, expect: int = 0) -> tuple[str, str]:
    """(stdout, stderr) of a growctl that ends with the exit code `expect`."""
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == expect, f"exit code {process.returncode}\n{out}\n{err}"
    assert BUG not in out + err, f"{out}\n{err}"
    assert isinstance(process.args, list)
    _check_document([str(argument) for argument in process.args[3:]], out)
    return out, err


def run(*arguments: object, expect: int = 0) -> tuple[str, str]:
    """(stdout, stderr) of a growctl that ends with the exit code `expect`."""
    with TrainingGuard.rejection() if expect == UNUSABLE_INPUT else nullcontext():
        process = growctl(*arguments, fork=True)
    return finish(process, expect)


def run_here(*arguments: object, expect: int = 0, columns: int = 100, cwd: Path = REPOSITORY.parent) -> tuple[str, str]:
    """Like `run`, but in this process, where slow modules are imported only once. For commands that train nothing."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["growctl", *map(str, arguments)])
        patch.setattr("growctl.run.signals.install_handlers", lambda: None)
        patch.setattr("typer.main.get_command", COMMAND_OF)
        patch.setenv("COLUMNS", str(columns))
        patch.delenv("GROWCTL_RUNS_DIR", raising=False)
        patch.chdir(cwd)
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == expect, f"exit code {end.value.code}\n{out.getvalue()}\n{err.getvalue()}"
    _check_document([str(argument) for argument in arguments], out.getvalue())
    return out.getvalue(), err.getvalue()


def _check_document(command: list[str], out: str) -> None:
    """Fails if a command with --json has printed something that its schema does not describe."""
    if out and "--json" in command:
        assert_printed_as_documented(command, out)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen | None = None) -> None:
    """Waits for something that `process`, or one which we did not start, does."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert process is None or process.poll() is None, f"growctl ended first: {process.communicate()}"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def stat_of(pid: int) -> list[str]:
    """What Linux says of a process behind its name, first its state and its parent; nothing once it has ended."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if state == "Z" else [state, *others]


@contextmanager
def held(workers: list[int], stage: Path) -> Iterator[None]:
    """Holds workers that `paused_rank` has paused, while the block tells their runner to stop, until the runner has
    asked them to save, and a second more: a rank that was held for long looks for requests at every step.
    """
    wait_for(lambda: any(stat_of(pid)[:1] in ([], ["T"]) for pid in workers))  # else it would stop once more later
    assert all(stat_of(pid) for pid in workers), "a worker ended before its pause"
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
        wait_for(lambda: any(map(_has_pending_signal, workers)) or any(map(_asks_to_save, stage.glob(".lifeline.*"))))
        time.sleep(1)
    finally:
        ranks = [pid for pid in workers if not _has_pending_signal(pid)]
        if launcher := set(workers) - set(ranks):
            os.kill(launcher.pop(), signal.SIGCONT)
            wait_for(lambda: any(map(_has_pending_signal, ranks)))  # it passes the signal to the first rank
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)


def _has_pending_signal(pid: int) -> bool:
    """Whether a held process has yet to handle the signal with which the runner asks local workers to save."""
    pending = re.search(r"ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(pending and int(pending[1], 16) >> signal.SIGUSR1 - 1 & 1)


def _asks_to_save(lifeline: Path) -> bool:
    return lifeline.read_text().endswith("save")


def reached(metrics: Path, event: str, step: int) -> Callable[[], bool]:
    """Whether metrics.jsonl has an `event` at `step` or later."""
    return lambda: any(r["event"] == event and r["step"] >= step for r in read_metrics(metrics))


def workers_of(directory: Path) -> list[int]:
    """Processes whose command line names a file below `directory`, without children that have yet to become another."""
    commands = {str(pid): " ".join(command) for pid, command, _ in described()}
    found = {pid: said for pid, said in commands.items() if str(directory) in said and "stages.train.worker" in said}
    parents = {pid: stat_of(int(pid))[1:2] for pid in found}
    return [int(pid) for pid, command in found.items() if command not in map(found.get, parents[pid])]


def stop(process: subprocess.Popen, number: signal.Signals) -> tuple[str, str]:
    """Signals growctl itself, no one else, and waits for it to be gone."""
    process.send_signal(number)
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert BUG not in out + err, f"{out}\n{err}"
    return out, err


def is_paused(directory: Path) -> bool:
    """Whether a worker below `directory` has stopped itself."""
    return any(stat_of(pid)[:1] == ["T"] for pid in workers_of(directory))


def kill_workers(directory: Path) -> None:
    """Kills the workers below `directory` that have not ended by themselves."""
    for pid in workers_of(directory):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill(process: subprocess.Popen, directory: Path) -> tuple[str, str]:
    """Kills growctl once one of its workers below `directory` has paused, and the workers, which then cannot end."""
    wait_for(lambda: is_paused(directory), process)  # else it would pause the next attempt
    said = stop(process, signal.SIGKILL)
    kill_workers(directory)
    wait_for(lambda: not workers_of(directory))
    return said


def as_killed_at(step: int, whole: Path, runs: Path, name: str = "1-large") -> Path:
    """Copies a run as if its machine went down right after a stage's checkpoint at `step`; returns that stage's
    directory."""
    shutil.copytree(whole, runs)
    stage = runs / "tiny/stages" / name
    for later in (path for path in stage.parent.iterdir() if path.name > name):
        shutil.rmtree(later)
    for later in [stage / "final", *(path for path in stage.glob("step_*") if path.name > f"step_{step:08d}")]:
        shutil.rmtree(later)
    lines = (stage / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stage / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= step))
    (runs / "tiny/ledger.db").unlink()
    return stage


def final_hashes(run_directory: Path) -> dict[str, str]:
    """sha256 by parameter file of every stage's final/."""
    return {
        f"{path.parent.parent.relative_to(run_directory / 'stages')}/{name}": entry["sha256"]
        for path in sorted(run_directory.glob("stages/**/final/manifest.json"))
        for name, entry in json.loads(path.read_text())["files"].items()
    }


def losses(run_directory: Path) -> dict[tuple[str, int, str], float]:
    """The last recorded evaluations and training losses: {(stage, step, event): loss}."""
    return {
        (path.parent.name, record["step"], record.get("point", "train")): record["loss"]
        for path in sorted(run_directory.glob("stages/*/metrics.jsonl"))
        for record in read_metrics(path)
        if "loss" in record
    }
