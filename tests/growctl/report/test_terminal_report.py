"""The report in the terminal: columns and plain lines."""

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from growctl.cli.app import app
from growctl.report.chart import Chart
from growctl.report.sections import MOST_RUNS, report_sections
from growctl.runs.find import find_runs
from growctl.text.console import Terminal
from growctl.text.section import Section
from growctl.text.terminal import plain_lines, print_sections
from model.errors import UserError
from tests.growctl.invented_runs import FakeRun, control, ladder, stage_of


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A ladder with two controls."""
    ladder(tmp_path / "runs")
    control(tmp_path / "runs", 500, 1.40)
    control(tmp_path / "runs", 1400, 1.20)
    return tmp_path / "runs"


def sections(runs: Path) -> list[Section]:
    return report_sections(find_runs(runs))


def test_the_terminal_fits_80_columns(runs: Path) -> None:
    console = Terminal(file=io.StringIO(), width=80)
    print_sections(sections(runs), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80


def test_plain_lines_have_no_colour_no_boxes_and_no_breaks(runs: Path) -> None:
    lines: list[str] = []
    lines += plain_lines(sections(runs)[1:], details=True)
    text = "\n".join(lines)
    assert text.isascii()
    assert "\x1b" not in text
    assert any(
        line.startswith("1-2m: parameters 2.4M; tokens 600k; FLOPs 7.92e12; FLOPs so far 1.23e13;") for line in lines
    )
    assert not any(line != line.rstrip() for line in lines)


def test_the_option_plain_prints_those_lines_whatever_the_width_and_names_the_details(runs: Path) -> None:
    lines: list[str] = []
    lines += plain_lines(report_sections(find_runs(runs)))
    result = CliRunner(env={"COLUMNS": "20"}).invoke(app, ["report", "--plain", "--runs-dir", str(runs)])
    shown = result.stdout.splitlines()
    assert set(lines) <= set(shown)
    assert shown[-1] == "Every section and run, here: --details"


def test_details_are_every_section_with_text_and_the_rest_is_shown_without_them(runs: Path) -> None:
    found, brief = report_sections(find_runs(runs)), list[str]()
    brief += plain_lines(found)
    details = CliRunner().invoke(app, ["report", "--plain", "--details", "--runs-dir", str(runs)]).stdout.splitlines()
    for section in found:
        has_text = not all(isinstance(part, Chart) for part in section.parts)
        assert (section.heading in details) == has_text
        assert (section.heading in brief) == section.in_terminal
    assert set(brief) < set(details)
    assert not any("--details" in line for line in details)


def test_of_many_runs_the_terminal_shows_the_ladders_and_those_still_training(tmp_path: Path) -> None:
    ladder(tmp_path)
    for steps in range(500, 1100, 100):
        control(tmp_path, steps, 1.40)
    late = FakeRun(tmp_path, "late", [stage_of("s", 500_000, 100)])
    late.train(0, None)
    late.train(0, 1.5)
    found = find_runs(tmp_path)
    assert len(found) > MOST_RUNS
    lines: list[str] = []
    lines += plain_lines(report_sections(found))
    stages = lines[lines.index("Stages") :]
    assert not any("-control-" in line for line in stages)
    assert any(line.startswith("quick (ladder") for line in stages)
    details: list[str] = []
    details += plain_lines(report_sections(found), details=True)
    assert sum("-control-" in line for line in details[details.index("Stages") :]) >= 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plain", "--json"], "--plain and --json: give one of them"),
    ],
)
def test_options_that_exclude_each_other_get_one_message(runs: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["report", "--runs-dir", str(runs), *options])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(message)
    assert not result.stdout
