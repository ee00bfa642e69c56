"""Real runs that are killed, interrupted or damaged resume and end like an undisturbed run."""

import json
import os
import pty
import shutil
import signal
import sqlite3
import time

import pytest

from growctl.evaluate.record import record
from growctl.ledger.file import TABLES
from growctl.ledger.ledger import Ledger
from stages.checkpoint.manifest import read_manifest
from stages.evaluate.results import Score
from stages.metrics import read_metrics
from tests.growctl.runs import (
    SCHEDULE,
    final_hashes,
    finish,
    growctl,
    held,
    is_paused,
    kill,
    kill_workers,
    losses,
    paused_rank,
    reached,
    run,
    run_here,
    stop,
    wait_for,
    wait_until,
    workers_of,
    write_schedule,
)
from tests.workers import HANG_SECONDS

pytestmark = pytest.mark.trains


@pytest.fixture(scope="module")
def undisturbed(training, tmp_path_factory):
    """(schedule, runs directory) of an undisturbed ladder; other runs may share its dataset."""
    folder = tmp_path_factory.mktemp("undisturbed")
    schedule = write_schedule(folder)
    run("run", schedule, "--runs-dir", folder / "runs")
    return schedule, folder / "runs"


@pytest.fixture
def runs(undisturbed, tmp_path):
    """A separate runs directory that already has the dataset."""
    shutil.copytree(undisturbed[1] / ".datasets", tmp_path / ".datasets")
    return tmp_path


def assert_same_end(runs, undisturbed):
    ended, expected = runs / "tiny", undisturbed[1] / "tiny"
    assert final_hashes(ended) == final_hashes(expected)
    assert len(final_hashes(ended)) > 20
    assert losses(ended) == losses(expected)


def totals(runs, name="tiny"):
    """(tokens kept, FLOPs replayed, FLOPs kept) by stage, from the report."""
    report = json.loads(run_here("report", name, "--runs-dir", runs, "--json")[0])["runs"][0]
    return {s["name"]: (s["train_tokens"], s["replayed_flops"], s["flops"]) for s in report["stages"]}


def booked(ledger):
    """Every row of a ledger and its sums, without the run's id and the times of writing."""
    with Ledger(ledger, read_only=True) as books:
        sums = [(books.stage_cost(s.name), books.evaluations(s.name), books.finished(s.name)) for s in books.stages()]
    its_own = ("entry", "sha256", "created_at", "recorded_at", "run_id")
    connection = sqlite3.connect(ledger)
    connection.row_factory = sqlite3.Row
    tables = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}
    connection.close()
    rows = {
        table: sorted(str({key: value for key, value in dict(row).items() if key not in its_own}) for row in found)
        for table, found in tables.items()
    }
    assert all(rows[table] for table in TABLES if table != "anomaly")
    return rows, sums


def test_a_run_killed_mid_stage_ends_in_the_same_bits(undisturbed, runs, tmp_path):
    schedule, _ = undisturbed
    twice = "checkpoint.every=25"
    faults = paused_rank(tmp_path / ".marks", "1-large", steps=31)  # so there is work to replay
    process = growctl("run", schedule, twice, "--runs-dir", runs, faults=faults)
    large = runs / "tiny/stages/1-large"
    wait_until(reached(large / "metrics.jsonl", "train", 30), process)
    kill(process, runs)
    assert not (large / "final").exists()
    out, _ = run("run", schedule, twice, "--runs-dir", runs)
    assert "resuming from step_" in out
    assert_same_end(runs, undisturbed)
    kept, replayed, flops = totals(runs)["large"]
    expected_kept, none_replayed, expected_flops = totals(undisturbed[1])["large"]
    assert (kept, none_replayed) == (expected_kept, 0)
    assert replayed > 0
    assert flops == pytest.approx(expected_flops)
    assert totals(runs)["small"] == totals(undisturbed[1])["small"]

    path = runs / "tiny/ledger.db"
    score = Score(task="piqa", metric="acc", value=0.5)
    assert record(large / "final", [score], {}).why_not is None
    books, data = booked(path), path.read_bytes()
    path.write_bytes(data.replace(b"interruption", b"interruptiom"))
    for command in (["report", "tiny"], ["report"], ["report", "--json"]):
        _, err = run_here(*command, "--runs-dir", runs, expect=2)
        assert " is broken: row" in err
        assert "`growctl run` sets it aside and rebuilds it" in err
        assert len(err.splitlines()) == 1
    assert "`growctl run` sets it aside" in run_here("status", "--runs-dir", runs)[0]
    with (large / "metrics.jsonl").open("ab") as metrics:
        metrics.write(b"\x00\xff\n")
    out, _ = run("run", schedule, twice, "--runs-dir", runs)
    said = " ".join(out.split())
    assert "moved to broken-ledger.db, rebuilding it from metrics.jsonl" in said
    assert "1-large/metrics.jsonl: 1 line could not be read" in said
    assert (runs / "tiny/broken-ledger.db").read_bytes() != data
    assert booked(path) == books


