"""Recovery after growth, held against curves whose answer is known."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.analysis.find import find_runs
from growctl.analysis.runs import EvaluationPoint, RunReport
from growctl.report.chart import Chart
from growctl.report.smoothing import LEAST, MOST, mean_of_last, smoothed, window_of
from growctl.report_training.recovery import Recovery, Regained, first_regained, recoveries, regain, section
from growctl.runs_dir import RunPaths
from growctl.text.section import Paragraph, Table
from tests.growctl.invented_runs import LARGE, ladder
from tests.growctl.report.metrics_files import trained, write_metrics

AT_ONCE, NOT_YET = Regained("at once", 0, 0.0), Regained("not yet", None, None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """A ladder that grows at a loss of 1.42, a tenth of each stage's steps apart from one evaluation to the next."""
    runs = tmp_path_factory.mktemp("recovery")
    ladder(runs)
    return find_runs(runs)[0]


def after(step: int) -> Regained:
    return Regained("regained", step * LARGE.tokens_per_step, step * LARGE.step_flops.total)


def with_evaluations(run: RunReport, *losses: tuple[int, float]) -> RunReport:
    """That run with these evaluations after the growth."""
    (_, first), *later = losses
    points = (EvaluationPoint("1-2m", "interval", 0.0, loss, math.exp(loss), step=step) for step, loss in later)
    base, grown = run.stages
    return replace(run, stages=(base, replace(grown, loss_after_growth=first)), points=tuple(points))


def only(run: RunReport) -> Recovery:
    [found] = recoveries(run)
    return found


@pytest.mark.parametrize(
    ("losses", "highest", "regained"),
    [
        ([(0, 1.42), (60, 1.30)], 1.42, AT_ONCE),
        ([(0, 1.42), (60, 1.42), (120, 1.42)], 1.42, AT_ONCE),
        ([(0, 1.4205), (60, 1.4209)], 1.4209, AT_ONCE),
        ([(0, 1.42)], 1.42, AT_ONCE),
        ([(0, 1.30)], 1.30, AT_ONCE),
        ([(0, 1.42), (60, 1.60), (120, 1.42)], 1.60, after(120)),
        ([(0, 2.0), (60, 1.9), (120, 1.5), (180, 1.4), (240, 1.7)], 2.0, after(180)),
        ([(0, 1.9), (60, 2.4), (120, 1.3), (180, 2.9)], 2.4, after(120)),
        ([(0, 1.3), (60, 1.5), (120, 1.41)], 1.5, after(120)),
        ([(0, 2.0), (60, 1.9), (120, 1.5)], 2.0, NOT_YET),
        ([(0, 2.0)], 2.0, NOT_YET),
    ],
)
def test_the_old_loss_is_reached_again_at_the_first_evaluation_that_is_as_low(
    run: RunReport, losses: list[tuple[int, float]], highest: float, regained: Regained
) -> None:
    found = only(with_evaluations(run, *losses))
    assert (found.before, found.after) == (1.42, losses[0][1])
    assert (found.highest, found.regained) == (highest, regained)
    assert found.training_regained is None, "it has no log lines"


@given(rise=st.floats(0.01, 5), fall=st.integers(1, 400), count=st.integers(1, 60))
def test_a_loss_that_rises_and_falls_in_a_line_is_regained_where_the_line_crosses(
    run: RunReport, rise: float, fall: int, count: int
) -> None:
    stage = replace(run.stages[1], tokens_per_step=10, step_flops=3.0)
    curve = [(10 * n, 2.0 + rise * (1 - n / fall)) for n in range(count)]
    highest, found = regain(2.0, curve, stage)
    assert highest == 2.0 + rise
    crossing = next((step for step, loss in curve if loss <= 2.001), None)
    if crossing is None:
        assert found == NOT_YET
    else:
        assert found == Regained("regained", 10 * crossing, 3 * crossing)
        assert first_regained(2.0, curve, stage) == found


@pytest.mark.parametrize(("before", "after_growth"), [(None, 1.4), (1.4, None), (math.nan, 1.4), (1.4, math.inf)])
def test_a_growth_without_a_known_loss_before_or_after_is_left_out(
    run: RunReport, before: float | None, after_growth: float | None
) -> None:
    base, grown = run.stages
    unknown = replace(grown, loss_before_growth=before, loss_after_growth=after_growth)
    assert recoveries(replace(run, stages=(base, unknown))) == []
    assert section([replace(run, stages=(base, unknown))]) is None


