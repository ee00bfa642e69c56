"""The tables of stages and of the sources of a mixture, and the warning of small validation sets."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from growctl.report.documents import report_document, stages_csv
from growctl.report.sections import _STAGE_COLUMNS, report_sections, stage_section, validation_warning
from growctl.runs.find import find_runs
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, ladder
from tests.growctl.report.rendered import lines_of

MIXTURE: dict[str, Any] = {"data.mixture": {"books": 6.0, "code": 2.0}}


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({"num_layers": (2, 2)}, {}),
        ({"num_layers": (None, 12)}, {"layers": ["-", "12"]}),
        ({"sequence_length": (50, 100)}, {"batch": ["20", "10"], "context": ["50", "100"]}),
        ({"sequence_length": (50, 50), "tokens_per_step": (1000, 100_000)}, {"batch": ["20", "2,000"]}),
    ],
)
def test_the_table_names_depth_batch_and_context_where_they_change_within_a_run(tmp_path, changes, extra):
    ladder(tmp_path)
    [run] = find_runs(tmp_path)
    stages = tuple(
        replace(stage, **{name: values[number] for name, values in changes.items()})
        for number, stage in enumerate(run.stages)
    )
    [table] = stage_section([replace(run, stages=stages)]).parts
    headings = [column.heading for column in table.columns]
    assert headings == ["stage", *extra, *(column.heading for column in _STAGE_COLUMNS)]
    for number, heading in enumerate(extra, 1):
        assert [row[number].text for row in table.groups[0].rows] == extra[heading]


def source_rows(runs):
    [found] = [section for section in report_sections(runs) if section.key == "sources"]
    return [[cell.text for cell in row] for group in found.parts[0].groups for row in group.rows]


def test_a_mixture_has_the_tokens_epochs_and_losses_of_each_source_by_stage_and_for_controls(tmp_path):
    FakeRun(tmp_path, "quick", [SMALL, LARGE], **MIXTURE).train(0, 1.42).train(1, 1.28, start=1.42, killed_at=240)
    control(tmp_path, 2000, 1.31, **MIXTURE)
    found = find_runs(tmp_path)
    assert source_rows(found) == [
        ["0-800k", "books", "750k", "7.5", "1.3950", "2.0486"],
        ["0-800k", "code", "250k", "2.5", "1.4950", "2.0486"],
        ["1-2m", "books", "450k", "4.5", "1.2550", "1.8466"],
        ["1-2m", "code", "150k", "1.5", "1.3550", "1.8466"],
        ["0-2m", "books", "1.5M", "15", "1.2850", "1.8899"],
        ["0-2m", "code", "500k", "5", "1.3850", "1.8899"],
    ]
    recorded = report_document(found).runs[0].stages[1].by_source
    assert recorded["books"]["trained_tokens"] == 450_000
    assert json.loads(list(csv.DictReader(io.StringIO(stages_csv(found))))[1]["by_source"]) == recorded


def test_an_unfinished_stage_has_the_figures_of_its_last_evaluation_and_one_text_no_sources(tmp_path):
    FakeRun(tmp_path, "quick", [SMALL, LARGE], **MIXTURE).train(0, 1.42).train(1, None, start=1.42)
    assert [row[:3] for row in source_rows(find_runs(tmp_path))[2:]] == [
        ["1-2m (unfinished)", "books", "225k"],
        ["1-2m (unfinished)", "code", "75k"],
    ]
    ladder(tmp_path / "one")
    assert "sources" not in [section.key for section in report_sections(find_runs(tmp_path / "one"))]


@pytest.mark.parametrize(
    ("sizes", "warned"),
    [
        ({"a": (6, 9_000), "b": (6, 9_000)}, "warning: Validation has 6 documents with 9,000 tokens, and an "),
        ({"few": (6, 9_000), "many": (50, 100_000)}, "warning: few: Validation has 6 documents"),
        ({"a": None}, None),
    ],
    ids=["both", "one", "unknown"],
)
def test_runs_with_a_small_validation_set_share_one_warning_which_names_them_if_others_have_a_large_one(
    tmp_path, sizes, warned
):
    for name, size in sizes.items():
        FakeRun(tmp_path, name, [SMALL, LARGE], validation=size).train(0, 1.42)
    found = find_runs(tmp_path)
    lines = [line for line in lines_of(report_sections(found)) if line.startswith("warning")]
    assert len(lines) == (warned is not None)
    assert warned is None or lines[0].startswith(warned)
    for run in report_document(found).runs:
        assert (run.validation_documents, run.validation_tokens) == (sizes[run.name] or (None, None))
        assert len(run.warnings) == (sizes[run.name] == (6, 9_000))


@pytest.mark.parametrize(
    ("size", "max_sequences", "said"),
    [
        ((50, 100_000), None, "None"),
        ((80, 500_000), 1563, "None"),
        ((49, 100_000), None, "Validation has 49 documents with 100,000 tokens, and an evaluation reads 100,000"),
        ((50, 99_999), None, "with fewer than 50 documents or 100,000 tokens, a difference of 0.05 nats"),
        ((80, 500_000), 1562, "Set evaluation.max_sequences to 1,563 or more."),
        ((80, 500_000), 10, "an evaluation reads 640 of them"),
    ],
)
def test_a_validation_set_that_is_small_or_little_of_which_is_read_is_warned_of(tmp_path, size, max_sequences, said):
    few: dict[str, Any] = {"evaluation.max_sequences": max_sequences}
    stages = [SMALL, replace(LARGE, sequence_length=64)]
    FakeRun(tmp_path, "a", stages, validation=size, **few).train(0, 1.42)
    assert said in str(validation_warning(find_runs(tmp_path)[0]))
