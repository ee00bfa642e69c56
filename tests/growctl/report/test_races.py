"""Reports of a runs directory while runs in it start and write."""

import pytest

from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs.find import RunNotFoundError, find_runs
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, ladder


def test_a_reader_sees_a_ledger_as_it_was_when_it_was_opened_and_the_runner_writes_meanwhile(tmp_path):
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
