"""The chart of compute against perplexity says what each run cost when it was measured."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from growctl.report.chart import Chart, Series
from growctl.report.compute import compute_chart
from growctl.runs.find import find_runs
from model.flops import Flops
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, ladder

RELEASE = replace(SMALL, name="0-800k/release", num_steps=100, branch_of=SMALL.name, decayed=True)
SMALL_STEP, LARGE_STEP = (stage.step_flops.total for stage in (SMALL, LARGE))


def chart_of(runs: Path) -> Chart:
    return compute_chart(find_runs(runs))


def series_of(chart: Chart, name: str) -> Series:
    [found] = [series for series in chart.series if series.name == name]
    return found


def two_seeds(runs: Path) -> Chart:
    """The chart of two seeds of one schedule, each with two budgets of a control."""
    for seed in (0, 1):
        name = f"quick-seed-{seed}"
        one = FakeRun(runs, name, [SMALL, LARGE], run_set=("quick", {"seed": seed}))
        one.train(0, 1.42).train(1, 1.28 + 0.01 * seed, start=1.42)
        for budget in (600, 1200):
            control(runs, budget, 1.4 - budget / 10_000, of=name)
    seeds = {run.name: int(run.name.split("-")[2]) for run in find_runs(runs)}
    alike = [replace(run, seed=seeds[run.name], conditions={}) for run in find_runs(runs)]
    return compute_chart(alike)


def test_marks_are_at_the_exact_flops_of_the_work_that_was_kept(tmp_path: Path) -> None:
    ladder(tmp_path, killed_at=200)
    chart = chart_of(tmp_path)
    quick = series_of(chart, "quick")
    base = 1000 * SMALL_STEP
    steps = [mark.x for mark in quick.marks if mark.x > base]
    assert steps == pytest.approx([base + step * LARGE_STEP for step in (*range(60, 601, 60), 600)])
    assert [round(math.log(mark.y), 9) for mark in quick.marks if mark.is_end] == [1.42, 1.28]


def test_seeds_share_a_colour_an_entry_and_the_rules_of_their_growths(tmp_path: Path) -> None:
    chart = two_seeds(tmp_path)
    ladders = [series for series in chart.series if series.role == "ladder"]
    controls = [series for series in chart.series if series.role == "control"]
    assert {series.group for series in ladders} == {"quick"}
    assert {series.label for series in ladders} == {"quick, ladder from 800k, 2 seeds"}
    assert [rule.label for rule in chart.rules] == ["grown to 2.4M"]
    assert {series.label for series in controls} == {"tokenformer-scratch, 2.4M, 2 seeds"}
    assert {series.group for series in controls}.isdisjoint({"quick"})


def test_an_unfinished_run_has_an_entry_that_says_so(tmp_path: Path) -> None:
    ladder(tmp_path, final=None)
    control(tmp_path, 600, 1.3)
    control(tmp_path, 1200, None)
    entries = [series.label for series in chart_of(tmp_path).series]
    assert entries == [
        "quick, ladder from 800k, 1 of 1 unfinished",
        *["tokenformer-scratch, 2.4M, 1 of 2 unfinished"] * 2,
    ]


def test_a_release_branches_from_the_end_of_its_stage_to_its_own_cost(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, "quick", [SMALL, RELEASE, LARGE]).train(0, 1.42).train(1, 1.36, start=1.42)
    run.train(2, 1.28, start=1.42)
    release = series_of(chart_of(tmp_path), "0-800k/release of quick")
    assert [mark.x for mark in release.marks] == pytest.approx([1000 * SMALL_STEP, 1100 * SMALL_STEP])
    assert [mark.y for mark in release.marks] == pytest.approx([math.exp(1.42), math.exp(1.36)])
    assert (release.role, release.group, release.label) == ("release", "quick", "quick, releases")


def test_the_top_is_limited_by_the_worst_end_so_that_the_start_of_training_is_cut_off(tmp_path: Path) -> None:
    ladder(tmp_path)
    [run], [series] = find_runs(tmp_path), chart_of(tmp_path).series
    assert max(point.perplexity for point in run.points) > 1.8 * math.exp(1.42)
    assert max(mark.y for mark in series.marks) <= 1.8 * math.exp(1.42)


def test_a_mark_at_no_cost_has_no_place_on_a_logarithmic_axis(tmp_path: Path) -> None:
    free = replace(SMALL, step_flops=Flops(0.0, 0.0, 0.0))
    FakeRun(tmp_path, "quick", [free]).train(0, 1.42)
    chart = chart_of(tmp_path)
    [series] = chart.series
    assert series.marks
    assert not chart.marks_of(series)


def test_no_runs_and_runs_without_points_make_a_chart_that_says_so(tmp_path: Path) -> None:
    assert "No run has a final loss yet" in compute_chart([]).summary
    FakeRun(tmp_path, "quick", [SMALL])
    [series] = chart_of(tmp_path).series
    assert (series.marks, series.label) == ((), "quick, ladder from 800k, 1 of 1 unfinished")
