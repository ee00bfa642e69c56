"""Scores in the report: the paper's columns, everything else below."""

from dataclasses import replace

import pytest

from growctl.ledger.entries import ScoreEntry
from growctl.ledger.ledger import Ledger
from growctl.report.scores import COLUMNS, other_scores, section
from growctl.runs.find import find_runs
from tests.growctl.invented_runs import FakeRun, stage_of
from tests.growctl.report.rendered import lines_of

LATER = "2026-02-01T00:00:00.000+00:00"
FINAL = ScoreEntry(
    "small", "final", "a" * 64, "2026-01-01T00:00:00.000+00:00", "piqa", "acc", "none", 0.6, 0.01, 1838, 0
)


def report(folder, *scores):
    """The report of a run of two stages whose ledger holds `scores`."""
    run = FakeRun(folder, "ladder", [stage_of("small", 1_000_000, 10), stage_of("large", 2_000_000, 10)])
    run.train(0, 3.0).train(1, 2.5)
    with Ledger(run.path) as ledger:
        ledger.record_scores(scores)
    return find_runs(folder)


def shown(runs, **how):
    found = section(runs)
    return lines_of([found] if found else [], **how)


def test_the_newest_evaluation_of_the_newest_final_checkpoint_counts(tmp_path):
    newer = replace(FINAL, evaluated_at=LATER, value=0.7)
    runs = report(tmp_path, FINAL, newer, replace(newer, checkpoint="step_00000005"))
    assert runs[0].stages[0].scores == (newer,)
    of_another_final = replace(newer, manifest="b" * 64, task="winogrande")
    assert report(tmp_path / "b", FINAL, of_another_final)[0].stages[0].scores == (of_another_final,)


def test_a_model_gets_a_row_in_the_papers_columns_and_an_average_of_all_tasks(tmp_path):
    values = dict(zip(COLUMNS.values(), (16.38, 0.45, 0.355, 0.649, 0.473, 0.249, 0.504), strict=True))
    scores = [replace(FINAL, task=task, metric=metric, value=value) for (task, metric), value in values.items()]
    *_, headings, row = shown(report(tmp_path / "all", *scores), width=80)
    assert headings.split()[2:6] == ["ppl", "LAMBADA", "Swag", "PIQA"]
    assert row.split()[-9:] == ["1M", "16.38", "45.0", "35.5", "64.9", "47.3", "24.9", "50.4", "44.7"]
    assert shown(report(tmp_path / "missing", *scores[:-1]))[-1].split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_shots": 5}, "piqa, 5 shots"),
        ({"settings": {"limit": 10}}, "piqa, limit 10"),
        ({"settings": {"dtype": "bfloat16", "lm_eval": "1"}}, "piqa, dtype bfloat16"),
        ({"task": "arithmetic", "settings": {"context": 64, "trained_length": 64}}, "arithmetic"),
    ],
)
def test_scores_that_compare_with_no_other_stay_out_of_the_table(tmp_path, change, said):
    runs = report(tmp_path, replace(FINAL, **change))
    assert other_scores(runs) == [("ladder/small", said, "acc 0.6 ± 0.01")]
    assert "Zero-shot scores" not in shown(runs)