def test_workers_whose_runner_is_killed_while_they_start_do_not_train_on(undisturbed, runs):
    schedule, _ = undisturbed
    process = growctl("run", schedule, "--runs-dir", runs)
    wait_until(lambda: bool(workers_of(runs)), process)
    stop(process, signal.SIGKILL)
    wait_for(lambda: not workers_of(runs))
    assert read_metrics(runs / "tiny/stages/0-small/metrics.jsonl") == []


def test_a_stage_whose_workers_are_killed_before_its_first_checkpoint_is_started_again(undisturbed, runs, tmp_path):
    schedule, _ = undisturbed
    process = growctl("run", schedule, "--runs-dir", runs, faults=paused_rank(tmp_path / ".marks", "0-small"))
    wait_until(reached(runs / "tiny/stages/0-small/metrics.jsonl", "train", 5), process)
    wait_until(lambda: is_paused(runs), process)
    kill_workers(runs)
    out, _ = finish(process)
    assert "stage small crashed: a worker was ended by signal 9" in out
    assert "restarting it (1 of 3)" in out
    assert_same_end(runs, undisturbed)


def test_a_run_that_is_told_to_stop_saves_first_and_ends_in_the_same_bits(undisturbed, runs, tmp_path):
    schedule, _ = undisturbed
    rarely = "checkpoint.every=1000"
    for stage, number, code in (("0-small", signal.SIGUSR1, 143), ("1-large", signal.SIGINT, 130)):
        faults = paused_rank(tmp_path / ".marks", stage)
        process = growctl("run", schedule, rarely, "--name", "told", "--runs-dir", runs, faults=faults)
        directory = runs / "told/stages" / stage
        wait_until(reached(directory / "metrics.jsonl", "train", 5), process)
        with held(workers_of(runs), directory):
            process.send_signal(number)
        out, err = process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == code
        assert "the workers save first" in out
        assert "run the same command again to resume" in err
        assert "Traceback" not in out + err
        assert workers_of(runs) == []
        assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []
        [saved] = [r for r in read_metrics(directory / "metrics.jsonl") if r["event"] == "saved"]
        assert read_manifest(directory / saved["path"]).step == saved["step"]
    out, _ = run("run", schedule, rarely, "--name", "told", "--runs-dir", runs)
    assert f"stage large: resuming from {saved['path']}" in out
    done = undisturbed[1] / "tiny"
    assert final_hashes(runs / "told") == final_hashes(done)
    assert losses(runs / "told") == losses(done)


