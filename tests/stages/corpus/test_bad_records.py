"""stages/data/bad_records.py: records without a document, which stop a preparation or are counted."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from stages.corpus import corpus as corpus_module
from stages.corpus.corpus import open_corpus
from stages.corpus.prepare import prepare
from stages.corpus.tasks import Progress
from stages.data.dataset import read_dataset_manifest, verify_dataset
from stages.data.errors import DataError
from stages.data.spec import DataSpec, SkippedRecords
from tests.stages.corpus import small_source

COUNTS = {"not JSON": 2, "no text": 3, "null": 2, "not UTF-8": 3}
PLACES = ("a.jsonl line 2 (not JSON)", "a.jsonl line 3 (no text)", "a.jsonl line 4 (no text)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A hundred documents in files of every kind, with ten bad records among them, and empty ones, which are not."""
    source = tmp_path / "texts"
    source.mkdir()
    good = [json.dumps({"text": f"Document {number} of the lines."}).encode() for number in range(60)]
    bad = [b'{"text": "cut of', b'{"texts": "a"}', b'["text"]', b'{"text": null}', b'{"text": "caf\xe9"}']
    (source / "a.jsonl").write_bytes(b"\n".join([good[0], *bad, b"", b'{"text": ""}', *good[1:]]))
    (source / "b.jsonl").write_bytes(b"\n".join([b"{}", b"}", *good[:1]]))
    rows = [f"Document {number} of the rows." for number in range(40)]
    parquet.write_table(pyarrow.table({"text": [*rows, None]}), source / "c.parquet")
    (source / "d.txt").write_bytes("café".encode("latin-1"))
    (source / "e.txt").write_bytes(b"line\n" * 210_000 + b"caf\xe9\n" + b"line\n" * 10_000)
    return source


def spec_of(folder: Path, **values: Any) -> DataSpec:
    return small_source.spec_of(folder, on_bad_record="skip", **values)


@pytest.mark.slow
def test_skipped_records_are_counted_by_kind_named_and_independent_of_the_number_of_workers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 1000)
    log = tmp_path / "log.txt"
    datasets = [
        prepare(spec_of(folder, workers=workers), tmp_path / f"datasets-{workers}", progress=Progress(log))
        for workers in (1, 2)
    ]
    one, two = (verify_dataset(dataset) for dataset in datasets)
    assert one.skipped.counts == COUNTS
    assert [place.removeprefix(f"{folder}/") for place in one.skipped.first[:3]] == list(PLACES)
    assert one.skipped == two.skipped
    assert one.fingerprint == two.fingerprint
    assert "skipped 10 bad records (2 not JSON, 3 no text, 2 null, 3 not UTF-8): " in log.read_text()


def test_skipping_leaves_all_other_documents(folder: Path) -> None:
    (folder / "e.txt").unlink()
    lines = [f"Document {number} of the lines." for number in range(60)]
    rows = [f"Document {number} of the rows." for number in range(40)]
    assert small_source.texts(spec_of(folder)) == [*lines, lines[0], *rows]


@pytest.mark.slow
def test_more_bad_records_than_the_limit_are_one_error_and_leave_nothing(folder: Path, tmp_path: Path) -> None:
    message = r"data\.most_bad_records: the source has more than 9 bad records, such as .*/a\.jsonl line 2 \(not JSON\)"
    with pytest.raises(DataError, match=message):
        prepare(spec_of(folder, most_bad_records=9), tmp_path / "datasets")
    assert not [path for path in (tmp_path / "datasets").iterdir() if path.is_dir()]
    dataset = prepare(spec_of(folder, most_bad_records=10), tmp_path / "datasets")
    assert read_dataset_manifest(dataset).skipped.total == 10


def test_too_few_documents_because_the_others_were_skipped_says_which(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"texts": "a"}\n{"texts": "b"}\n{"text": "c"}\n')
    message = r"of the 1 document in .*\. growctl skipped 2 bad records \(2 no text\): .*/d\.jsonl line 1 \(no text\), "
    with pytest.raises(DataError, match=message):
        prepare(spec_of(tmp_path), tmp_path / "datasets")


def test_by_default_the_first_bad_record_stops_and_a_limit_without_skip_is_refused(folder: Path) -> None:
    corpus = open_corpus(DataSpec(source=str(folder)))
    with pytest.raises(DataError, match=r"data\.source: .*/a\.jsonl line 2 is not JSON"):
        list(corpus.documents(corpus.files, "train"))
    with pytest.raises(ValidationError, match=r"most_bad_records \(9\) limits on_bad_record: skip"):
        DataSpec(source="x", most_bad_records=9)


def test_skipped_records_read_as_a_sentence() -> None:
    records = SkippedRecords(counts={"null": 1, "not JSON": 1_200}, first=("a line 1 (null)",))
    assert str(records) == "1,201 bad records (1,200 not JSON, 1 null): a line 1 (null), ..."
    assert (
        str(SkippedRecords(counts={"null": 1}, first=("a line 1 (null)",))) == "1 bad record (1 null): a line 1 (null)"
    )
