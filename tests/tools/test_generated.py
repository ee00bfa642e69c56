"""The generated parts of the documentation match the code and the results files."""

import re

import pytest

from tests.workers import REPOSITORY
from tools import generate, results
from tools.gpu_tables import device_tables
from tools.tables import NOT_MEASURED, held


@pytest.mark.slow
def test_no_page_is_stale() -> None:
    assert [path.name for path, text in generate.pages().items() if path.read_text() != text] == [], "run `make docs`"


def test_every_generated_part_has_its_marks_in_one_page() -> None:
    text = "".join(path.read_text() for path in (REPOSITORY / "docs").glob("*.md"))
    assert sorted(re.findall(r"^<!-- end of ([a-z-]+) -->$", text, re.MULTILINE)) == sorted(generate.PARTS)


def test_a_table_without_its_results_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert {results.results_table(name) for name in results.TABLES} == {NOT_MEASURED}


@pytest.mark.parametrize(
    ("value", "goal", "shown"),
    [
        (1.0, {}, "1.00"),
        (1.0, {"most": 1.0}, "1.00, met"),
        (1.01, {"most": 1.0}, "**1.01, not met**"),
        (2.0, {"least": 2.0, "quartiles": [1.5, 2.5]}, "2.00 (1.50 to 2.50), met"),
        (1.999, {"least": 2.0, "digits": 3}, "**1.999, not met**"),
    ],
)
def test_a_measurement_is_held_against_its_goal(value, goal, shown) -> None:
    assert held(value, **goal) == shown


def test_results_of_a_gpu_say_what_is_missing_and_those_of_a_trial_are_rejected() -> None:
    rows = [{"family": "tokenformer", "context": 8, "tokens_per_second": {"median": 3.14159, "samples": [3.0]}}]
    contexts = {"status": "shortened", "rows": rows, "failures": [{"size": 2, "error": "lost"}], "skipped": [{}]}
    sections = {"contexts": contexts, "zero": {"status": "skipped", "reason": "no time"}}
    head = {"date": "2026-01-02", "note": None, "machine": {"device": "H100", "versions": {"torch": "2"}}}
    shown = device_tables(head | {"trial": False, "sections": sections}, "gpu_h100.json")
    for expected in ("| tokenformer | - | 8 | 3.14 |", "2: lost", "lack of time: 1", "skipped, no time"):
        assert expected in shown
    with pytest.raises(ValueError, match="is from a trial run"):
        device_tables(head | {"trial": True, "sections": sections}, "gpu_h100.json")
