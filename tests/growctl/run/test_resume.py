"""Real runs that are killed, interrupted or damaged resume and end like an undisturbed run."""

import json
import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import time
from functools import partial

import pytest

from growctl.evaluate.record import record
from growctl.ledger.file import TABLES
from growctl.ledger.ledger import Ledger
from growctl.runs.lock import hold
from stages.checkpoint.manifest import read_manifest
from stages.evaluate.results import Score
from stages.metrics import read_metrics
from tests.growctl.runs import (
    as_killed_at,
    final_hashes,
    growctl,
    held,
    kill,
    losses,
    paused_rank,
    reached,
    run,
    run_here,
    stop,
    wait_for,
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


def assert_same_end(run, undisturbed):
    expected = undisturbed[1] / "tiny"
    assert final_hashes(run) == final_hashes(expected)
    assert len(final_hashes(run)) > 20
    assert losses(run) == losses(expected)


def totals(runs):
    """(tokens kept, FLOPs replayed, FLOPs kept) by stage, from the report."""
    report = json.loads(run_here("report", "tiny", "--runs-dir", runs, "--json")[0])["runs"][0]
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


def test_a_run_killed_mid_stage_ends_in_the_same_bits_and_its_broken_ledger_is_rebuilt(undisturbed, runs, tmp_path):
    command = ("run", undisturbed[0], "checkpoint.every=25", "--runs-dir", runs)
    faults = paused_rank(tmp_path / ".marks", "1-large", steps=31)  # so there is work to replay
    process = growctl(*command, faults=faults)
    large = runs / "tiny/stages/1-large"
    wait_for(reached(large / "metrics.jsonl", "train", 30), process)
    kill(process, runs)
    assert not (large / "final").exists()
    out, _ = run(*command)
    assert "resuming from step_" in out
    assert_same_end(runs / "tiny", undisturbed)
    (kept, replayed, flops), expected = totals(runs)["large"], totals(undisturbed[1])
    assert (kept, 0, pytest.approx(flops)) == expected["large"]
    assert replayed > 0
    assert totals(runs)["small"] == expected["small"]

    path = runs / "tiny/ledger.db"
    assert record(large / "final", [Score(task="piqa", metric="acc", value=0.5)], {}).why_not is None
    books, data = booked(path), path.read_bytes()
    path.write_bytes(data.replace(b"interruption", b"interruptiom"))
    for arguments in (["report", "tiny"], ["report"], ["report", "--json"]):
        _, err = run_here(*arguments, "--runs-dir", runs, expect=2)
        [line] = err.splitlines()
        assert " is broken: row" in line
        assert "`growctl run` sets it aside and rebuilds it" in line
    assert "`growctl run` sets it aside" in run_here("status", "--runs-dir", runs)[0]
    with (large / "metrics.jsonl").open("ab") as metrics:
        metrics.write(b"\x00\xff\n")
    said = " ".join(run(*command)[0].split())
    assert "moved to broken-ledger.db, rebuilding it from metrics.jsonl" in said
    assert "1-large/metrics.jsonl: 1 line could not be read" in said
    assert (runs / "tiny/broken-ledger.db").read_bytes() != data
    assert booked(path) == books


def test_workers_whose_runner_is_killed_while_they_start_do_not_train_on(undisturbed, runs):
    process = growctl("run", undisturbed[0], "--runs-dir", runs)
    wait_for(lambda: bool(workers_of(runs)), process)
    stop(process, signal.SIGKILL)
    wait_for(lambda: not workers_of(runs))
    assert read_metrics(runs / "tiny/stages/0-small/metrics.jsonl") == []


def test_a_run_whose_terminal_closes_or_that_is_stopped_ends_in_the_same_bits(undisturbed, runs, tmp_path, request):
    command = ("run", undisturbed[0], "checkpoint.every=1000", "--runs-dir", runs)
    request.addfinalizer(partial(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL)))  # nohup
    for stage in ("0-small", "1-large"):
        faults, directory = paused_rank(tmp_path / ".marks", stage), runs / "tiny/stages" / stage
        terminal, output = pty.openpty() if stage == "0-small" else (None, subprocess.PIPE)
        process = growctl(*command, output=output, faults=faults)
        if terminal:
            os.close(output)
        wait_for(reached(directory / "metrics.jsonl", "train", 5), process)
        with held(workers_of(runs), directory):
            if terminal:
                os.close(terminal)
                process.send_signal(signal.SIGHUP)  # by the kernel
                time.sleep(0.5)
            process.send_signal(signal.SIGHUP if terminal else signal.SIGINT)  # by the shell
        out, err = process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == (143 if terminal else 130)
        assert workers_of(runs) == []
        assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []
        [saved] = [r for r in read_metrics(directory / "metrics.jsonl") if r["event"] == "saved"]
        assert read_manifest(directory / saved["path"]).step == saved["step"]
    assert "the workers save first" in out
    assert "run the same command again to resume" in err
    assert "Traceback" not in out + err
    out, _ = run(*command)
    assert f"stage large: resuming from {saved['path']}" in out
    assert_same_end(runs / "tiny", undisturbed)


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
    said = " ".join(run("run", schedule, "--runs-dir", runs)[0].split())
    assert "does not have the hash in the manifest; moved to broken-step_00000050" in said
    assert "resuming from step_00000043" in said
    assert victim.name in {p.name for p in (large / "broken-step_00000050").rglob("*")}
    assert_same_end(runs / "tiny", undisturbed)


def test_a_second_growctl_on_the_same_run_is_told_who_holds_it(undisturbed):
    schedule, runs = undisturbed
    with hold(runs / "tiny"):
        _, err = run_here("run", schedule, "--runs-dir", runs, expect=2)
    assert f"in use by another growctl (process {os.getpid()} on " in err


def test_two_ranks_with_zero_3_in_bf16_resume_in_the_same_bits(undisturbed, runs):
    short = ("stages.0.train_steps=4", "stages.1.train_steps=8", "checkpoint.every=4", "evaluation.max_sequences=8")
    launch = ("launch.devices=2", "launch.zero_stage=3", "training.precision=bf16")
    command = ("run", undisturbed[0], *short, *launch, "--runs-dir")
    run(*command, runs)
    stage = as_killed_at(4, runs, runs / "killed")
    run(*command, runs / "killed")
    assert [r["step"] for r in read_metrics(stage / "metrics.jsonl") if r["event"] == "start"] == [0, 4]
    assert final_hashes(runs / "killed/tiny") == final_hashes(runs / "tiny")
    assert losses(runs / "killed/tiny") == losses(runs / "tiny")
