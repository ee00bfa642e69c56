"""The report warns of validation sets that are too small for its losses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.datasets import small_validation
from growctl.report.documents import report_document
from growctl.report.sections import report_sections, validation_warning
from growctl.runs.find import find_runs
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun
from tests.growctl.report.rendered import lines_of

FEW = (
    "Validation has 6 documents with 9,000 tokens, and an evaluation reads 9,000 of them: with fewer than 50 documents "
    "or 100,000 tokens, a difference of 0.05 nats per token between two losses may rest on a few documents. Use more "
    "text, or a larger data.validation_fraction."
)


@pytest.mark.parametrize(
    ("sizes", "warnings"),
    [
        ({"a": (6, 9_000), "b": (6, 9_000)}, [f"warning: {FEW}"]),
        ({"few": (6, 9_000), "many": (50, 100_000)}, [f"warning: few: {FEW}"]),
        ({"a": (50, 100_000)}, []),
        ({"a": None}, []),
    ],
)
def test_runs_with_a_small_validation_set_share_one_warning_which_names_them_if_others_have_a_large_one(
    tmp_path: Path, sizes: dict[str, tuple[int, int] | None], warnings: list[str]
) -> None:
    for name, size in sizes.items():
        FakeRun(tmp_path, name, [SMALL, LARGE], validation=size).train(0, 1.42).train(1, 1.28, start=1.42)
    found = find_runs(tmp_path)
    assert [line for line in lines_of(report_sections(found)) if line.startswith("warning")] == warnings
    for run in report_document(found).runs:
        assert (run.validation_documents, run.validation_tokens) == (sizes[run.name] or (None, None))
        assert list(run.warnings) == ([FEW] if sizes[run.name] == (6, 9_000) else [])


@pytest.mark.parametrize(
    ("num_documents", "num_tokens", "max_sequences", "said"),
    [
        (50, 100_000, None, None),
        (80, 500_000, 1563, None),
        (49, 100_000, None, "Validation has 49 documents with 100,000 tokens, and an evaluation reads 100,000"),
        (50, 99_999, None, "with fewer than 50 documents or 100,000 tokens, a difference of 0.05 nats"),
        (80, 500_000, 1562, "Set evaluation.max_sequences to 1,563 or more."),
    ],
)
def test_the_warning_has_the_limits_and_what_to_set(
    num_documents: int, num_tokens: int, max_sequences: int | None, said: str | None
) -> None:
    warning = small_validation(num_documents, num_tokens, max_sequences=max_sequences, sequence_length=64)
    assert (warning is None) == (said is None)
    assert said is None or said in str(warning)


def test_the_report_warns_of_evaluations_that_read_little(tmp_path: Path) -> None:
    stages = [SMALL, replace(LARGE, sequence_length=32)]
    few: dict[str, Any] = {"evaluation.max_sequences": 10}
    FakeRun(tmp_path, "a", stages, validation=(80, 500_000), **few).train(0, 1.42)
    assert "an evaluation reads 320 of them" in str(validation_warning(find_runs(tmp_path)[0]))
