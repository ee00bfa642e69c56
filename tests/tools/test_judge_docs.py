"""The tables of docs/judge.md match the results file, and compare goals with measurements."""

import json
import re

from tools import judge
from tools.judge import coverage_table, verdict_table
from tools.tables import NOT_MEASURED

MACHINE = {"cpu": "A CPU", "cores": 2, "torch": "2.13.0", "python": "3.11.7"}
ROW = {
    "curve": "exponent 0.9",
    "budgets": [[0.5, 1, 2]],
    "noise": "equal",
    "seeds": 3,
    "cells": 96,
    "mean_coverage": 0.96,
    "coverage": 0.94,
    "width_to_oracle": 1.2,
    "width_to_knowing_oracle": 2.1,
    "bias": 0.99,
    "old_mean_coverage": 0.68,
    "old_coverage": 0.0,
}
VERDICT = {
    "sizes": 3,
    "policies": 10,
    "seeds": 2,
    "noise": "equal",
    "false_won": 0.01,
    "false_lost": 0.02,
    "old_false_won": 0.23,
    "old_false_lost": 0.21,
}


def written(folder, coverage=(ROW,), verdicts=(VERDICT,)):
    head = {"date": "2026-01-02", "machine": MACHINE, "draws": 4000}
    (folder / "judge_coverage.json").write_text(json.dumps(head | {"coverage": coverage, "verdicts": verdicts}))
    return folder


def test_the_page_is_not_stale():
    assert judge.PAGE.read_text() == judge.with_tables(judge.PAGE.read_text()), "run `make docs`"


def test_tables_without_results_say_so(tmp_path):
    assert coverage_table(tmp_path) == verdict_table(tmp_path) == NOT_MEASURED


def test_a_goal_that_is_missed_is_bold(tmp_path):
    shown = coverage_table(written(tmp_path))
    assert "| equal | 3 | 94.0 %, met | 96.0 % | 1.20, met | 2.10 | 0.990, met | 0.0 % | 68.0 % |" in shown
    shown = coverage_table(written(tmp_path, [ROW | {"coverage": 0.92, "width_to_oracle": 1.6, "bias": 0.97}]))
    assert re.findall(r"\*\*(.*?)\*\*", shown) == ["92.0 %, not met", "1.60, not met", "0.970, not met"]


def test_the_estimate_of_two_budgets_is_an_upper_bound_without_a_goal(tmp_path):
    shown = coverage_table(written(tmp_path, [ROW | {"budgets": [[0.5, 2]], "width_to_oracle": 9.0, "bias": 1.4}]))
    assert "| equal; 2 budgets | 3 | 94.0 %, met | 96.0 % | 9.00 | 2.10 | at most 1.40 |" in shown


def test_a_row_of_verdicts_has_the_worst_of_all_kinds_of_noise(tmp_path):
    verdicts = [VERDICT, VERDICT | {"noise": "other", "false_won": 0.06, "old_false_lost": 0.3}]
    shown = verdict_table(written(tmp_path, verdicts=verdicts))
    assert "| 3 sizes, 10 policies | 2 | **0.060, not met** | 0.020, met | 0.230 | 0.300 |" in shown
