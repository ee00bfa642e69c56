"""The chart of compute against perplexity says what each run cost when it was measured."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from growctl.report.chart import Series
from growctl.report.compute import compute_chart
from growctl.runs.find import find_runs
from model.flops import Flops
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, ladder

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


def test_seeds_share_a_colour_an_entry_and_the_rules_of_their_growths(tmp_path):
    for seed in (0, 1):
        name = f"quick-seed-{seed}"
        run = FakeRun(tmp_path, name, [SMALL, LARGE], seed=seed, run_set=("quick", {"seed": seed}))
        run.train(0, 1.42).train(1, 1.28, start=1.42)
        for budget in (600, 1200):
            control(tmp_path, budget, 1.3, of=name, seed=seed)
    chart = compute_chart(find_runs(tmp_path))
    assert {(each.role, each.group, each.label) for each in chart.series} == {
        ("ladder", "quick", "quick, ladder from 800k, 2 seeds"),
        ("control", "quick: tokenformer-scratch, 2.4M", "tokenformer-scratch, 2.4M, 2 seeds"),
    }
    assert [rule.label for rule in chart.rules] == ["grown to 2.4M"]
    assert chart.groups == ("quick", "quick: tokenformer-scratch, 2.4M")


def test_an_unfinished_run_has_an_entry_that_says_so(tmp_path):
    ladder(tmp_path, final=None)
    control(tmp_path, 600, 1.3)
    control(tmp_path, 1200, None)
    unfinished = "quick, ladder from 800k, 1 of 1 unfinished"
    assert [each.label for each in drawn(tmp_path)] == [
        unfinished,
        *["tokenformer-scratch, 2.4M, 1 of 2 unfinished"] * 2,
    ]
    FakeRun(tmp_path / "new", "quick", [SMALL])
    [new] = drawn(tmp_path / "new")
    assert (new.marks, new.label) == ((), unfinished)
    assert "No run has a final loss yet" in compute_chart([]).summary


def test_a_release_branches_from_the_end_of_its_stage_to_its_own_cost(tmp_path):
    release = replace(SMALL, name="0-800k/release", num_steps=100, branch_of=SMALL.name, decayed=True)
    run = FakeRun(tmp_path, "quick", [SMALL, release, LARGE]).train(0, 1.42).train(1, 1.36, start=1.42)
    run.train(2, 1.28, start=1.42)
    [branch] = [each for each in drawn(tmp_path) if each.name == "0-800k/release of quick"]
    assert [mark.x for mark in branch.marks] == pytest.approx([1000 * SMALL_STEP, 1100 * SMALL_STEP])
    assert [mark.y for mark in branch.marks] == pytest.approx([math.exp(1.42), math.exp(1.36)])
    assert (branch.role, branch.group, branch.label) == ("release", "quick", "quick, releases")


def test_a_mark_at_no_cost_has_no_place_on_a_logarithmic_axis(tmp_path):
    FakeRun(tmp_path, "quick", [replace(SMALL, step_flops=Flops(0.0, 0.0, 0.0))]).train(0, 1.42)
    chart = compute_chart(find_runs(tmp_path))
    [series] = chart.series
    assert series.marks
    assert not chart.marks_of(series)
