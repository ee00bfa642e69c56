"""Where the time went: the parts add up to the device time of the ledger, whatever happened to the run."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.analysis.read import read_run
from growctl.analysis.runs import RunReport
from growctl.ledger.ledger import Ledger
from growctl.report_training.time_spent import TimeSpent, section, time_spent
from growctl.runs_dir import RunPaths
from growctl.text.section import Table
from tests.growctl.ledger.records import RUN, Metrics
from tests.growctl.ledger.test_sums import STAGE, Done, killed_runs
from tests.growctl.report.metrics_files import write_metrics


def run_with(directory: Path, records: list[dict[str, Any]], *, files: bool = True) -> RunReport:
    paths = RunPaths(directory)
    if files:
        write_metrics(paths.stage(0, STAGE.name), records)
    with Ledger.open(paths.ledger) as ledger:
        ledger.record_run(RUN, [STAGE])
        ledger.books(STAGE.name).sync(records, attempt_over=True)
    return read_run(paths.ledger)


def spent(run: RunReport) -> TimeSpent:
    return time_spent(run, run.stages[0])


def undisturbed() -> list[dict[str, Any]]:
    """12 steps of a second on 2 devices, with a start-up of 10, 2 evaluations, a checkpoint and an end of 1 each."""
    metrics = Metrics()
    metrics.start(1)
    metrics.usage()
    metrics.train(6)
    metrics.evaluate()
    metrics.checkpoint()
    metrics.train(6)
    metrics.evaluate("final")
    metrics.end()
    return metrics.records


@settings(max_examples=15)
@given(killed=killed_runs(), data=st.data())
def test_the_parts_add_up_to_the_ledgers_device_time_however_often_a_run_is_killed_and_its_file_damaged(
    killed: tuple[list[dict[str, Any]], list[Done]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    records, done = killed
    run = run_with(tmp_path_factory.mktemp("time"), records)
    metrics = RunPaths(run.directory).stage(0, STAGE.name).metrics
    if lost := data.draw(st.sets(st.integers(0, len(records) - 1), max_size=4)):
        lines = metrics.read_bytes().splitlines(keepends=True)
        metrics.write_bytes(b"".join(line for place, line in enumerate(lines) if place not in lost))
    found, stage = spent(run), run.stages[0]
    assert found.device_seconds == pytest.approx(stage.device_seconds)
    assert found.device_seconds == pytest.approx(sum(one.seconds * one.num_devices for one in done))
    assert found.replayed == pytest.approx(stage.replayed_device_seconds)
    parts = (found.steps, found.data, found.evaluation, found.checkpoints, found.start_up, found.replayed, found.other)
    assert min(parts) > -1e-9


def test_each_part_has_its_known_seconds(tmp_path: Path) -> None:
    found = spent(run_with(tmp_path, undisturbed()))
    assert (found.steps, found.evaluation, found.checkpoints, found.start_up) == (24.0, 4.0, 4.0, 20.0)
    assert (found.replayed, found.other, found.recorded) == (0.0, 0.0, True)


def test_waiting_for_data_is_a_part_of_its_own_that_the_steps_lose(tmp_path: Path) -> None:
    records = undisturbed()
    for record in records:
        if record["event"] == "train":
            record["data_wait_seconds"] = 2.0
    found = spent(run := run_with(tmp_path, records))
    assert (found.steps, found.data, found.evaluation, found.start_up) == (16.0, 8.0, 4.0, 20.0)
    shown = section([run])
    assert shown
    assert "15.4% into waiting for data" in str(shown.parts[0])


def test_a_run_whose_files_are_elsewhere_says_what_is_not_known(tmp_path: Path) -> None:
    run = run_with(tmp_path, undisturbed(), files=False)
    found = spent(run)
    assert found == TimeSpent(steps=24.0, other=28.0, recorded=False)
    shown = section([run])
    assert shown
    table = shown.parts[1]
    assert isinstance(table, Table)
    cells = {column.heading: cell for column, cell in zip(table.columns, table.groups[0].rows[0], strict=True)}
    assert (cells["steps"].text, cells["other"].text, cells["evaluation"].text) == ("24s", "28s", "-")
    assert "part of other" in cells["evaluation"].why


def test_a_run_that_spent_nothing_has_no_section(tmp_path: Path) -> None:
    assert section([run_with(tmp_path, [])]) is None
