"""The table of stages: what it shows of ladders that change more than their tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from growctl.report.sections import _STAGE_COLUMNS, stage_section
from growctl.runs.find import find_runs
from growctl.text.section import Table
from tests.growctl.invented_runs import TOKENS_PER_STEP, ladder


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({}, {}),
        ({"num_layers": (2, 2)}, {}),
        ({"num_layers": (2, 12)}, {"layers": ["2", "12"]}),
        ({"num_layers": (None, 12)}, {"layers": ["-", "12"]}),
        ({"sequence_length": (50, 100)}, {"batch": ["20", "10"], "context": ["50", "100"]}),
        ({"sequence_length": (50, 50), "tokens_per_step": (1000, 100_000)}, {"batch": ["20", "2,000"]}),
    ],
)
def test_the_table_names_depth_batch_and_context_where_they_change_within_a_run(
    tmp_path: Path, changes: dict[str, tuple[Any, Any]], extra: dict[str, list[str]]
) -> None:
    ladder(tmp_path)
    [run] = find_runs(tmp_path)
    assert {stage.tokens_per_step for stage in run.stages} == {TOKENS_PER_STEP}
    stages = tuple(
        replace(stage, **{name: values[number] for name, values in changes.items()})
        for number, stage in enumerate(run.stages)
    )
    [table] = stage_section([replace(run, stages=stages)]).parts
    assert isinstance(table, Table)
    always = [column.heading for column in _STAGE_COLUMNS]
    headings = [column.heading for column in table.columns]
    assert headings == ["stage", *extra, *always]
    for number, heading in enumerate(headings[1 : len(extra) + 1], 1):
        assert [row[number].text for row in table.groups[0].rows] == extra[heading]
