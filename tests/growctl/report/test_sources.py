"""The report on a mixture: tokens, epochs and losses by source."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from growctl.ledger.ledger import Ledger
from growctl.report.documents import report_document, stages_csv
from growctl.report.sections import report_sections
from growctl.runs.find import find_runs
from growctl.text.documents import plain
from growctl.text.section import Table
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, ladder
from tests.growctl.report.rendered import lines_of

MIXTURE: dict[str, Any] = {"data.mixture": {"books": 6.0, "code": 2.0}}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A ladder on a mixture that was killed once, and a control."""
    run = FakeRun(tmp_path, "quick", [SMALL, LARGE], **MIXTURE).train(0, 1.42)
    run.train(1, 1.28, start=1.42, killed_at=240)
    control(tmp_path, 2000, 1.31, **MIXTURE)
    return tmp_path


def rows(runs: Path) -> list[list[str]]:
    """The cells of the table of sources."""
    [found] = [section for section in report_sections(find_runs(runs)) if section.key == "sources"]
    [table] = [part for part in found.parts if isinstance(part, Table)]
    return [[cell.text for cell in row] for group in table.groups for row in group.rows]


def test_a_mixture_has_the_tokens_epochs_and_losses_of_each_source_by_stage_and_for_controls(mixed: Path) -> None:
    assert rows(mixed) == [
        ["0-800k", "books", "750k", "7.5", "1.3950", "2.0486"],
        ["0-800k", "code", "250k", "2.5", "1.4950", "2.0486"],
        ["1-2m", "books", "450k", "4.5", "1.2550", "1.8466"],
        ["1-2m", "code", "150k", "1.5", "1.3550", "1.8466"],
        ["0-2m", "books", "1.5M", "15", "1.2850", "1.8899"],
        ["0-2m", "code", "500k", "5", "1.3850", "1.8899"],
    ]
    assert "The loss elsewhere is their mean, weighted by data.mixture at every stage" in " ".join(
        lines_of(report_sections(find_runs(mixed)))
    )


def test_an_unfinished_stage_has_the_figures_of_its_last_evaluation(tmp_path: Path) -> None:
    FakeRun(tmp_path, "quick", [SMALL, LARGE], **MIXTURE).train(0, 1.42).train(1, None, start=1.42)
    assert [row[:3] for row in rows(tmp_path)[2:]] == [
        ["1-2m (unfinished)", "books", "225k"],
        ["1-2m (unfinished)", "code", "75k"],
    ]


def test_scripts_get_the_sources_as_json_and_as_csv(mixed: Path) -> None:
    found = find_runs(mixed)
    stages = plain(report_document(found))["runs"][0]["stages"]
    assert stages[1]["by_source"]["books"]["trained_tokens"] == 450_000
    lines = list(csv.DictReader(io.StringIO(stages_csv(found))))
    assert json.loads(lines[1]["by_source"]) == stages[1]["by_source"]


def test_runs_on_one_text_have_no_sources(tmp_path: Path) -> None:
    ladder(tmp_path)
    control(tmp_path, 2000, 1.31)
    assert "sources" not in [found.key for found in report_sections(find_runs(tmp_path))]
    assert next(csv.DictReader(io.StringIO(stages_csv(find_runs(tmp_path)))))["by_source"] == ""


def test_booking_the_same_records_again_changes_nothing(mixed: Path) -> None:
    with Ledger(mixed / "quick/ledger.db") as opened:
        before = opened.last_entry()
        records = [
            {key: value for key, value in dict(row).items() if key not in ("entry", "sha256", "stage")}
            | {"event": "evaluation", "seconds": 1.0, "by_source": json.loads(row["by_source"])}
            for row in opened.query("SELECT * FROM evaluation")
            if row["stage"] == "1-2m"
        ]
        opened.books("1-2m").sync(records)
        assert opened.last_entry() == before
