"""The section on training: its charts and figures, of invented files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.analysis.find import find_runs
from growctl.analysis.runs import RunReport
from growctl.content.palette import looks
from growctl.report.chart import Chart
from growctl.report_training.curves import MOST_MARKS, MOST_PER_SERIES
from growctl.report_training.training import sections, training_figures
from growctl.runs_dir import RunPaths
from growctl.text.section import Paragraph, Section
from tests.growctl.invented_runs import SMALL, control, ladder
from tests.growctl.report.metrics_files import trained, write_metrics

TOKENS = SMALL.tokens_per_step * SMALL.num_steps
"""Data tokens before the growth."""


@pytest.fixture
def runs(tmp_path: Path) -> list[RunReport]:
    """A ladder with log lines and a growth ramp, and a control of it without files."""
    ladder(tmp_path)
    control(tmp_path, 500, 1.4)
    found = find_runs(tmp_path)
    for index, stage in enumerate(found[0].stages):
        paths = RunPaths(found[0].directory).stage(index, stage.name)
        start = {"event": "start", "attempt": 1, "step": 0, "seconds": 9.0, "peak_flops": 1e12}
        write_metrics(paths, [start, *trained(1, range(10, stage.num_steps + 1, 10))])
        generations = [{"key_ramp": 1.0}, {"key_ramp": 0.0}] if index else [{"key_ramp": 1.0}]
        paths.spec.write_text(json.dumps({"ramp_steps": 120, "anneal_steps": None, "model": generations}))
    return found


def training(runs: list[RunReport]) -> Section:
    return next(found for found in sections(runs) if found.key == "training")


def charts(runs: list[RunReport]) -> dict[str, Chart]:
    return {part.key: part for part in training(runs).parts if isinstance(part, Chart)}


def notes(runs: list[RunReport]) -> str:
    return " ".join(part.text for part in training(runs).parts if isinstance(part, Paragraph))


def test_there_is_one_chart_for_each_question_that_the_files_answer(runs: list[RunReport]) -> None:
    keys = ["training-loss", "learning-rate", "gradient-norm", "growth-ramp", "throughput", "mfu"]
    assert list(charts(runs)) == keys
    names = [series.name for series in charts(runs)["training-loss"].series]
    assert names == ["training loss, as logged", "training loss, smoothed", "validation loss"]


def test_every_chart_but_the_ramp_spans_the_run_and_marks_the_growth(runs: list[RunReport]) -> None:
    for key, chart in charts(runs).items():
        [rule] = chart.rules
        assert rule.x["tokens"] == TOKENS
        assert rule.label == "grown to 2.4M"
        xs = [mark.x["tokens"] for mark in chart.series[0].marks]
        assert xs == sorted(xs)
        if key != "growth-ramp":
            assert xs[0] <= TOKENS < xs[-1] == TOKENS + 600_000
            assert chart.series[0].marks[-1].x["flops"] == pytest.approx(runs[0].cumulative_flops)


def test_the_ramp_rises_to_one_over_its_steps_after_the_growth_alone(runs: list[RunReport]) -> None:
    [series] = charts(runs)["growth-ramp"].series
    assert [(mark.x["tokens"] - TOKENS, round(mark.y, 3)) for mark in series.marks] == [
        (0, 0.0),
        (120_000, 0.992),
        (121_000, 1.0),
        (600_000, 1.0),
    ]


def test_mfu_is_drawn_against_the_recorded_peak_of_all_devices(runs: list[RunReport]) -> None:
    figures = training_figures(runs[0], runs[0].stages[0])
    assert figures
    assert figures.median_mfu == pytest.approx(100.0 * SMALL.step_flops.total / SMALL.tokens_per_step / 2e12)
    assert (figures.num_lines, figures.window_steps, figures.final_training_loss) == (100, 50, 2.0)


def test_runs_without_log_lines_are_named_and_their_figures_are_unknown(runs: list[RunReport]) -> None:
    assert "No log lines are here of quick-control-tokenformer-scratch-500." in notes(runs)
    assert training_figures(runs[1], runs[1].stages[0]) is None
    assert charts(runs[1:]) == {}
    assert list(sections([replace(runs[0], stages=(), releases=())])) == []


def test_spec_files_that_cannot_be_read_draw_no_ramp(runs: list[RunReport]) -> None:
    for content in ("{", "[]", '{"ramp_steps": "x", "model": [{"key_ramp": 0.0}]}'):
        RunPaths(runs[0].directory).stage(1, runs[0].stages[1].name).spec.write_text(content)
        assert "growth-ramp" not in charts(runs)


def test_long_and_many_runs_are_drawn_with_a_bounded_number_of_marks(runs: list[RunReport]) -> None:
    stage = RunPaths(runs[0].directory).stage(0, runs[0].stages[0].name)
    records: list[dict[str, Any]] = trained(1, range(1, 2001), [3.0 + (step == 777) for step in range(2000)])
    write_metrics(stage, records)
    loss = charts(runs)["training-loss"]
    assert max(len(series.marks) for series in loss.series) <= MOST_PER_SERIES
    assert max(mark.y for mark in loss.series[0].marks) == 4.0
    for number in (4, 12):
        for chart in charts([runs[0]] * number).values():
            if chart.key != "training-loss":
                assert sum(len(series.marks) for series in chart.series) <= MOST_MARKS


def seeds(runs: list[RunReport], number: int) -> list[RunReport]:
    """The ladder as it would be with `number` seeds that came out alike."""
    ladder = replace(runs[0], conditions={}, group="quick")
    return [replace(ladder, name=f"quick-seed-{seed}", seed=seed) for seed in range(number)]


def test_seeds_share_a_colour_and_an_entry_and_a_curve_that_is_equal_is_drawn_once(runs: list[RunReport]) -> None:
    drawn = charts(seeds(runs, 3))
    for chart in drawn.values():
        assert {series.group for series in chart.series} == {"quick"}
        assert len({series.entry for series in chart.series}) <= 2, chart.key
    assert len(drawn["learning-rate"].series) == 1
    assert [series.entry for series in drawn["learning-rate"].series] == ["quick, ladder from 800k, 3 seeds"]


def test_controls_have_a_folded_section_of_their_own_and_the_colours_of_the_chart_of_compute(
    runs: list[RunReport],
) -> None:
    as_control = replace(runs[0], name="alike", control="tokenformer-scratch", control_of=runs[0].name)
    ladders, controls = sections([runs[0], as_control])
    assert (ladders.is_detail, controls.is_detail) == (False, True)
    [groups] = {part.groups for part in (*ladders.parts, *controls.parts) if isinstance(part, Chart) and part.groups}
    assert groups == ("quick", "quick: tokenformer-scratch, 2.4M")
    drawn = [part for part in controls.parts if isinstance(part, Chart)]
    assert [part.key for part in drawn] == ["control-training-loss", "control-learning-rate", "control-gradient-norm"]
    assert {look.number for part in drawn for look in looks(part)} == {1}