def logged(run: RunReport, folder: Path, base: Sequence[float | None], grown: Sequence[float | None]) -> RunReport:
    """That run in `folder`, with a log line of these training losses every 10 steps of both stages."""
    for index, losses in enumerate((base, grown)):
        steps = range(10, 10 * len(losses) + 1, 10)
        write_metrics(RunPaths(folder).stage(index, run.stages[index].name), trained(1, steps, losses))
    return replace(run, directory=folder)


def test_the_training_loss_shows_recovery_between_evaluations(run: RunReport, tmp_path: Path) -> None:
    # Means of 5 lines: 2.0 before; after the growth 2.8, 2.6, 2.4, 2.2, 2.0.
    found = only(logged(run, tmp_path, [9.0] * 5 + [2.0] * 5, [3.0] * 4 + [2.0] * 6))
    assert found.training_before == 2.0
    assert found.training_regained == after(90)
    assert found.window_tokens == 50 * LARGE.tokens_per_step


def test_a_training_loss_as_low_in_its_first_mean_was_regained_within_it(run: RunReport, tmp_path: Path) -> None:
    here = logged(run, tmp_path, [2.0] * 8, [3.0, 1.0, 1.0, None, 1.0, 1.0])
    assert only(here).training_regained == after(50)
    shown = section([here])
    assert shown
    assert isinstance(shown.parts[1], Table)
    assert shown.parts[1].groups[0].rows[0][-1].text == "within 50k"


def test_a_training_loss_that_stays_above_is_not_yet_regained(run: RunReport, tmp_path: Path) -> None:
    assert only(logged(run, tmp_path, [2.0] * 8, [3.0] * 8)).training_regained == NOT_YET


@pytest.mark.parametrize(("base", "grown"), [([], [2.0] * 9), ([2.0] * 9, []), ([2.0] * 9, [2.0] * 3), ([None], [2.0])])
def test_too_few_log_lines_leave_the_training_loss_unknown(
    run: RunReport, tmp_path: Path, base: list[float | None], grown: list[float | None]
) -> None:
    assert only(logged(run, tmp_path, base, grown)).training_regained is None


def test_training_losses_are_compared_across_batches_but_not_across_contexts(run: RunReport, tmp_path: Path) -> None:
    here = logged(run, tmp_path, [2.0] * 8, [3.0] * 4 + [1.0] * 6)
    base, grown = here.stages
    grown = replace(grown, tokens_per_step=2 * grown.tokens_per_step)
    of_contexts = [
        only(replace(here, stages=(replace(base, sequence_length=before), replace(grown, sequence_length=64))))
        for before in (32, 64)
    ]
    assert [found.training_regained is None for found in of_contexts] == [True, False]
    assert of_contexts[0].training_before is None


def test_the_section_says_how_many_growths_raised_the_loss_and_draws_each(run: RunReport) -> None:
    fell, rose = with_evaluations(run, (0, 1.42), (60, 1.3)), with_evaluations(run, (0, 2.0), (60, 1.9))
    shown = section([fell, rose])
    assert shown
    said, table, chart = shown.parts
    assert said == Paragraph(
        "After 1 of 2 growths, an evaluation was above the loss before the growth. So far, 1 of them did not reach the "
        "old loss again."
    )
    assert isinstance(table, Table)
    assert [rows.rows[0][4].text for rows in table.groups] == ["at once", "not yet"]
    assert isinstance(chart, Chart)
    assert [mark.y for mark in chart.series[1].marks] == [pytest.approx(0.58), pytest.approx(0.48)]


@given(losses=st.lists(st.floats(0, 20) | st.just(math.nan), max_size=40), window=st.integers(1, 12))
def test_a_smoothed_loss_is_the_mean_of_the_last_lines(losses: list[float], window: int) -> None:
    means = smoothed(losses, window)
    assert len(means) == len(losses)
    for place, mean in enumerate(means):
        expected = mean_of_last(losses[: place + 1], window)
        assert math.isnan(mean) if expected is None else mean == pytest.approx(expected, abs=1e-9)


def test_the_window_grows_with_the_stage_within_limits() -> None:
    assert [window_of(lines) for lines in (0, 249, 1000, 10**6)] == [LEAST, LEAST, 20, MOST]
