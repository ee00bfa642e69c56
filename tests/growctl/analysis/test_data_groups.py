"""Runs of different datasets share no table and no axis of losses, and bits per byte compare them where they may."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.analysis.data_groups import comparable_datasets, data_document, data_groups
from growctl.report.chart import Chart
from growctl.report.sections import report_sections
from growctl.runs.find import find_runs
from growctl.text.section import Section, Table
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun
from tests.growctl.report.invented_pairs import FIELDS, run


@given(st.lists(FIELDS, min_size=1, max_size=6))
def test_every_run_is_in_one_group_and_runs_share_a_group_if_losses_compare_them(fields: list[dict[str, Any]]) -> None:
    runs = [run(f"run-{number}", **some) for number, some in enumerate(fields)]
    groups = data_groups(runs)
    assert sorted(name for dataset in groups for name in dataset.runs) == sorted(each.name for each in runs)
    for dataset, members in groups.items():
        assert {each.dataset_fingerprint for each in members} == {dataset.fingerprint}
    assert sum(map(len, comparable_datasets(groups))) == len(groups)
    assert (data_document(runs).warning is None) == (len(groups) == 1)


def trained(runs: Path, name: str, data: str, text: str | None, loss: float) -> None:
    hashes: dict[str, Any] = {"data.tokenizer": data, "data.train_text": "same", "data.validation_text": text}
    FakeRun(runs, name, [SMALL, LARGE], data=data, **hashes).train(0, loss + 0.1).train(1, loss)


def sections(runs: Path) -> dict[str, Section]:
    return {section.key: section for section in report_sections(find_runs(runs))}


@pytest.fixture
def two_tokenizers(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    trained(runs, "coarse", "beef", "validation", 1.6)
    trained(runs, "fine", "f00d", "validation", 1.2)
    return runs


def test_two_tokenizers_on_one_validation_text_are_split_warned_of_and_compared_in_bits_per_byte(
    two_tokenizers: Path,
) -> None:
    document = data_document(find_runs(two_tokenizers))
    datasets = [(dataset.name, list(dataset.runs)) for dataset in document.datasets]
    assert datasets == [("data (beef)", ["coarse"]), ("data (f00d)", ["fine"])]
    found = sections(two_tokenizers)
    [warning] = [part.text for part in found["warnings"].parts if getattr(part, "tone", "") == "warning"]
    assert warning.startswith("These runs are of 2 datasets, and losses and perplexities of different datasets cannot")
    assert "data (beef): coarse; data (f00d): fine" in warning
    assert "Bits per byte compare data (beef) and data (f00d), which validate on the same text." in warning
    charts = [part for part in found["compute"].parts if isinstance(part, Chart)]
    for chart, name in zip(charts, ("coarse", "fine"), strict=True):
        assert {series.group for series in chart.series} == {name}
    tables = [part for part in found["stages"].parts if isinstance(part, Table)]
    assert [[rows.heading for rows in table.groups] for table in tables] == [["coarse"], ["fine"]]
    assert [row[-1].value for table in tables for rows in table.groups for row in rows.rows] == pytest.approx(
        [loss / 0.6931472 for loss in (1.7, 1.6, 1.3, 1.2)]
    )


@pytest.mark.parametrize("text", ["other", None])
def test_nothing_compares_datasets_that_do_not_share_their_validation_text(tmp_path: Path, text: str | None) -> None:
    trained(tmp_path, "coarse", "beef", text, 1.6)
    trained(tmp_path, "fine", "f00d", "validation", 1.2)
    found = sections(tmp_path)
    assert len(found["compute"].parts) == 2
    [warning] = [part.text for part in found["warnings"].parts if getattr(part, "tone", "") == "warning"]
    assert warning.endswith("Nothing here compares them.")


def test_one_dataset_gets_no_warning_and_one_table(tmp_path: Path) -> None:
    trained(tmp_path, "a", "f00d", "validation", 1.6)
    trained(tmp_path, "b", "f00d", "validation", 1.2)
    found = sections(tmp_path)
    assert "warnings" not in found
    assert len(found["stages"].parts) == len(found["compute"].parts) == 1
