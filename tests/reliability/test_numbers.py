"""Bad losses and gradients in real runs: the run skips the update, rolls back, or stops."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from growctl.ladder.load import load_schedule
from growctl.launch.local import Local
from growctl.launch.machines import Devices
from growctl.ledger.entries import RunEntry
from growctl.ledger.ledger import Ledger
from growctl.run.requests import RunFailed, RunRequest
from growctl.run.runner import stage_entry
from growctl.run.screen import Screen
from growctl.run.stage_run import Execution, StageRun
from stages.checkpoint.manifest import read_manifest
from stages.metrics import MetricsWriter, read_metrics
from tests.growctl.runs import SCHEDULE, final_hashes, finish, growctl, kill, losses, wait_for, write_schedule

ONE_STAGE = "".join(line for line in SCHEDULE.splitlines(keepends=True) if "name: small" not in line)
POLICY = "anomalies: {non_finite: skip, spikes: %s, window: 16}\n"
BATCH, NUM_STEPS = 8, 60


def start(schedule: Path, poison: dict[str, list[int]], *arguments: object, **faults: object) -> subprocess.Popen:
    """`growctl run` on data with poisoned samples, with further faults."""
    told = {"folder": str(schedule.parent), "faults": [], "poison": poison} | faults
    return growctl(*("run", schedule, "--runs-dir", schedule.parent, "--no-reuse", *arguments), faults=json.dumps(told))


def anomalies(metrics: Path) -> list[tuple[Any, ...]]:
    """The recorded anomalies: (attempt, step, kind, action, first step skipped, number of steps)."""
    keys = ("attempt", "step", "kind", "action", "first_step", "num_steps")
    return [tuple(r[key] for key in keys) for r in read_metrics(metrics) if r["event"] == "anomaly"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of all runs in this file, so that they share one dataset."""
    return tmp_path_factory.mktemp("numbers")


@pytest.mark.trains
def test_both_ranks_skip_a_nan_on_one_of_them_and_a_spike_stops_the_run_under_the_stop_policy(folder):
    schedule = write_schedule(folder, ONE_STAGE + POLICY % "stop")
    # The last sample of update 12 (counted from 0), on the second rank, and all samples of update 33.
    poison = {"nan": [12 * BATCH + 7], "spike": list(range(33 * BATCH, 34 * BATCH))}
    run = start(schedule, poison, "launch.devices=2", "launch.zero_stage=2", "--name", "stopped")
    out, err = finish(run, expect=1)
    stage = folder / "stopped/stages/0-large"
    found = [(1, 13, "non_finite", "skip", 12, 1), (1, 34, "spike", "stop", 33, 1)]
    assert anomalies(stage / "metrics.jsonl") == found
    skipped, spike = (record for record in read_metrics(stage / "metrics.jsonl") if record["event"] == "anomaly")
    assert (skipped["value"], skipped["threshold"]) == (None, None)
    assert spike["value"] > spike["threshold"] > 0
    said = " ".join((out + err).split())
    assert "try a lower learning_rate.peak" in said
    assert "restarting it" not in said
    assert "Traceback" not in said
    assert all(loss < spike["value"] for (_, _, event), loss in losses(folder / "stopped").items() if event == "train")
    steps = read_manifest(stage / "step_00000030").group_steps
    assert set(steps.values()) == {29}


@pytest.fixture(scope="module")
def rolled_back(training, folder) -> tuple[Path, dict[str, list[int]], str]:
    """(schedule, poison, output) of a run that is rolled back after a spike and later skips a NaN."""
    schedule = write_schedule(folder, ONE_STAGE + POLICY % "rollback")
    poison = {"spike": list(range(36 * BATCH, 37 * BATCH)), "nan": [(52 + 7) * BATCH]}
    out, _ = finish(start(schedule, poison))
    return schedule, poison, out


