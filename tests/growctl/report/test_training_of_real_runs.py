"""Training, recovery and time of a run that really trained."""

from pathlib import Path

import pytest

from growctl.report.sections import report_sections
from growctl.report.setup import growths
from growctl.report.training import logged
from growctl.runs.find import find_runs
from growctl.runs.runs import RunReport
from growctl.runs_dir import RunPaths
from stages.metrics import read_metrics

pytestmark = pytest.mark.trains


@pytest.fixture(scope="module")
def run(two_ranks: tuple[Path, Path]) -> RunReport:
    [found] = find_runs(two_ranks[1], ["tiny"])
    return found


def test_every_log_line_is_drawn_once(run: RunReport) -> None:
    for index, stage in enumerate(run.stages):
        records = read_metrics(RunPaths(run.directory).stage(index, stage.name).metrics)
        lines = [(r["step"], r["loss"]) for r in records if r["event"] == "train"]
        assert [(line.step, line.loss) for line in logged(run, stage)] == lines
    [growth] = growths(run)
    assert growth.outcome == "preserved", "the growth changed nothing"


def test_the_ledger_agrees_with_the_manifests(run: RunReport) -> None:
    assert all(part.cost_is_whole for part in run.parts)


def test_the_report_has_the_sections_after_the_stages(run: RunReport) -> None:
    keys = [section.key for section in report_sections([run])]
    assert keys.index("stages") < keys.index("training")
    assert keys[keys.index("training") + 1] == "growths"
