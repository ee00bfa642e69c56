"""The charts of compute and of training: what each run cost when it was measured, and kept steps only."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from growctl.report.chart import Series
from growctl.report.compute import compute_chart
from growctl.report.sections import report_sections
from growctl.report.setup import growths
from growctl.report.training import logged, read_lines
from growctl.runs.find import find_runs
from growctl.runs_dir import RunPaths, RunsPaths
from stages.metrics import MetricsWriter, read_metrics
from stages.stage_dir import StagePaths
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, ladder
from tests.stages.test_metrics import EVENTS

SMALL_STEP, LARGE_STEP = (stage.step_flops.total for stage in (SMALL, LARGE))


def drawn(runs: Path) -> tuple[Series, ...]:
    return compute_chart(find_runs(runs)).series


def test_marks_are_at_the_flops_of_the_work_that_was_kept_without_the_start_of_training(tmp_path):
    ladder(tmp_path, killed_at=200)
    [quick] = drawn(tmp_path)
    base = 1000 * SMALL_STEP
    steps = [mark.x for mark in quick.marks if mark.x > base]
    assert steps == pytest.approx([base + step * LARGE_STEP for step in (*range(60, 601, 60), 600)])
    assert [round(math.log(mark.y), 9) for mark in quick.marks if mark.is_end] == [1.42, 1.28]
    [run], top = find_runs(tmp_path), 1.8 * math.exp(1.42)
    assert [mark.y for mark in quick.marks] == [point.perplexity for point in run.points if point.perplexity <= top]
    assert max(point.perplexity for point in run.points) > top


def test_a_release_branches_from_the_end_of_its_stage_to_its_own_cost(tmp_path):
    release = replace(SMALL, name="0-800k/release", num_steps=100, branch_of=SMALL.name, decayed=True)
    run = FakeRun(tmp_path, "quick", [SMALL, release, LARGE]).train(0, 1.42).train(1, 1.36, start=1.42)
    run.train(2, 1.28, start=1.42)
    [branch] = [each for each in drawn(tmp_path) if each.name == "0-800k/release of quick"]
    assert [mark.x for mark in branch.marks] == pytest.approx([1000 * SMALL_STEP, 1100 * SMALL_STEP])
    assert [mark.y for mark in branch.marks] == pytest.approx([math.exp(1.42), math.exp(1.36)])
    assert (branch.role, branch.group, branch.label) == ("release", "quick", "quick, releases")


def write(folder, *records):
    """Writes the metrics.jsonl of a stage: attempt, event, step, and what is unlike EVENTS."""
    folder.mkdir(parents=True)
    for attempt, event, step, values in records:
        writer = MetricsWriter(folder / "metrics.jsonl", attempt)
        writer.write(event, step, 1.0, **EVENTS[event] | values)
        writer.close()
    return StagePaths(folder)


def start(attempt, resumed_from=None):
    return attempt, "start", resumed_from or 0, {"resumed_from": resumed_from}


def trained(attempt, losses):
    return [(attempt, "train", step, {"loss": loss}) for step, loss in losses.items()]


def steps_and_losses(stage):
    return {line.step: line.loss for line in read_lines(stage)}


FIRST = {10: 5.0, 20: 4.0, 30: 3.0}


@pytest.mark.parametrize(
    ("second", "kept"),
    [
        ([start(2, 20), *trained(2, {30: 2.5, 40: 2.0})], {10: 5.0, 20: 4.0, 30: 2.5, 40: 2.0}),
        ([start(2)], {}),
        (trained(2, {20: 1.0}), {10: 5.0, 20: 1.0}),
    ],
    ids=["resumed", "from the start, before its first line", "its start is lost"],
)
def test_replayed_steps_are_read_once_as_the_last_attempt_did_them(tmp_path, second, kept):
    assert steps_and_losses(write(tmp_path / "a", start(1), *trained(1, FIRST), *second)) == kept


def test_damaged_lines_and_missing_files_leave_gaps(tmp_path):
    stage = write(tmp_path / "a", start(1), *trained(1, {10: 5.0, 20: None, 30: 3.0, 40: 2.0}))
    assert [math.isnan(line.loss) for line in read_lines(stage)] == [False, True, False, False]
    head, first, second, third, last = stage.metrics.read_bytes().splitlines(keepends=True)
    damaged = (head, first, second.replace(b"20", b"21"), b"\xff\n", third, last[:40])
    stage.metrics.write_bytes(b"".join(damaged))
    assert steps_and_losses(stage) == {10: 5.0, 30: 3.0}
    assert not read_lines(StagePaths(tmp_path / "none"))


def test_steps_reused_from_another_run_are_read_there_as_long_as_it_exists(tmp_path):
    theirs = write(tmp_path / "theirs", start(1), *trained(1, FIRST))
    later = [start(2, 20), *trained(2, {30: 2.0})]
    reused = (1, "reused", 20, {"checkpoint": str(theirs.step(20))})
    assert steps_and_losses(write(tmp_path / "own", reused, *later)) == {10: 5.0, 20: 4.0, 30: 2.0}
    theirs.metrics.unlink()
    assert steps_and_losses(StagePaths(tmp_path / "own")) == {30: 2.0}


def test_runs_that_claim_to_reuse_each_other_are_read_without_end_to_neither(tmp_path):
    for own, other in (("a", "b"), ("b", "a")):
        write(tmp_path / own, (1, "reused", 20, {"checkpoint": str(tmp_path / other / "final")}))
    assert not read_lines(StagePaths(tmp_path / "a"))


@pytest.mark.trains
def test_every_log_line_of_a_real_run_is_drawn_once_and_its_ledger_agrees_with_the_manifests(two_ranks):
    [run] = find_runs(two_ranks[1], ["tiny"])
    for index, stage in enumerate(run.stages):
        records = read_metrics(RunPaths(run.directory).stage(index, stage.name).metrics)
        lines = [(record["step"], record["loss"]) for record in records if record["event"] == "train"]
        assert [(line.step, line.loss) for line in logged(run, stage)] == lines
    assert [growth.outcome for growth in growths(run)] == ["preserved"]
    assert all(part.cost_is_whole for part in run.parts)
    keys = [section.key for section in report_sections([run])]
    assert keys.index("stages") < keys.index("training") == keys.index("growths") - 1


@pytest.mark.trains
def test_workers_say_what_they_use_before_each_line_that_the_ledger_books_and_invent_no_figures(two_ranks):
    for _, _, stage in RunsPaths(two_ranks[1]).run("tiny").stages_found():
        records = read_metrics(stage.metrics)
        before = {record["event"]: earlier["event"] for earlier, record in pairwise(records)}
        assert [before[event] for event in ("train", "checkpoint", "end")] == ["usage"] * 3
        usage = [record for record in records if record["event"] == "usage"]
        assert usage[0] == records[1]
        assert {(record["gpu_joules"], record["peak_gpu_bytes"]) for record in usage} == {(None, None)}
        peaks = [record["peak_resident_bytes"] for record in usage]
        assert peaks == sorted(peaks)
        assert peaks[0] > 10**7
    for part in find_runs(two_ranks[1], ["tiny"])[0].parts:
        assert 0 < (part.spent.step_seconds or 0.0) < part.spent.wall_seconds
        assert (part.mfu, part.spent.gpu_joules, part.spent.money) == (None,) * 3