def test_a_spike_rolls_a_stage_back_and_the_data_since_the_checkpoint_is_skipped(rolled_back):
    schedule, _, out = rolled_back
    stage = schedule.parent / "tiny/stages/0-large"
    found = [(1, 37, "spike", "rollback", 30, 7), (2, 53, "non_finite", "skip", 52, 1)]
    assert anomalies(stage / "metrics.jsonl") == found
    starts = [r["resumed_from"] for r in read_metrics(stage / "metrics.jsonl") if r["event"] == "start"]
    assert starts == [None, 30]
    final = read_manifest(stage / "final")
    assert (final.step, final.samples_seen) == (NUM_STEPS, (NUM_STEPS + 7) * BATCH)
    assert set(final.group_steps.values()) == {NUM_STEPS - 1}
    assert read_manifest(stage / "step_00000050").samples_seen == (50 + 7) * BATCH
    assert "rolling back to step 30 and skipping the data of 7 steps" in " ".join(out.split())


def test_a_run_killed_after_a_rollback_ends_in_the_same_bits(rolled_back, tmp_path):
    schedule, poison, _ = rolled_back
    fault = {"name": "saving", "at": "files", "matching": "step_00000040", "process": "rank", "do": "SIGSTOP"}
    metrics = schedule.parent / "killed/stages/0-large/metrics.jsonl"
    process = start(schedule, poison, "--name", "killed", folder=str(tmp_path), faults=[fault])
    wait_for((tmp_path / "saving").exists, process)
    kill(process, schedule.parent)
    finish(start(schedule, poison, "--name", "killed"))
    assert final_hashes(metrics.parents[2]) == final_hashes(schedule.parent / "tiny") != {}
    assert losses(metrics.parents[2]) == losses(schedule.parent / "tiny")
    assert [(attempt, action) for attempt, _, _, action, *_ in anomalies(metrics)] == [(1, "rollback"), (3, "skip")]


def rollbacks(directory: Path, *attempts: int) -> None:
    """Writes the metrics of attempts that are each rolled back from step 24 to 20."""
    for attempt in attempts:
        writer = MetricsWriter(directory / "metrics.jsonl", attempt)
        what = {"kind": "spike", "value": 9.0, "threshold": 5.0, "action": "rollback"}
        writer.write("anomaly", 24, 1.0, **what, first_step=20, num_steps=attempt)
        writer.close()


@pytest.fixture
def execution(tmp_path) -> Iterator[Execution]:
    """An execution of a run with one stage, before its first attempt, with an open ledger."""
    schedule = load_schedule(str(write_schedule(tmp_path, ONE_STAGE + POLICY % "rollback")), ["anomalies.most=2"])
    request = RunRequest("tiny", schedule, "tiny")
    execution = Execution(request, tmp_path, Local(Devices(1, "cpu", False)), Screen(Console()))
    execution.stage(execution.plans[0]).directory.mkdir(parents=True)
    with Ledger(tmp_path / "tiny/ledger.db") as execution.ledger:
        entry = RunEntry("tiny", "tiny", None, None, schedule.seed, "dataset", "0" * 64)
        execution.ledger.record_run(entry, [stage_entry(plan) for plan in execution.plans])
        yield execution


def booked(execution: Execution) -> tuple[tuple[int, int], ...]:
    """The data that is skipped after metrics.jsonl is booked."""
    [plan] = execution.plans
    metrics = execution.stage(plan).metrics
    execution.ledger.books(plan.name).sync(read_metrics(metrics), attempt_over=True)
    return StageRun(execution, plan).left_out()


def test_a_stage_rolled_back_to_the_same_step_too_often_stops_and_suggests_a_fix(execution):
    directory = execution.stage(execution.plans[0]).directory
    for attempt in (1, 2, 3):
        assert len(booked(execution)) == attempt - 1
        rollbacks(directory, attempt)
    with pytest.raises(RunFailed, match=r"rolled back to step 20 3 times.*anomalies.most = 2.*learning_rate.peak"):
        booked(execution)


def test_data_stays_skipped_if_its_metrics_line_is_damaged(execution):
    metrics = execution.stage(execution.plans[0]).metrics
    rollbacks(metrics.parent, 1, 2)
    assert booked(execution) == ((20, 1), (20, 2))
    metrics.write_bytes(metrics.read_bytes().replace(b'"num_steps": 1', b'"num_steps": 7'))
    assert booked(execution) == ((20, 1), (20, 2))
    metrics.unlink()
    assert booked(execution) == ((20, 1), (20, 2))
