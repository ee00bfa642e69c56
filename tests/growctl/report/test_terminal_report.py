"""The report in the terminal: plain lines, sparklines, and the view that is drawn again while runs go on."""

import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from growctl.analysis.find import find_runs
from growctl.analysis.runs import RunReport
from growctl.cli.app import app
from growctl.cli.watch import watch_report
from growctl.content.chart import Chart
from growctl.content.plain import print_plain
from growctl.content.section import Section
from growctl.content.terminal import print_sections
from growctl.ledger.ledger import LedgerError
from growctl.measured import changed_runs
from growctl.measured.changed_runs import ChangedRuns
from growctl.report import sparklines
from growctl.report.brief import MOST_RUNS
from growctl.report.sections import report_sections
from growctl.run.signals import Stopped
from growctl.text.console import Terminal
from model.errors import UserError
from tests.growctl.invented_runs import FakeRun, control, ladder, stage_of
from tests.growctl.report.invented_reports import seed_runs


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A ladder with two controls."""
    ladder(tmp_path / "runs")
    control(tmp_path / "runs", 500, 1.40)
    control(tmp_path / "runs", 1400, 1.20)
    return tmp_path / "runs"


def sections(runs: Path) -> list[Section]:
    found = find_runs(runs)
    lines = sparklines.section(found)
    assert lines
    return [lines, *report_sections(found)]


@pytest.mark.parametrize(
    ("heights", "line"),
    [
        ([4, 3, 2, 1], "███▆▆▆▃▃▃▁▁▁"),
        ([100, 3, 2, 1], "███▆▆▆▃▃▃▁▁▁"),  # the start of training is cut off
        ([1, 2], "▁▁▁███"),
        ([9, 1, 1, 1], "███▁▁▁▁▁▁▁▁▁"),
        ([2, 2, 2], "▁▁▁▁▁▁▁▁▁"),
        ([math.nan, math.inf], ""),
        ([], ""),
    ],
)
def test_a_sparkline_follows_the_losses(heights: list[float], line: str) -> None:
    points = [(place + third / 3, height) for place, height in enumerate(heights) for third in range(3)]
    assert sparklines.sparkline(points, 3 * len(heights)) == line


def test_the_losses_of_finished_runs_are_not_called_losses_so_far(runs: Path) -> None:
    headings = [found.heading for found in sections(runs)[:1]]
    FakeRun(runs, "new", [stage_of("s", 500_000, 100)]).train(0, None)
    headings += [found.heading for found in sections(runs)[:1]]
    assert headings == ["Losses", "Losses so far"]


def test_a_sparkline_repeats_the_last_loss_where_nothing_was_measured() -> None:
    assert sparklines.sparkline([(0, 3), (9, 1), (10, 1)], 10) == "█████████▁"
    assert sparklines.sparkline([(5, 3)], 10) == "▁"


@given(
    st.lists(st.tuples(st.floats(0, 1e20), st.floats(-1e9, 1e9) | st.sampled_from((math.nan, math.inf))), max_size=9)
)
def test_any_points_make_a_sparkline_that_fits(points: list[tuple[float, float]]) -> None:
    line = sparklines.sparkline(points, 7)
    assert len(line) in (0, 1, 7)
    assert set(line) <= set(sparklines.LEVELS)


def test_the_terminal_shows_a_line_for_every_run_and_fits_80_columns(runs: Path) -> None:
    console = Terminal(file=io.StringIO(), width=80)
    print_sections(sections(runs), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    losses = text.split("What growing saved")[0]
    assert sum(any(level in line for level in sparklines.LEVELS) for line in losses.splitlines()) == 3
    for run in find_runs(runs):
        assert f"{run.points[-1].loss:.4f}" in losses


def test_plain_lines_have_no_colour_no_boxes_and_no_breaks(runs: Path) -> None:
    lines: list[str] = []
    print_plain(sections(runs)[1:], lines.append, details=True)
    text = "\n".join(lines)
    assert text.isascii()
    assert "\x1b" not in text
    assert any(
        line.startswith("1-2m: parameters 2.4M; tokens 600k; FLOPs 7.92e12; FLOPs so far 1.23e13;") for line in lines
    )
    assert any(line.startswith("tokenformer-scratch 2.4M needs ") and line.endswith(" nats.") for line in lines)
    assert not any(line != line.rstrip() for line in lines)


def test_the_option_plain_prints_those_lines_whatever_the_width_and_names_the_details(runs: Path) -> None:
    lines: list[str] = []
    print_plain(report_sections(find_runs(runs)), lines.append)
    result = CliRunner(env={"COLUMNS": "20"}).invoke(app, ["report", "--plain", "--runs-dir", str(runs)])
    shown = result.stdout.splitlines()
    assert set(lines) <= set(shown)
    assert not set(result.stdout) & set(sparklines.LEVELS)
    assert shown[-1] == "Every section and run, here: --details"


def test_details_are_every_section_with_text_and_the_rest_is_shown_without_them(runs: Path) -> None:
    found, brief = report_sections(find_runs(runs)), list[str]()
    print_plain(found, brief.append)
    details = CliRunner().invoke(app, ["report", "--plain", "--details", "--runs-dir", str(runs)]).stdout.splitlines()
    for section in found:
        has_text = not all(isinstance(part, Chart) for part in section.parts)
        assert (section.heading in details) == has_text
        assert (section.heading in brief) == section.in_terminal
    assert set(brief) < set(details)
    assert not any("--details" in line for line in details)


def test_a_caution_below_the_result_is_not_repeated_by_the_only_comparison(tmp_path: Path) -> None:
    ladder(tmp_path)
    control(tmp_path, 1400, 1.40)
    lines: list[str] = []
    print_plain(report_sections(find_runs(tmp_path)), lines.append)
    assert sum(line.startswith("Caution: only 1 control budget") for line in lines) == 1


def test_of_several_seeds_the_page_folds_the_verdict_of_each(tmp_path: Path) -> None:
    runs = [run for seed in (0, 1) for run in seed_runs(seed, 1.9, {1.0: 2.0, 2.0: 1.8})]
    found = {section.key: section for section in report_sections(runs)}
    assert "savings" not in found
    assert found["savings-by-seed"].is_detail
    assert not found["savings-by-seed"].in_terminal
    alone = {section.key for section in report_sections(runs[: len(runs) // 2])}
    assert "savings" in alone
    assert not {"savings-by-seed", "seeds"} & alone


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
    losses = sparklines.section(found)
    assert losses
    print_plain([losses, *report_sections(found)], lines.append)
    stages = lines[lines.index("Stages") :]
    assert not any("-control-" in line for line in stages)
    assert any(line.startswith("quick (ladder") for line in stages)
    details: list[str] = []
    print_plain(report_sections(found), details.append, details=True)
    assert sum("-control-" in line for line in details[details.index("Stages") :]) >= 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--watch"], "--watch: standard output is not a terminal"),
        (["--watch", "--json"], "--watch and --json: give one of them"),
        (["--watch", "--plain"], "--watch and --plain: give one of them"),
        (["--plain", "--json"], "--plain and --json: give one of them"),
    ],
)
def test_options_that_exclude_each_other_get_one_message(runs: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["report", "--runs-dir", str(runs), *options])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(message)
    assert not result.stdout


def watched(report: Callable[[], list[Section]], waits: list[Callable[[], None]], height: int = 60) -> str:
    """What `watch_report` writes if each of `waits` is called in place of a wait, and Ctrl-C comes after the last."""
    console = Terminal(file=io.StringIO(), force_terminal=True, width=80, height=height)
    steps = iter(waits)

    def wait(seconds: float) -> None:
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        step()

    watch_report(report, console, wait)
    return console.file.getvalue()  # type: ignore[attr-defined]


ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


def test_ctrl_c_leaves_the_other_screen_and_the_last_report_on_this_one(runs: Path) -> None:
    def finish() -> None:
        FakeRun(runs, "new", [stage_of("s", 500_000, 100)]).train(0, 1.2345)

    out = watched(lambda: sections(runs), [finish])
    before, after = out.split(LEAVE)
    assert before.startswith(ENTER)
    assert "Ctrl-C ends." in before
    assert "1.2345" in after
    assert "Stages" in after
    assert before.count("Losses") == 3  # the first frame twice: Live draws it at its start


def test_a_report_taller_than_the_screen_says_how_much_is_missing(runs: Path) -> None:
    before, after = watched(lambda: sections(runs), [], height=12).split(LEAVE)
    assert "lines more need a taller terminal." in before
    assert "Stages" not in before
    assert "Stages" in after


def test_a_ledger_that_cannot_be_read_for_a_moment_keeps_the_last_report(runs: Path) -> None:
    answers: Iterator[list[Section] | LedgerError] = iter(
        [sections(runs), LedgerError("the ledger is locked"), sections(runs)]
    )

    def report() -> list[Section]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    out = watched(report, [lambda: None, lambda: None])
    assert "Not read again: the ledger is locked" in out.split(LEAVE)[0]
    assert "Not read again" not in out.split(LEAVE)[1]


def test_being_terminated_is_not_the_end_of_a_watch(runs: Path) -> None:
    console = Terminal(file=io.StringIO(), force_terminal=True, width=80, height=20)

    def wait(seconds: float) -> None:
        raise Stopped(15)

    with pytest.raises(Stopped):
        watch_report(lambda: sections(runs), console, wait)


def test_only_runs_that_changed_are_read_again(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = changed_runs.read_run

    def counted_read(path: Path) -> RunReport:
        read.append(path.parent.name)
        return original(path)

    monkeypatch.setattr(changed_runs, "read_run", counted_read)
    reader = ChangedRuns()
    first = find_runs(runs, read=reader.read)
    assert len(read) == 3
    assert find_runs(runs, read=reader.read) == first
    assert len(read) == 3
    unfinished = FakeRun(runs, "late", [stage_of("s", 500_000, 100)])
    unfinished.train(0, None)
    assert [run.name for run in find_runs(runs, read=reader.read) if run.name == "late"] == ["late"]
    unfinished.train(0, 1.5)
    [late] = [run for run in find_runs(runs, read=reader.read) if run.name == "late"]
    assert late.points[-1].loss == 1.5
    assert read[3:] == ["late", "late"]
