"""The report warns of validation sets that are too small for its losses: on a screen, in the page and as JSON."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from growctl.ladder.datasets import small_validation
from growctl.report.documents import report_document
from growctl.report.sections import report_sections, validation_warning
from growctl.runs.find import find_runs
from growctl.text.documents import plain
from growctl.text.terminal import print_sections
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun
from tests.growctl.report.rendered import page_of

FEW = (
    "Validation has 6 documents with 9,000 tokens, and an evaluation reads 9,000 of them: with fewer than 50 documents "
    "or 100,000 tokens, a difference of 0.05 nats per token between two losses may rest on a few documents. Use more "
    "text, or a larger data.validation_fraction."
)


def run_of(runs: Path, name: str, validation: tuple[int, int] | None) -> None:
    FakeRun(runs, name, [SMALL, LARGE], validation=validation).train(0, 1.42).train(1, 1.28, start=1.42)


def printed(runs: Path) -> str:
    out = io.StringIO()
    print_sections(report_sections(find_runs(runs)), Console(file=out, width=100))
    return " ".join(out.getvalue().split())


def test_a_small_validation_set_is_reported_once_on_the_screen_in_the_page_and_for_each_run_as_json(
    tmp_path: Path,
) -> None:
    run_of(tmp_path, "a", (6, 9_000))
    run_of(tmp_path, "b", (6, 9_000))
    assert printed(tmp_path).count(f"warning: {FEW}") == 1
    found = find_runs(tmp_path)
    assert page_of(found).count("Warning:</strong> Validation has 6 documents") == 1
    for run in plain(report_document(found))["runs"]:
        assert run["warnings"] == [FEW]
        assert (run["validation_documents"], run["validation_tokens"]) == (6, 9_000)


def test_the_runs_are_named_if_only_some_have_a_small_validation_set(tmp_path: Path) -> None:
    run_of(tmp_path, "few", (6, 9_000))
    run_of(tmp_path, "many", (50, 100_000))
    assert f"warning: few: {FEW}" in printed(tmp_path)


@pytest.mark.parametrize("validation", [(50, 100_000), None])
def test_a_large_validation_set_and_one_of_unknown_size_give_no_warning(
    tmp_path: Path, validation: tuple[int, int] | None
) -> None:
    run_of(tmp_path, "a", validation)
    assert "warning" not in printed(tmp_path)
    [run] = report_document(find_runs(tmp_path)).runs
    assert run.warnings == ()


@pytest.mark.parametrize(
    ("num_documents", "num_tokens", "max_sequences", "said"),
    [
        (50, 100_000, None, None),
        (80, 500_000, 1563, None),
        (49, 100_000, None, "Validation has 49 documents with 100,000 tokens, and an evaluation reads 100,000"),
        (50, 99_999, None, "with fewer than 50 documents or 100,000 tokens, a difference of 0.05 nats"),
        (80, 500_000, 5, "an evaluation reads 320 of them"),
        (80, 500_000, 5, "Set evaluation.max_sequences to 1,563 or more."),
    ],
)
def test_the_warning_has_the_limits_and_what_to_set(
    num_documents: int, num_tokens: int, max_sequences: int | None, said: str | None
) -> None:
    warning = small_validation(num_documents, num_tokens, max_sequences=max_sequences, sequence_length=64)
    assert (warning is None) == (said is None)
    assert said is None or said in str(warning)


def test_the_report_warns_of_evaluations_that_read_little(tmp_path: Path) -> None:
    how: dict[str, Any] = {"evaluation.max_sequences": 10}
    last = replace(LARGE, sequence_length=32)
    FakeRun(tmp_path, "a", [SMALL, last], validation=(80, 500_000), **how).train(0, 1.42)
    warning = validation_warning(find_runs(tmp_path)[0])
    assert warning is not None
    assert "an evaluation reads 320 of them" in warning
