"""What the report reads from a stage's metrics.jsonl: kept steps only, and no failure over damaged or missing files."""

import math
from pathlib import Path

from growctl.report.training import Line, read_lines
from stages.stage_dir import StagePaths
from tests.growctl.report.metrics_files import trained, write_metrics


def start(attempt: int, resumed_from: int | None = None) -> dict[str, object]:
    step = resumed_from or 0
    return {"event": "start", "attempt": attempt, "step": step, "seconds": 9.0, "resumed_from": resumed_from}


def read(folder: Path, *records: dict[str, object]) -> list[Line]:
    write_metrics(StagePaths(folder), records)
    return read_lines(StagePaths(folder))


def test_replayed_steps_are_read_once_as_the_last_attempt_did_them(tmp_path: Path) -> None:
    first, second = trained(1, [10, 20, 30], [5.0, 4.0, 3.0]), trained(2, [30, 40], [2.5, 2.0])
    found = read(tmp_path, start(1), *first, start(2, resumed_from=20), *second)
    assert [line.step for line in found] == [10, 20, 30, 40]
    assert [line.loss for line in found] == [5.0, 4.0, 2.5, 2.0]


def test_an_attempt_that_starts_anew_replaces_all_lines_before_it_has_logged_any(tmp_path: Path) -> None:
    assert not read(tmp_path, start(1), *trained(1, [10, 20]), start(2))


def test_lines_of_an_earlier_attempt_do_not_count_even_if_the_start_of_the_later_one_is_lost(tmp_path: Path) -> None:
    found = read(tmp_path, start(1), *trained(1, [10, 20, 30]), *trained(2, [20], [1.0]))
    assert [(line.step, line.loss) for line in found] == [(10, 2.0), (20, 1.0)]


def test_a_loss_that_was_not_finite_leaves_a_gap(tmp_path: Path) -> None:
    found = read(tmp_path, start(1), *trained(1, [10, 20], [2.0, None]))
    assert [math.isnan(line.loss) for line in found] == [False, True]


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    path = write_metrics(StagePaths(tmp_path), [start(1), *trained(1, [10, 20, 30])])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((lines[0], lines[1], lines[2].replace(b"20", b"21"), b"\xff\n", lines[3], lines[2][:40])))
    found = read_lines(StagePaths(tmp_path))
    assert [line.step for line in found] == [10, 30]


def test_a_missing_file_is_no_failure(tmp_path: Path) -> None:
    assert not read_lines(StagePaths(tmp_path / "none"))


def test_steps_reused_from_another_run_are_read_there_as_long_as_it_exists(tmp_path: Path) -> None:
    theirs = StagePaths(tmp_path / "theirs")
    write_metrics(theirs, [start(1), *trained(1, [10, 20, 30], [5.0, 4.0, 3.0])])
    reused = {"event": "reused", "attempt": 1, "step": 20, "seconds": 0.0, "resumed_from": 0, "run": "other"}
    records = [reused | {"checkpoint": str(theirs.step(20))}, start(2, resumed_from=20), *trained(2, [30], [2.0])]
    found = read(tmp_path / "own", *records)
    assert [line.loss for line in found] == [5.0, 4.0, 2.0]
    records[0]["checkpoint"] = str(tmp_path / "gone/step_00000020")
    found = read(tmp_path / "later", *records)
    assert [line.loss for line in found] == [2.0]


def test_runs_that_claim_to_reuse_each_other_are_read_without_end_to_neither(tmp_path: Path) -> None:
    for own, other in (("a", "b"), ("b", "a")):
        reused = {"event": "reused", "attempt": 1, "step": 20, "seconds": 0.0, "resumed_from": 0, "run": other}
        write_metrics(StagePaths(tmp_path / own), [reused | {"checkpoint": str(tmp_path / other / "final")}])
    assert not read_lines(StagePaths(tmp_path / "a"))
