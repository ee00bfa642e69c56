"""Scores in the report: the paper's columns, everything else below."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from growctl.ledger.entries import ScoreEntry
from growctl.ledger.ledger import Ledger
from growctl.report.documents import report_document
from growctl.report.scores import COLUMNS, other_scores, section
from growctl.report.sections import report_sections
from growctl.runs.find import find_runs
from growctl.runs.runs import RunReport
from growctl.text.documents import plain
from growctl.text.section import Table
from growctl.text.terminal import print_sections
from tests.growctl.invented_runs import FakeRun, stage_of
from tests.growctl.report.parsed import ParsedPage
from tests.growctl.report.rendered import page_of

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


def printed(runs: list[RunReport], width: int = 120) -> str:
    out = StringIO()
    print_sections(report_sections(runs), Console(file=out, width=width))
    return out.getvalue()


def test_a_model_gets_a_row_in_the_papers_columns(tmp_path: Path):
    [row] = zero_shot_rows(report(tmp_path, *TABLE))
    assert row == ["ladder/small", "1M", "16.38", "45.0", "35.5", "64.9", "47.3", "24.9", "50.4", "44.7"]


def test_the_table_breaks_no_word_at_80_columns(tmp_path: Path):
    lines = printed(report(tmp_path, *TABLE), width=80).split("Zero-shot scores")[1].splitlines()
    lines = [line.rstrip() for line in lines[1:]]
    assert lines[0].split() == ["LAMBADA", "Hella-", "Wino-"]
    assert lines[1].split()[:6] == ["model", "size", "ppl", "LAMBADA", "Swag", "PIQA"]
    assert lines[1].split()[6:] == ["ARC-E", "ARC-C", "Grande", "average"]
    assert lines[2].endswith("1M   16.38    45.0   35.5 64.9  47.3  24.9   50.4    44.7")


def test_nothing_is_shown_without_scores(tmp_path: Path):
    runs = report(tmp_path)
    assert (zero_shot_rows(runs), other_scores(runs)) == ([], [])
    assert "Zero-shot" not in printed(runs)


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


def test_a_missing_task_is_a_dash_and_leaves_no_average(tmp_path: Path):
    rows = zero_shot_rows(report(tmp_path, *TABLE[:-1]))
    assert rows[0][-2:] == ["-", "-"]


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


def test_texts_and_long_contexts_are_listed_with_what_sets_them_apart(tmp_path: Path):
    text = {"text": ["/data/book.txt"], "context": 64, "stride": 32}
    runs = report(
        tmp_path,
        replace(FINAL, task="text", metric="perplexity", value=12.5, standard_error=None, settings=text),
        replace(FINAL, task="text", metric="bits_per_byte", value=1.5, standard_error=None, settings=text),
        replace(
            FINAL,
            task="context-4096",
            metric="loss",
            value=3.0,
            standard_error=None,
            settings={"text": ["/data/book.txt"], "rope_scaling": "yarn", "trained_length": 64, "max_tokens": 9000},
        ),
    )
    assert other_scores(runs) == [
        ("ladder/small", "/data/book.txt, context 64, stride 32", "perplexity 12.5, bits_per_byte 1.5"),
        (
            "ladder/small",
            "context-4096, /data/book.txt, max tokens 9000, rope scaling yarn, trained length 64",
            "loss 3",
        ),
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "bfloat16"}, "/data/book.txt, context 64, dtype bfloat16, stride 64"),
        ({"tokenizer": "c0ffee00" * 8}, "/data/book.txt, context 64, stride 64, tokenizer " + "c0ffee00" * 8),
        ({"text": ["/other/book.txt"]}, "/other/book.txt, context 64, stride 64"),
        (
            {"text": None, "split": "train", "dataset": "/data/wiki"},
            "context 64, dataset /data/wiki, split train, stride 64",
        ),
    ],
)
def test_evaluations_of_other_settings_are_rows_of_their_own(tmp_path: Path, changes: dict[str, Any], said: str):
    usual = {"text": ["/data/book.txt"], "context": 64, "stride": 64, "dtype": "float32"}
    score = replace(FINAL, task="text", metric="loss", value=3.0, standard_error=None, settings=usual)
    later = "2026-02-01T00:00:00.000+00:00"
    runs = report(tmp_path, score, replace(score, evaluated_at=later, value=4.0, settings=usual | changes))
    (_, plain, first), (_, other, second) = other_scores(runs)
    assert (first, other, second) == ("loss 3", said, "loss 4")
    assert plain.startswith("/data/book.txt, context 64")
    assert plain != other


def test_long_contexts_of_other_texts_are_rows_of_their_own(tmp_path: Path):
    usual = {"text": ["/a.txt"], "rope_scaling": "none", "trained_length": 64, "max_tokens": 9000}
    score = replace(FINAL, task="context-128", metric="loss", value=3.0, standard_error=None, settings=usual)
    changes: list[dict[str, Any]] = [{"text": ["/b.txt"]}, {"max_tokens": 500}, {"trained_length": 32}]
    runs = report(
        tmp_path,
        score,
        *(replace(score, evaluated_at=f"{i}", settings=usual | change) for i, change in enumerate(changes)),
    )
    assert [what for _, what, _ in other_scores(runs)] == [
        "context-128, /a.txt, max tokens 9000, trained length 64",
        "context-128, /b.txt, max tokens 9000, trained length 64",
        "context-128, /a.txt, max tokens 500, trained length 64",
        "context-128, /a.txt, max tokens 9000, trained length 32",
    ]


def test_terminal_page_and_document_show_scores(tmp_path: Path):
    runs = report(tmp_path, *TABLE)
    assert "Zero-shot scores" in printed(runs)
    rows = ParsedPage(page_of(runs)).all("th", scope="row")
    assert "ladder/small" in [row.text for row in rows]
    (document,) = plain(report_document(runs))["runs"]
    assert [score["value"] for score in document["stages"][0]["scores"]] == list(VALUES)
