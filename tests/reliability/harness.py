"""Runs, kills and restarts growctl, and compares the result with an undisturbed run."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from growctl.ledger.ledger import Ledger
from stages.checkpoint.manifest import read_manifest, verify_checkpoint
from stages.metrics import read_metrics
from tests import warm_start
from tests.growctl.runs import TEXT
from tests.reliability.faults.sitecustomize import HERE, VARIABLE, processes
from tests.reliability.points import BY_NAME
from tests.workers import BUG, HANG_SECONDS, PRINT_TRACEBACKS, REPOSITORY

SCHEDULE = f"""
seed: 3
data: {{source: {TEXT}, include: "*.py", vocab_size: 300, validation_fraction: 0.2}}
model: {{num_layers: 0, hidden_size: 32, num_heads: 2}}
stages:
  - {{name: small, train_steps: 10, sequence_length: 16, batch_size: 8}}
  - name: middle
    num_layers: 2
    attention_tokens: 12
    ffn_tokens: 24
    train_steps: 10
    sequence_length: 16  # 16 sequences a step
    release: {{decay: 1.0}}
  - {{name: large, num_layers: 4, attention_tokens: 16, ffn_tokens: 40, train_steps: 12}}
training: {{sequence_length: 32, batch_size: 8, log_every: 2, precision: fp32}}
learning_rate: {{peak: 5e-3, warmup_steps: 3, decay: 0.2, batch_scaling: sqrt}}
growth: {{ramp: 0.2, depth: interleave, routing: {{groups: 2, read: 1}}}}
evaluation: {{every: 4, max_sequences: 32}}
checkpoint: {{every: 3, keep: 2}}
launch: {{devices: 1}}
"""

SWITCH = BY_NAME["checkpoint: renamed, not yet told"].fault("switch", "everybody", "large", matching=r"/\.?step_0+6\b")
"""Kills a run in the middle of its last stage, so that another number of ranks resumes it there."""

EXIT_CODES = (0, 1, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""With kills. The last two: before growctl installs its signal handlers."""

MAY_STAY = re.compile(
    r"/stages/[^/]+/(release/)?converted_\d+(/|$)|^temporary/tmp\w+(/(test\.[co]|a\.out|stderr\.txt))?$"
)
"""What a kill may leave: the last conversion, and the program by which DeepSpeed tries whether a function links."""

TIMES = ("attempt", "seconds", "tokens_per_second", "data_wait_seconds")
"""Keys of metrics.jsonl that differ from one execution to the next."""


class Life(NamedTuple):
    """One `growctl run`, and the names of the faults that struck during it."""

    exit_code: int
    struck: tuple[str, ...]
    output: str


