"""Reports of a runs directory while runs in it start and write, in real processes."""

import subprocess
import sys

import pytest

from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs.find import RunNotFoundError, find_runs
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, ladder
from tests.workers import REPOSITORY

WRITER = """
import sys
from pathlib import Path
from growctl.ledger.ledger import Ledger
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun
from tests.growctl.ledger.records import Metrics

run = FakeRun(Path(sys.argv[2]), sys.argv[1], [SMALL, LARGE])
with Ledger(run.path) as ledger:
    books = ledger.books(SMALL.name)
    metrics = Metrics().start(1)
    for _ in range(100):
        books.sync(metrics.train(10).checkpoint().records)
        metrics.records.clear()
    books.sync(metrics.evaluate("final").end().records)
"""


@pytest.mark.slow
def test_two_runs_that_write_and_a_report_that_reads_do_not_disturb_each_other(tmp_path):
    ladder(tmp_path, name="still")
    command = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen([*command, name, str(tmp_path)], cwd=REPOSITORY) for name in ("first", "second")]
    steps: dict[str, int] = {}
    is_over = False
    while not is_over:
        is_over = all(writer.poll() is not None for writer in writers)
        for run in find_runs(tmp_path):
            small = run.stages[0]
            assert small.num_steps >= steps.get(run.name, 0), "a reader never goes back"
            assert small.finished == (small.num_steps == SMALL.num_steps and bool(run.points)), "or sees half a booking"
            steps[run.name] = small.num_steps
    assert [writer.returncode for writer in writers] == [0, 0]
    assert steps == dict.fromkeys(("first", "second", "still"), SMALL.num_steps)
    for name in ("first", "second"):
        with Ledger(tmp_path / name / "ledger.db") as ledger:  # which checks every hash
            cost = ledger.stage_cost(SMALL.name)
            assert (cost.kept.steps, cost.replayed.steps) == (SMALL.num_steps, 0)


def test_a_reader_sees_a_ledger_as_it_was_when_it_was_opened_and_does_not_make_the_runner_wait(tmp_path):
    run = FakeRun(tmp_path, "quick", [SMALL, LARGE])
    with Ledger(run.path, read_only=True) as reader:
        run.train(0, 1.42)
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
