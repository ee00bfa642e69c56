"""Training, recovery and time of a run that really trained."""

from itertools import pairwise
from pathlib import Path

import pytest

from growctl.analysis.find import find_runs
from growctl.analysis.runs import RunReport
from growctl.report.recorded import recorded
from growctl.report.sections import report_sections
from growctl.report_training.document import stages_trained
from growctl.runs_dir import RunPaths
from stages.metrics import read_metrics

pytestmark = pytest.mark.trains


@pytest.fixture(scope="module")
def run(two_ranks: tuple[Path, Path]) -> RunReport:
    [found] = find_runs(two_ranks[1], ["tiny"])
    return found


def test_a_reader_can_tell_evaluating_from_loading_and_writing_weights(run: RunReport) -> None:
    for index, stage in enumerate(run.stages):
        records = read_metrics(RunPaths(run.directory).stage(index, stage.name).metrics)
        before = {record.get("point"): last["event"] for last, record in pairwise(records)}
        assert before["final"] == "usage"
        assert before.get("after_growth", "usage") == "usage"
        assert before["interval"] == "train"


def test_every_log_line_is_drawn_once_and_the_time_is_that_of_the_ledger(run: RunReport) -> None:
    for index, (stage, figures) in enumerate(zip(run.stages, stages_trained(run), strict=True)):
        records = read_metrics(RunPaths(run.directory).stage(index, stage.name).metrics)
        lines = [(r["step"], r["loss"]) for r in records if r["event"] == "train"]
        found = recorded(run, stage)
        assert list(zip(found.step, found.loss, strict=True)) == lines
        assert figures.training is not None
        assert figures.training.num_lines == len(lines)
        assert figures.time.device_seconds == pytest.approx(stage.device_seconds)
        parts = (figures.time.steps, figures.time.evaluation, figures.time.checkpoints, figures.time.start_up)
        assert min(parts) > 0
        assert figures.time.other < 0.2 * stage.device_seconds
    recovery = stages_trained(run)[1].recovery
    assert recovery is not None
    assert recovery.before == pytest.approx(recovery.after), "the growth changed nothing"


def test_the_report_has_the_sections_after_the_stages(run: RunReport) -> None:
    keys = [section.key for section in report_sections([run])]
    assert keys.index("stages") < keys.index("training")
    first = keys.index("training")
    assert keys[first : first + 3] == ["training", "recovery", "time"]
