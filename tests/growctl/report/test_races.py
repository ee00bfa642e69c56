"""Runs and reports of one runs directory at the same time, in real processes."""

import csv
import gc
import json
import subprocess
import sys

import pytest

from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs.find import RunNotFoundError, find_runs
from growctl.runs_dir import RunPaths
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, ladder
from tests.workers import HANG_SECONDS, REPOSITORY

WRITER = """
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun
from tests.growctl.ledger.records import Metrics

run = FakeRun(runs, name, [SMALL, LARGE])
ready()
with Ledger(run.path) as ledger:
    books = ledger.books(SMALL.name)
    metrics = Metrics()
    metrics.start(1)
    for _ in range(100):
        metrics.train(10)
        metrics.checkpoint()
        books.sync(metrics.records)
        metrics.records.clear()
    metrics.evaluate("final")
    metrics.end()
    books.sync(metrics.records)
"""

REPORTER = """
from growctl.report.sections import report_sections
from growctl.report.documents import write_report

ready()
seen = []
for _ in range(3):
    found = find_runs(runs)
    seen += [(run.name, run.stages[0].num_steps, run.stages[0].finished, len(run.points)) for run in found]
    write_report(found, report_sections(found), RunPaths(runs / name).report)
print(json.dumps(seen))
"""

START = """
import json, sys
from pathlib import Path
from growctl.ledger.ledger import Ledger
from growctl.runs.find import find_runs
from growctl.runs_dir import RunPaths

name, runs = sys.argv[1], Path(sys.argv[2])

def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def start(code, *arguments):
    command = [sys.executable, "-c", START + code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, cwd=REPOSITORY, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.mark.slow
def test_two_runs_that_write_and_two_reports_that_read_do_not_disturb_each_other(tmp_path):
    ladder(tmp_path, name="still")
    processes = [start(WRITER, name, tmp_path) for name in ("first", "second")]
    processes += [start(REPORTER, "still", tmp_path) for _ in range(2)]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 4
        for process in processes:  # only now, so that all of them work at the same time
            process.stdin.write("\n")
            process.stdin.flush()
        ends = [process.communicate(timeout=HANG_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * 4, [err for _, err in ends]

    for name in ("first", "second"):
        with Ledger(tmp_path / name / "ledger.db") as ledger:  # which checks every hash
            cost = ledger.stage_cost(SMALL.name)
            assert (cost.kept.steps, cost.replayed.steps) == (SMALL.num_steps, 0)
    for out, _ in ends[2:]:
        steps = {"first": 0, "second": 0, "still": 0}
        for name, num_steps, finished, num_points in json.loads(out):
            assert num_steps >= steps[name], "a reader never goes back"
            whole = num_steps == SMALL.num_steps and num_points > 0
            assert finished == whole, "and never sees half of what is booked"
            steps[name] = num_steps
    report = RunPaths(tmp_path / "still").report
    assert {*report.directory.iterdir()} == {report.page, report.chart, report.table}, "no temporary file stays"
    assert report.page.read_text().rstrip().endswith("</html>")
    with report.table.open(newline="") as table:
        assert {row["run"] for row in csv.DictReader(table)} == {"first", "second", "still"}


def test_a_reader_sees_a_ledger_as_it_was_when_it_was_opened_and_does_not_make_the_runner_wait(tmp_path):
    run = FakeRun(tmp_path, "quick", [SMALL, LARGE])
    with Ledger(run.path, read_only=True) as reader:
        run.train(0, 1.42)
        reader.stages()
        assert not reader.finished(SMALL.name)
        assert reader.stage_cost(SMALL.name).spent.steps == 0
    assert find_runs(tmp_path)[0].stages[0].finished


def test_a_run_that_is_only_just_starting_does_not_stop_the_report_on_the_others(tmp_path):
    ladder(tmp_path, name="still")
    for name in ("created", "opened"):
        (tmp_path / name).mkdir()
    (tmp_path / "created/ledger.db").touch()
    Ledger(tmp_path / "opened/ledger.db").close()  # has its tables, but no run yet
    assert [run.name for run in find_runs(tmp_path)] == ["still"]
    for name in ("created", "opened"):
        with pytest.raises(LedgerError, match=f"{name}/ledger.db: no run is recorded here yet"):
            find_runs(tmp_path, [name])
    (tmp_path / "still/ledger.db").unlink()
    with pytest.raises(RunNotFoundError, match=r"there are no runs in .* yet"):
        find_runs(tmp_path)


@pytest.mark.parametrize("set_to", [gc.enable, gc.disable])
def test_reading_ledgers_leaves_the_garbage_collector_as_it_was(tmp_path, set_to):
    ladder(tmp_path)
    set_to()
    try:
        find_runs(tmp_path)
        assert gc.isenabled() == (set_to is gc.enable)
    finally:
        gc.enable()
