"""Reports of a runs directory while runs in it start and write."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs.find import RunNotFoundError, find_runs
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, ladder
from tests.growctl.ledger.records import Metrics


def write(runs: Path, name: str) -> None:
    """Books the first stage of a run bit by bit."""
    with Ledger(FakeRun(runs, name, [SMALL, LARGE]).path) as ledger:
        books, metrics = ledger.books(SMALL.name), Metrics().start(1)
        for _ in range(100):
            books.sync(metrics.train(10).checkpoint().records)
            metrics.records.clear()
        books.sync(metrics.evaluate("final").end().records)


@pytest.mark.slow
def test_two_runs_that_write_and_a_report_that_reads_do_not_disturb_each_other(tmp_path):
    ladder(tmp_path, name="still")
    steps: dict[str, int] = {}
    with ThreadPoolExecutor() as pool:
        writers = [pool.submit(write, tmp_path, name) for name in ("first", "second")]
        is_over = False
        while not is_over:
            is_over = all(writer.done() for writer in writers)
            for run in find_runs(tmp_path):
                small = run.stages[0]
                assert small.num_steps >= steps.get(run.name, 0), "a reader never goes back"
                whole = small.num_steps == SMALL.num_steps and bool(run.points)
                assert small.finished == whole, "and never sees half of what is booked"
                steps[run.name] = small.num_steps
    assert [writer.result() for writer in writers] == [None, None]
    assert steps == dict.fromkeys(("first", "second", "still"), SMALL.num_steps)


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
