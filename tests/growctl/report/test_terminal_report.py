"""The report in the terminal: columns, and what only --details shows."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from growctl.cli.app import app
from growctl.report.chart import Chart
from growctl.report.sections import MOST_RUNS, newest_sections, report_sections
from growctl.runs.find import find_runs
from tests.growctl.analysis.ladders import LADDERS
from tests.growctl.invented_runs import FakeRun, control, ladder, stage_of
from tests.growctl.report.rendered import lines_of


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A ladder with two controls."""
    ladder(tmp_path / "runs")
    control(tmp_path / "runs", 500, 1.40)
    control(tmp_path / "runs", 1400, 1.20)
    return tmp_path / "runs"


def test_a_missing_strongest_opponent_comes_first_with_the_command_that_trains_it(runs: Path) -> None:
    lines = lines_of(report_sections(find_runs(runs)), width=80)
    assert lines[:3] == ["Result", "The strongest opponent is missing: the best size from scratch.", "to train it:"]
    asked = "'controls=[{kind: best-scratch, budgets: [0.5, 1, 2]}]' --controls"
    assert lines[3] == f"growctl run {runs / 'quick/schedule.yaml'} {asked} --runs-dir {runs}"


def test_a_report_on_all_runs_shows_the_newest_result_and_a_line_for_each_other_ladder(tmp_path: Path) -> None:
    LADDERS["never_decays"](tmp_path)
    newest, others = newest_sections(find_runs(tmp_path))[:2]
    assert newest.heading == "Newest result: trunk"
    assert lines_of([others], width=80)[-2].split() == ["quick", "tokenformer-scratch", "unknown", "-"]


def test_details_are_every_section_with_text_and_the_rest_is_shown_without_them(runs: Path) -> None:
    found = report_sections(find_runs(runs))
    brief, details = lines_of(found), lines_of(found, details=True)
    for section in found:
        has_text = not all(isinstance(part, Chart) for part in section.parts)
        assert (section.heading in details) == has_text
        assert (section.heading in brief) == section.in_terminal


def test_the_command_says_that_there_are_details(runs: Path) -> None:
    command = ["report", "--runs-dir", str(runs)]
    hint = "Every section and run, here: --details"
    assert CliRunner().invoke(app, command).stdout.splitlines()[-1] == hint
    assert hint not in CliRunner().invoke(app, [*command, "--details"]).stdout


def test_of_many_runs_the_terminal_shows_the_ladders_and_those_still_training(tmp_path: Path) -> None:
    ladder(tmp_path)
    for steps in range(500, 1100, 100):
        control(tmp_path, steps, 1.40)
    late = FakeRun(tmp_path, "late", [stage_of("s", 500_000, 100)])
    late.train(0, None)
    late.train(0, 1.5)
    found = find_runs(tmp_path)
    assert len(found) > MOST_RUNS
    lines = lines_of(report_sections(found))
    stages = lines[lines.index("Stages") :]
    assert not any("-control-" in line for line in stages)
    assert any(line.startswith("quick") for line in stages)
    details = lines_of(report_sections(found), details=True)
    assert sum("-control-" in line for line in details[details.index("Stages") :]) >= 6
