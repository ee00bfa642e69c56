"""Runs of different datasets share no table and no axis of losses, and bits per byte compare them where they may."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.analysis.data_groups import comparable_datasets, data_document, data_groups
from growctl.report.sections import report_sections
from growctl.runs.find import find_runs
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun
from tests.growctl.report.invented_reports import run_report

FINGERPRINTS = st.sampled_from(["f00d", "beef"])
TEXTS = st.dictionaries(st.just("data.validation_text"), st.sampled_from(["a", "b"]))


@given(st.lists(st.tuples(FINGERPRINTS, TEXTS, st.sampled_from([None, "single-jump"])), min_size=1, max_size=6))
def test_every_run_is_in_one_group_and_runs_share_a_group_if_losses_compare_them(runs):
    reports = [
        run_report(f"run-{number}", kind=kind, dataset_fingerprint=fingerprint, conditions=text)
        for number, (fingerprint, text, kind) in enumerate(runs)
    ]
    groups = data_groups(reports)
    assert sorted(name for dataset in groups for name in dataset.runs) == [each.name for each in reports]
    for dataset, members in groups.items():
        assert {each.dataset_fingerprint for each in members} == {dataset.fingerprint}
    assert sum(map(len, comparable_datasets(groups))) == len(groups)
    warning = data_document(reports).warning
    assert (warning is None) == (len(groups) == 1)
    for dataset, members in groups.items():
        ladders = [each.name for each in members if not each.control]
        assert warning is None or f"{dataset.name}: {', '.join(ladders or dataset.runs)}" in warning


def trained(runs, name, data, text):
    hashes: Any = {"data.tokenizer": data, "data.train_text": "same", "data.validation_text": text}
    FakeRun(runs, name, [SMALL, LARGE], data=data, **hashes).train(0, 1.7).train(1, 1.6)


def sections(runs):
    return {section.key: section.parts for section in report_sections(find_runs(runs))}


@pytest.mark.parametrize(
    ("text", "compared"),
    [
        ("same", "Bits per byte compare data (beef) and data (f00d), which validate on the same text."),
        ("other", "each dataset by itself. Nothing here compares them."),
        (None, "each dataset by itself. Nothing here compares them."),
    ],
)
def test_two_tokenizers_are_split_warned_of_and_compared_in_bits_per_byte_on_one_text(tmp_path, text, compared):
    trained(tmp_path, "coarse", "beef", text)
    trained(tmp_path, "fine", "f00d", "same")
    found = sections(tmp_path)
    [warning] = [part.text for part in found["warnings"] if part.text.startswith("These runs are of 2 datasets")]
    assert "cannot be compared (data (beef): coarse; data (f00d): fine)" in warning
    assert compared in warning
    assert [{series.group for series in chart.series} for chart in found["compute"]] == [{"coarse"}, {"fine"}]
    tables = found["stages"][1::2]
    assert [[rows.heading for rows in table.groups] for table in tables] == [["coarse"], ["fine"]]
    bits = [row[-1].value for table in tables for rows in table.groups for row in rows.rows]
    assert bits == pytest.approx([loss / 0.6931472 for loss in (1.7, 1.6, 1.7, 1.6)])
