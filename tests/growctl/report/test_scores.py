"""Scores in the report: the paper's columns, everything else below."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.ledger.entries import ScoreEntry
from growctl.ledger.ledger import Ledger
from growctl.report.documents import report_document
from growctl.report.scores import COLUMNS, other_scores, section
from growctl.runs.find import find_runs
from growctl.runs.runs import RunReport
from growctl.text.section import Table
from tests.growctl.invented_runs import FakeRun, stage_of
from tests.growctl.report.rendered import lines_of

FINAL = ScoreEntry(
    "small", "final", "a" * 64, "2026-01-01T00:00:00.000+00:00", "piqa", "acc", "none", 0.6, 0.01, 1838, 0
)
VALUES = (16.38, 0.45, 0.355, 0.649, 0.473, 0.249, 0.504)
TABLE = [
    replace(FINAL, task=task, metric=metric, value=value)
    for (task, metric), value in zip(COLUMNS.values(), VALUES, strict=True)
]


def report(folder: Path, *scores: ScoreEntry) -> list[RunReport]:
    """The report of a run of two stages whose ledger holds `scores`."""
    run = FakeRun(folder, "ladder", [stage_of("small", 1_000_000, 10), stage_of("large", 2_000_000, 10)])
    run.train(0, 3.0).train(1, 2.5)
    with Ledger(run.path) as ledger:
        ledger.record_scores(scores)
    return find_runs(folder)


def zero_shot_rows(runs: list[RunReport]) -> list[list[str]]:
    """The rows of the zero-shot table; none without it."""
    found = section(runs)
    tables = [part for part in found.parts if isinstance(part, Table) and part.key == "zero-shot"] if found else []
    return [[cell.text for cell in row] for table in tables for group in table.groups for row in group.rows]


def test_the_newest_evaluation_of_the_newest_final_checkpoint_counts(tmp_path: Path):
    later = "2026-02-01T00:00:00.000+00:00"
    runs = report(
        tmp_path,
        FINAL,
        replace(FINAL, evaluated_at=later, value=0.7),
        replace(FINAL, checkpoint="step_00000005", evaluated_at=later, value=0.1),
    )
    assert [score.value for score in runs[0].stages[0].scores] == [0.7]
    runs = report(tmp_path / "b", FINAL, replace(FINAL, manifest="b" * 64, task="winogrande", evaluated_at=later))
    assert [score.task for score in runs[0].stages[0].scores] == ["winogrande"], "the older final is gone"


def test_a_model_gets_a_row_in_the_papers_columns_and_an_average_of_all_tasks(tmp_path: Path):
    runs = report(tmp_path / "all", *TABLE)
    [row] = zero_shot_rows(runs)
    assert row == ["ladder/small", "1M", "16.38", "45.0", "35.5", "64.9", "47.3", "24.9", "50.4", "44.7"]
    shown = section(runs)
    assert shown
    lines = lines_of([shown], width=80)
    assert lines[-2].split()[2:6] == ["ppl", "LAMBADA", "Swag", "PIQA"]
    assert lines[-1].endswith("1M   16.38    45.0   35.5 64.9  47.3  24.9   50.4    44.7")
    [document] = report_document(runs).runs
    assert [score.value for score in document.stages[0].scores] == list(VALUES)
    [row] = zero_shot_rows(report(tmp_path / "missing", *TABLE[:-1]))
    assert row[-2:] == ["-", "-"]
    assert section(report(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"settings": {"limit": 10}}, "piqa, limit 10"),
        ({"num_shots": 5}, "piqa, 5 shots"),
        ({"settings": {"include_path": "/home/me/tasks"}}, "piqa, include path /home/me/tasks"),
        ({"settings": {"tokenizer": "c0ffee00" * 8}}, "piqa, tokenizer " + "c0ffee00" * 8),
        ({"settings": {"context": 16, "trained_length": 64}}, "piqa, context 16, trained length 64"),
        ({"settings": {"dtype": "bfloat16"}}, "piqa, dtype bfloat16"),
    ],
)
def test_scores_that_compare_with_no_other_stay_out_of_the_table(tmp_path: Path, change: dict[str, Any], said: str):
    runs = report(tmp_path, replace(FINAL, **change))
    assert zero_shot_rows(runs) == []
    assert other_scores(runs) == [("ladder/small", said, "acc 0.6 ± 0.01")]


TEXT = {"text": ["/data/book.txt"], "context": 64, "stride": 64, "dtype": "float32"}
CONTEXT = {"text": ["/a.txt"], "rope_scaling": "none", "trained_length": 64, "max_tokens": 9000}


@pytest.mark.parametrize(
    ("task", "usual", "changes", "said"),
    [
        ("text", TEXT, {"stride": 32}, "/data/book.txt, context 64, stride 32"),
        ("text", TEXT, {"dtype": "bfloat16"}, "/data/book.txt, context 64, dtype bfloat16, stride 64"),
        ("text", TEXT, {"tokenizer": "c0ffee"}, "/data/book.txt, context 64, stride 64, tokenizer c0ffee"),
        ("text", TEXT, {"text": ["/other/book.txt"]}, "/other/book.txt, context 64, stride 64"),
        (
            *("text", TEXT, {"text": None, "split": "train", "dataset": "/data/wiki"}),
            "context 64, dataset /data/wiki, split train, stride 64",
        ),
        ("context-128", CONTEXT, {"text": ["/b.txt"]}, "context-128, /b.txt, max tokens 9000, trained length 64"),
        ("context-128", CONTEXT, {"max_tokens": 500}, "context-128, /a.txt, max tokens 500, trained length 64"),
        ("context-128", CONTEXT, {"trained_length": 32}, "context-128, /a.txt, max tokens 9000, trained length 32"),
        (
            *("context-128", CONTEXT, {"rope_scaling": "yarn"}),
            "context-128, /a.txt, max tokens 9000, rope scaling yarn, trained length 64",
        ),
    ],
)
def test_evaluations_of_other_settings_are_rows_of_their_own_which_name_them(
    tmp_path: Path, task: str, usual: dict[str, Any], changes: dict[str, Any], said: str
):
    score = replace(FINAL, task=task, metric="loss", value=3.0, standard_error=None, settings=usual)
    later = replace(score, evaluated_at="2026-02-01T00:00:00.000+00:00", value=4.0, settings=usual | changes)
    (model, plain, first), (_, other, second) = other_scores(report(tmp_path, score, later))
    assert (model, first, other, second) == ("ladder/small", "loss 3", said, "loss 4")
    assert plain != other


def test_the_metrics_of_an_evaluation_share_its_row(tmp_path: Path):
    perplexity = replace(FINAL, task="text", metric="perplexity", value=12.5, standard_error=None, settings=TEXT)
    bits = replace(perplexity, metric="bits_per_byte", value=1.5)
    [(_, _, said)] = other_scores(report(tmp_path, perplexity, bits))
    assert said == "perplexity 12.5, bits_per_byte 1.5"