class KilledRun:
    """A run in its own folder, with injected faults."""

    def __init__(
        self,
        folder: Path,
        ranks: int,
        *,
        then: int | None = None,
        dataset_of: "KilledRun | None" = None,
        schedule: str = SCHEDULE,
    ) -> None:
        """Starts nothing yet. `then`: ranks after `SWITCH` has struck; `dataset_of`: whose dataset to take."""
        self.folder, self.ranks, self.then = folder, ranks, then
        self.runs, self.marks, self.schedule = folder / "runs", folder / "marks", folder / "three.yaml"
        self.directory = self.runs / "three"
        for name in ("runs", "marks", "home", "temporary", "work"):
            (folder / name).mkdir(parents=True)
        if dataset_of:
            shutil.copytree(dataset_of.runs / ".datasets", self.runs / ".datasets")
        self.schedule.write_text(schedule)
        self.lives: list[Life] = []
        self.forks = not os.environ.get("GROWCTL_SOAK")  # that start warm, else new interpreters

    def give(self, other: "KilledRun") -> None:
        """Puts a copy of another run beside this one, which then takes over all of its stages."""
        shutil.copytree(other.directory, self.runs / "given", copy_function=shutil.copy2)
        shutil.copytree(other.runs / ".datasets", self.runs / ".datasets")

    def start(self, faults: Sequence[dict[str, Any]] = ()) -> subprocess.Popen[str]:
        """Starts `growctl run` in a separate process, with stdout and stderr in one pipe and `faults` injected."""
        told = json.dumps({"folder": str(self.marks), "faults": faults}).replace("{runs}", str(self.runs))
        own = {"PYTHONPATH": f"{HERE}:{REPOSITORY}", VARIABLE: told, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        own |= {"HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "temporary")} | PRINT_TRACEBACKS
        own |= {warm_start.VARIABLE: "1"} if self.forks else {}
        ranks = self.then if self.then and SWITCH["name"] in self.struck() else self.ranks
        command = [sys.executable, "-m", "growctl.cli.app", "run", self.schedule, f"launch.devices={ranks}"]
        return subprocess.Popen(
            [*map(str, command), "--runs-dir", str(self.runs)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | own,
            cwd=self.folder / "work",
        )

    def live(
        self, faults: Sequence[dict[str, Any]] = (), meanwhile: Callable[[subprocess.Popen[str]], None] | None = None
    ) -> Life:
        """Runs one `growctl run` until it exits for any reason; calls `meanwhile` with its process."""
        before = set(self.struck())
        process = self.start(faults)
        if meanwhile:
            meanwhile(process)
        try:
            output, _ = process.communicate(timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"hangs, with {self.struck()}:\n{process.communicate()[0]}") from None
        life = Life(process.returncode, tuple(mark for mark in self.struck() if mark not in before), output)
        self.lives.append(life)
        assert life.exit_code in EXIT_CODES, f"exit code {life.exit_code} with {life.struck}:\n{output}"
        assert BUG not in output, output
        assert "Traceback" not in output or life.exit_code in (-signal.SIGTERM, -signal.SIGINT), output
        return life

    def to_the_end(
        self, faults: Sequence[dict[str, Any]] = (), meanwhile: Callable[[subprocess.Popen[str]], None] | None = None
    ) -> None:
        """Restarts the run after each death until it exits with code 0; every fault strikes at most once."""
        faults = [*faults, *([SWITCH] if self.then else [])]
        while self.live(faults, meanwhile).exit_code:
            life = self.lives[-1]
            assert life.struck, f"the run failed without a fault:\n{life.output}"

    def struck(self) -> list[str]:
        """The faults that struck so far, in order."""
        return [path.name for path in sorted(self.marks.iterdir(), key=lambda path: path.stat().st_mtime_ns)]

    def finals(self) -> dict[str, Any]:
        """The final state by stage: hashes of weights and moments, group steps, position in the data, loss."""
        found = {}
        for path in sorted(self.directory.glob("stages/**/final")):
            verify_checkpoint(path)
            said = read_manifest(path)
            # The history has device times, and the seal covers them and the parent. The hash covers the rest.
            values = said.model_dump(exclude={"lineage": {"parent", "history"}, "seal": True})
            stage = str(path.parent.relative_to(self.directory / "stages"))
            found[stage] = values | {"history": said.lineage.history[-1].hash}
        return found

    def metrics(self) -> dict[tuple[str, int, str], dict[str, Any]]:
        """The last record of every step and evaluation: {(stage, step, event or point): values without times}."""
        return {
            (str(path.parent.relative_to(self.directory)), record["step"], str(record.get("point", record["event"]))): {
                name: value for name, value in record.items() if name not in TIMES
            }
            for path in sorted(self.directory.glob("stages/**/metrics.jsonl"))
            for record in read_metrics(path)
            if record["event"] in ("train", "evaluation")
        }

    def costs(self) -> dict[str, Any]:
        """The ledger by stage: kept steps, tokens and FLOPs, and the evaluations that still count."""
        with Ledger(self.directory / "ledger.db", read_only=True) as ledger:
            kept = {stage.name: ledger.stage_cost(stage.name).kept for stage in ledger.stages()}
            evaluations = {
                stage: {(e.step, e.point): (e.loss, e.perplexity, e.bits_per_byte, e.num_tokens) for e in found}
                for stage in kept
                if (found := ledger.evaluations(stage))
            }
        return {name: (cost.steps, cost.tokens, asdict(cost.flops), evaluations[name]) for name, cost in kept.items()}

    def files(self) -> set[str]:
        """Every file and folder but checkpoints within a stage and what `MAY_STAY`."""
        paths = (path for path in self.folder.rglob("*") if self.marks not in path.parents)
        names = (str(path.relative_to(self.folder)) for path in paths)
        return {name for name in names if "/step_" not in name and not MAY_STAY.search(name)}


def check_same_end(killed: KilledRun, undisturbed: KilledRun) -> None:
    """Asserts that a killed run has the same end state as the undisturbed one."""
    assert killed.finals() == undisturbed.finals() != {}
    assert killed.metrics() == undisturbed.metrics() != {}
    assert killed.costs() == undisturbed.costs()
    assert len(killed.costs()) == len(killed.finals())
    check_books(killed)
    check_nothing_left(killed)
    assert killed.files() == undisturbed.files()


def check_same_model(killed: KilledRun, given: KilledRun) -> None:
    """Asserts that a killed run that took over all stages of another has its end, at no cost of its own."""
    assert killed.finals() == given.finals()
    evaluations = {key: values for key, values in given.metrics().items() if key[2] != "train"}
    assert killed.metrics() == evaluations != {}
    with Ledger(killed.directory / "ledger.db", read_only=True) as ledger:
        for stage in ledger.stages():
            cost = ledger.stage_cost(stage.name)
            assert (cost.reused.steps, cost.spent.steps) == (stage.num_steps, 0)
            assert ledger.finished(stage.name)
    check_nothing_left(killed)


def check_books(run: KilledRun) -> None:
    """Asserts that the ledger has every attempt, and every step as often as it was trained."""
    with Ledger(run.directory / "ledger.db", read_only=True) as ledger:
        stages = ledger.stages()
        ladder = [stage.name for stage in stages if not stage.branch_of]
        for stage in stages:
            index = ladder.index(stage.branch_of or stage.name)
            metrics = run.directory / f"stages/{index}-{stage.name}/metrics.jsonl"
            told = [record["attempt"] for record in read_metrics(metrics)]
            assert told == sorted(told)
            attempts = ledger.query("SELECT * FROM attempt WHERE stage = :s ORDER BY attempt", s=stage.name)
            assert [row["attempt"] for row in attempts] == sorted(set(told))
            done = 0
            for attempt in attempts:
                said = {"s": stage.name, "a": attempt["attempt"]}
                step = attempt["first_step"]
                for row in ledger.query("SELECT * FROM work WHERE stage = :s AND attempt = :a ORDER BY entry", **said):
                    assert row["first_step"] == step, "steps of an attempt without a row"
                    assert row["tokens"] == (row["last_step"] - step) * stage.tokens_per_step
                    step = row["last_step"]
                done += step - attempt["first_step"]
            cost = ledger.stage_cost(stage.name)
            assert cost.kept.steps == stage.num_steps
            assert cost.kept.steps + cost.replayed.steps == done
            assert ledger.finished(stage.name)


def check_nothing_left(run: KilledRun) -> None:
    """Asserts that no process and no half-written file is left, and that all checkpoints are intact."""
    deadline = time.monotonic() + HANG_SECONDS
    while left := processes(str(run.marks)):
        assert time.monotonic() < deadline, f"left over: {left}"
        time.sleep(0.1)
    odd = re.compile(r"\.incomplete|\.removed|\.tmp$|/broken-")
    names = {str(path.relative_to(run.runs)) for path in run.runs.rglob("*")}
    assert {name for name in names if odd.search(name) and not MAY_STAY.search(name)} == set()
    for checkpoint in run.directory.glob("stages/**/step_*"):
        verify_checkpoint(checkpoint)
    assert list((run.folder / "work").iterdir()) == []
