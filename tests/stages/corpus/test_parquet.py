"""stages/data/parquet.py: the text column of Parquet files, streamed."""

import io
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest
from pyarrow import parquet as arrow_parquet

from stages.corpus.records import BadRecord, parquet_texts
from stages.data.errors import DataError
from stages.data.spec import DataSpec
from tests.stages.corpus.small_source import texts


def write(path: str, columns: dict[str, Any], **options: Any) -> None:
    with fsspec.open(path, "wb") as file:
        arrow_parquet.write_table(pyarrow.table(columns), file, **options)


def test_each_row_is_a_document_of_the_text_column_in_folders_globs_and_urls(tmp_path: Path) -> None:
    columns = {"id": [1, 2, 3], "body": ["één\r\n", "", "three"]}
    for folder in (str(tmp_path), "memory://parquet"):
        write(f"{folder}/b/part-1.parquet", columns | {"body": pyarrow.array(columns["body"]).dictionary_encode()})
        write(f"{folder}/part-0.parquet", columns, row_group_size=2)
        assert texts(DataSpec(source=folder, text_key="body")) == ["één\r\n", "three"] * 2
    assert texts(DataSpec(source=f"{tmp_path}/*.parquet", text_key="body")) == ["één\r\n", "three"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"texts": ["a"], "id": [1]},
            r"d\.parquet has no column of text 'text'; set the column that holds the text: texts",
        ),
        ({"text": [1], "body": ["a"]}, "has no column of text 'text'; set the column that holds the text: body"),
        ({"text": ["a", None]}, r"d\.parquet row 2 has null under 'text'; it must have a text"),
    ],
)
def test_a_parquet_file_without_the_text_is_one_error_that_names_the_columns(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    write(f"{tmp_path}/d.parquet", columns)
    with pytest.raises(DataError, match=rf"^data\.text_key: .*{message}"):
        texts(DataSpec(source=str(tmp_path)))


def test_a_damaged_parquet_file_and_a_missing_pyarrow_are_one_error_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d.parquet").write_bytes(b"PAR1 and no footer")
    with pytest.raises(DataError, match=r"data\.source: .*/d\.parquet cannot be read"):
        texts(DataSpec(source=str(tmp_path)))
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    with pytest.raises(DataError, match=r"/d\.parquet cannot be read \(.*\)\. To read it, `pip install pyarrow`"):
        texts(DataSpec(source=str(tmp_path)))


def test_bytes_in_a_text_column_that_are_not_utf8_are_a_bad_record() -> None:
    values = pyarrow.array([b"fine", b"caf\xe9"]).cast(pyarrow.string(), safe=False)
    file = io.BytesIO()
    arrow_parquet.write_table(pyarrow.table({"text": values}), file)
    first, second = parquet_texts("d.parquet", file, "text")
    assert first == "fine"
    assert isinstance(second, BadRecord)
    assert (second.kind, second.place) == ("not UTF-8", "d.parquet row 2")


@pytest.mark.slow
def test_only_the_text_column_is_read_and_memory_does_not_grow_with_the_row_group(tmp_path: Path) -> None:
    """One row group with 80 MB of text and 80 MB of another column: reading takes neither."""
    path = tmp_path / "d.parquet"
    column = [f"{number} " * 2_000 for number in range(10_000, 16_500)]
    write(str(path), {"other": column, "text": column}, compression="none", use_dictionary=False)
    assert arrow_parquet.ParquetFile(path).metadata.num_row_groups == 1
    allocated = pyarrow.default_memory_pool()
    before, most = allocated.bytes_allocated(), 0
    tracemalloc.start()
    with path.open("rb") as stream:
        for text in parquet_texts("d", stream, "text"):
            assert isinstance(text, str)
            most = max(most, allocated.bytes_allocated() - before)
    most += tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 30e6
