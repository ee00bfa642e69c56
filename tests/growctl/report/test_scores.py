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
    assert shown(report(tmp_path / "none")) == []
    *_, headings, row = shown(report(tmp_path / "all", *scores), width=80)
    assert headings.split()[2:6] == ["ppl", "LAMBADA", "Swag", "PIQA"]
    assert row.split()[-9:] == ["1M", "16.38", "45.0", "35.5", "64.9", "47.3", "24.9", "50.4", "44.7"]
    assert shown(report(tmp_path / "missing", *scores[:-1]))[-1].split()[-2:] == ["-", "-"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_shots": 5}, "piqa, 5 shots"),
        ({"settings": {"limit": 10}}, "piqa, limit 10"),
        ({"settings": {"context": 16, "trained_length": 64}}, "piqa, context 16, trained length 64"),
        ({"settings": {"dtype": "bfloat16", "lm_eval": "1"}}, "piqa, dtype bfloat16"),
        ({"task": "arithmetic", "settings": {"context": 64, "trained_length": 64}}, "arithmetic"),
    ],
)
def test_scores_that_compare_with_no_other_stay_out_of_the_table(tmp_path, change, said):
    runs = report(tmp_path, replace(FINAL, **change))
    assert other_scores(runs) == [("ladder/small", said, "acc 0.6 ± 0.01")]
    assert "Zero-shot scores" not in shown(runs)


WINDOWS = {"text": ["/data/book.txt"], "context": 64, "stride": 64, "dtype": "float32"}
CONTEXTS = {"text": ["/a.txt"], "rope_scaling": "none", "trained_length": 64, "max_tokens": 9000}


@pytest.mark.parametrize(
    ("task", "usual", "changes", "said"),
    [
        ("text", WINDOWS, {"stride": 32}, "/data/book.txt, context 64, stride 32"),
        ("text", WINDOWS, {"text": ["/b.txt"]}, "/b.txt, context 64, stride 64"),
        ("text", WINDOWS, {"text": None, "split": "train"}, "context 64, split train, stride 64"),
        ("context-128", CONTEXTS, {"trained_length": 32}, "context-128, /a.txt, max tokens 9000, trained length 32"),
    ],
)
def test_evaluations_of_other_settings_are_rows_of_their_own_which_name_them(tmp_path, task, usual, changes, said):
    score = replace(FINAL, task=task, metric="loss", value=3.0, standard_error=None, settings=usual)
    bits = replace(score, metric="bits_per_byte", value=1.5)
    later = replace(score, evaluated_at=LATER, value=4.0, settings=usual | changes)
    (model, plain, first), (_, other, second) = other_scores(report(tmp_path, score, bits, later))
    assert (model, first, other, second) == ("ladder/small", "loss 3, bits_per_byte 1.5", said, "loss 4")
    assert plain != other