def test_a_run_whose_terminal_or_pipe_closes_saves_first_and_ends_in_the_same_bits(undisturbed, runs, tmp_path):
    schedule, _ = undisturbed
    command = ("run", schedule, "checkpoint.every=1000", "--name", "tiny", "--runs-dir", runs)
    for stage, opened in (("0-small", pty.openpty), ("1-large", os.pipe)):
        ours, its = opened()
        process = growctl(*command, output=its, faults=paused_rank(tmp_path / ".marks", stage))
        os.close(its)
        directory = runs / "tiny/stages" / stage
        wait_until(reached(directory / "metrics.jsonl", "train", 5), process)
        with held(workers_of(runs), directory):
            os.close(ours)
            process.send_signal(signal.SIGHUP)  # by the kernel
            time.sleep(0.5)
            process.send_signal(signal.SIGHUP)  # by the shell
        assert process.wait(HANG_SECONDS) == 143
        [saved] = [r for r in read_metrics(directory / "metrics.jsonl") if r["event"] == "saved"]
    out, _ = run(*command)
    assert f"stage large: resuming from {saved['path']}" in out
    assert_same_end(runs, undisturbed)


def test_a_broken_checkpoint_is_set_aside_and_the_one_before_it_used(undisturbed, runs):
    schedule, done = undisturbed
    shutil.copytree(done / "tiny", runs / "tiny")
    (runs / "tiny/ledger.db").unlink()
    large = runs / "tiny/stages/1-large"
    shutil.rmtree(large / "final")
    victim = next((large / "step_00000050").rglob("*optim_states.pt"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    out, _ = run("run", schedule, "--runs-dir", runs)
    said = " ".join(out.split())
    assert "does not have the hash in the manifest" in said
    assert "moved to broken-step_00000050" in said
    assert "resuming from step_00000043" in said
    assert victim.name in {p.name for p in (large / "broken-step_00000050").rglob("*")}
    assert_same_end(runs, undisturbed)


def test_a_second_growctl_on_the_same_run_is_told_who_holds_it(undisturbed, runs):
    schedule, _ = undisturbed
    process = growctl("run", schedule, "--runs-dir", runs, fork=True)
    wait_until((runs / "tiny/ledger.db").exists, process)
    _, err = run_here("run", schedule, "--runs-dir", runs, expect=2)
    assert f"in use by another growctl (process {process.pid} on " in err
    stop(process, signal.SIGTERM)
    assert process.returncode == 143


def test_two_ranks_with_zero_3_in_bf16_resume_in_the_same_bits(undisturbed, runs, tmp_path):
    one_stage = "".join(line for line in SCHEDULE.splitlines(keepends=True) if "name: small" not in line)
    schedule = write_schedule(runs, one_stage)
    launch = ["launch.devices=2", "launch.zero_stage=3", "training.precision=bf16"]
    run("run", schedule, *launch, "--name", "whole", "--no-reuse", "--runs-dir", runs)
    faults = paused_rank(tmp_path / ".marks", "0-large", steps=26)
    process = growctl("run", schedule, *launch, "--no-reuse", "--runs-dir", runs, faults=faults)
    wait_until(reached(runs / "tiny/stages/0-large/metrics.jsonl", "train", 25), process)
    kill(process, runs)
    run("run", schedule, *launch, "--no-reuse", "--runs-dir", runs)
    assert final_hashes(runs / "tiny") == final_hashes(runs / "whole")
    assert losses(runs / "tiny") == losses(runs / "whole")


def test_a_ladder_may_change_ranks_and_zero_stage_between_stages(undisturbed, runs):
    schedule, done = undisturbed
    shutil.copytree(done / "tiny", runs / "tiny")
    (runs / "tiny/ledger.db").unlink()
    shutil.rmtree(runs / "tiny/stages/1-large")
    run("run", schedule, "launch.devices=2", "launch.zero_stage=2", "--runs-dir", runs)
    here, there = losses(runs / "tiny"), losses(done / "tiny")
    assert here["1-large", 0, "after_growth"] == pytest.approx(there["0-small", 30, "final"], abs=1e-5)
    assert here["1-large", 60, "final"] == pytest.approx(there["1-large", 60, "final"], abs=1e-3)
    devices = sqlite3.connect(runs / "tiny/ledger.db").execute("select distinct num_devices from work").fetchall()
    assert sorted(devices) == [(1,), (2,)]
