"""stages/data/corpus.py: the documents of a source, and the split of each."""

import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import fsspec
import fsspec.utils
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from pydantic import ValidationError

from stages.corpus import corpus, records
from stages.corpus.corpus import content_hash, is_validation, measure_text, open_corpus
from stages.corpus.files import NOT_STDLIB
from stages.data.errors import DataError
from stages.data.spec import SPLITS, DataSpec
from tests.stages.corpus.small_source import texts
from tests.stages.corpus.test_webdataset import write_tar


def names(spec: DataSpec) -> list[str]:
    return [file.name for file in open_corpus(spec).files]


def test_each_file_of_a_folder_is_a_document_except_hidden_and_empty_ones(tmp_path: Path) -> None:
    for name, text in {
        "b.txt": "second\r\n",
        "a/z.md": "first",
        "a/.hidden": "no",
        ".git/config": "no",
        "empty": "",
        "blank": " \n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    assert texts(DataSpec(source=str(tmp_path))) == ["first", "second\r\n"]
    assert texts(DataSpec(source=str(tmp_path), include="**/*.md")) == ["first"]
    assert texts(DataSpec(source=f"{tmp_path}/*.txt")) == ["second\r\n"]
    assert names(DataSpec(source=f"{tmp_path}/a/*")) == ["z.md"]
    (tmp_path / "a").rename(tmp_path / "a[b]*")
    assert texts(DataSpec(source=f"{tmp_path}/a[b]*")) == ["first"]


@given(st.text(st.sampled_from("ab \n\r\té€𝄞"), max_size=300))
def test_a_file_is_cut_into_pieces_of_whole_lines_that_join_to_its_text(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE_CHARACTERS", 20)
        with fsspec.open("memory://pieces.txt", "wb") as file:
            file.write(text.encode())
        found = open_corpus(DataSpec(source="memory://pieces.txt"))
        pieces = [text for text in found._read(found.files[0]) if isinstance(text, str)]
    assert "".join(pieces) == text
    for piece in pieces[:-1]:
        assert 20 <= len(piece) < 40
        assert piece.endswith("\n") or max(map(len, piece.split("\n"))) >= 20


def test_a_long_file_of_a_folder_is_also_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONG_FILE_BYTES", 50_000)
    text = "one line of text\n" * 4000
    (tmp_path / "long.txt").write_text(text)
    (tmp_path / "short.txt").write_text("short")
    found = texts(DataSpec(source=str(tmp_path)))
    assert found.pop() == "short"
    assert len(found) == 5
    assert "".join(found) == text


def test_a_separator_cuts_wherever_it_occurs_and_one_that_does_not_is_reported_before_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("one\n\n==\ntwo" + "x" * 1024 * 1024 + "==three====")
    spec = DataSpec(source=str(tmp_path / "text"), document_separator="==")
    assert texts(spec) == ["one\n\n", "\ntwo" + "x" * 1024 * 1024, "three"]
    monkeypatch.setattr(records, "LONGEST_DOCUMENT_CHARACTERS", 1000)
    (tmp_path / "text").write_text("x" * 2000)
    with pytest.raises(DataError, match=r"data\.document_separator: '==' does not occur in 2,000 characters"):
        texts(spec)


def test_a_byte_order_mark_before_any_document_is_not_part_of_it_whatever_holds_the_document(tmp_path: Path) -> None:
    marked, folder = ["\ufefffirst", "\ufeffsecond\ufeff"], tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text(marked[0])
    (folder / "b.txt.gz").write_bytes(gzip.compress(marked[1].encode()))
    (tmp_path / "one.txt").write_text("==".join(marked))
    (tmp_path / "one.txt.gz").write_bytes(gzip.compress("==".join(marked).encode()))
    lines = [b"\xef\xbb\xbf" + json.dumps({"text": text}).encode() for text in marked]
    (tmp_path / "lines.jsonl").write_bytes(b"\xef\xbb\xbf\n" + b"\n".join(lines))
    parquet.write_table(pyarrow.table({"text": marked}), tmp_path / "rows.parquet")
    write_tar(f"{tmp_path}/samples.tar", {"a.txt": marked[0].encode(), "b.json": lines[1]})
    for name in ("folder", "one.txt", "one.txt.gz", "lines.jsonl", "rows.parquet", "samples.tar"):
        separator = "==" if name.startswith("one.") else None
        found = texts(DataSpec(source=str(tmp_path / name), document_separator=separator))
        assert found == ["first", "second\ufeff"], name
    assert "".join(texts(DataSpec(source=f"{tmp_path}/one.txt"))).startswith("fi"), "also without a separator"


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    for folder in (source, elsewhere / "more"):
        folder.mkdir(parents=True)
    (elsewhere / "a.txt").write_text("linked")
    (elsewhere / "more/b.txt").write_text("in a linked folder")
    (source / "a.txt").symlink_to(elsewhere / "a.txt")
    (source / "folder").symlink_to(elsewhere, target_is_directory=True)
    (source / "again").symlink_to("folder")
    linked = [f"{name}/{path}" for name in ("again", "folder") for path in ("a.txt", "more/b.txt")]
    assert names(DataSpec(source=str(source))) == ["a.txt", *linked]
    assert texts(DataSpec(source=str(source))) == ["linked", *["linked", "in a linked folder"] * 2]
    assert names(DataSpec(source=f"{source}/*.txt")) == ["a.txt"]
    assert names(DataSpec(source=str(source / "folder"), include="*.txt")) == ["a.txt"]
    assert texts(DataSpec(source=str(source / "a.txt"))) == ["linked"]
    assert open_corpus(DataSpec(source=str(source))).files[0].num_bytes == len("linked")


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"a/loop": ".."}, r"/loop cannot be read \(Too many levels of symbolic links\). Fix it, or remove it if"),
        ({"a/loop": ".", "a/again": "."}, r"/(loop|again) cannot be read \(Too many levels of symbolic links\)"),
        ({"a/to_b": "../b", "b/to_a": "../a"}, r"/to_[ab] cannot be read \(Too many levels of symbolic links\)"),
        ({"self": "self"}, r"/self cannot be read \(Too many levels of symbolic links\)"),
        ({"a/gone": "/no/such/file"}, r"/a/gone cannot be read \(No such file"),
    ],
)
def test_a_link_that_cannot_be_followed_is_an_error(tmp_path: Path, links: dict[str, str], message: str) -> None:
    for folder in ("a", "b", ".git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text.txt").write_text(folder)
    (tmp_path / ".git/loop").symlink_to(".")
    (tmp_path / ".#locked-by-an-editor").symlink_to("nobody@nowhere")
    assert len(texts(DataSpec(source=str(tmp_path)))) == 2, "hidden links are left out as hidden files are"
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    with pytest.raises(DataError, match=rf"data\.source: .*{message}"):
        open_corpus(DataSpec(source=str(tmp_path)))


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text("text")
    scan = os.scandir

    def refuse(path: str) -> Iterator[os.DirEntry[str]]:  # root may read any folder
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"data\.source: the folder .*/closed cannot be read \(Permission denied\)"):
        open_corpus(DataSpec(source=str(tmp_path)))


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_each_json_line_is_a_document(tmp_path: Path, ending: str) -> None:
    if ending == ".zst" and "zst" not in fsspec.utils.compressions:
        pytest.skip("backports.zstd is not installed")
    path = tmp_path / f"d.jsonl{ending}"
    lines = [{"body": "één\r\n", "id": 7}, {"body": ""}, {"body": "two\n\nparagraphs"}]
    data = "\n\n".join(json.dumps(line) for line in lines).encode()
    with fsspec.open(path, "wb", compression="infer") as file:
        file.write(data[:20])
    with fsspec.open(path, "ab", compression="infer") as file:  # several frames, as parallel compressors write them
        file.write(data[20:])
    assert texts(DataSpec(source=str(path), text_key="body")) == ["één\r\n", "two\n\nparagraphs"]
    assert len(texts(DataSpec(source=str(tmp_path), text_key="body"))) == 2, "in a folder too"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "cut of', r"data\.source: .*d\.jsonl line 2 is not JSON"),
        (
            '{"texts": "a"}',
            r"data\.text_key: .*d\.jsonl line 2 is {\"texts\":\"a\"}; it must be a JSON object with a text",
        ),
        ('{"text": 1}', r"data\.text_key: .* line 2 is {\"text\":1}; .* a text under 'text'"),
        ('["text"]', r"data\.text_key: .* line 2 is \[\"text\"\]; it must be a JSON object"),
    ],
)
def test_a_line_that_is_not_a_document_is_an_error_and_not_skipped(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        texts(DataSpec(source=str(tmp_path / "d.jsonl")))


def test_the_name_of_a_file_says_how_it_is_read_or_that_it_holds_no_text(tmp_path: Path) -> None:
    line = b'{"text": "one"}\n'
    for number, name in enumerate(["d.JSONL", "d.ndjson", "d.json.gz", "d.JSON.GZ"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(gzip.compress(line) if name.lower().endswith(".gz") else line)
        for source in (folder, folder / name):
            assert texts(DataSpec(source=str(source))) == ["one"], name
    for name in ("docs.tbz2", "docs.tar.bz2", "text.ZIP", "docs.parquet.gz", "docs.csv", "train.bin", "docs.json"):
        (tmp_path / name).write_text("the beginning says nothing")
        with pytest.raises(DataError, match=rf"data\.source: .*/{name} ends in \.\w+, but growctl reads UTF-8"):
            open_corpus(DataSpec(source=str(tmp_path / name)))


@pytest.mark.parametrize(("others", "dtype"), [((), "--dtype uint16 "), (("train.idx",), "")])
def test_a_bin_is_refused_with_the_command_that_imports_it(tmp_path: Path, others: tuple[str, ...], dtype: str) -> None:
    for name in ("train.bin", *others):
        (tmp_path / name).touch()
    command = (
        f"growctl data import {tmp_path}/train.bin {dtype}--tokenizer TOKENIZER --output DIR; then data.source=DIR"
    )
    with pytest.raises(DataError, match=re.escape(command)):
        open_corpus(DataSpec(source=str(tmp_path / "train.bin")))


def test_a_file_without_text_in_a_folder_may_be_left_out_and_json_there_is_text(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("[1]")
    assert texts(DataSpec(source=str(tmp_path))) == ["[1]"]
    (tmp_path / "a.zip").touch()
    with pytest.raises(DataError, match=r"/a\.zip ends in \.zip, .* or data\.include to others"):
        open_corpus(DataSpec(source=str(tmp_path)))


@pytest.mark.parametrize("separator", [None, "====="])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_text_that_is_not_utf_8_is_an_error_that_names_the_line(
    tmp_path: Path, name: str, separator: str | None
) -> None:
    content = b"=====\n" * 50_000 + b"caf\xe9\n" + b"=====\n" * 50_000
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=r"a\.txt\S* line 50,001 is not UTF-8 text \(byte 0xe9\)") as error:
        texts(DataSpec(source=str(tmp_path / name), document_separator=separator))
    command = f"; if it is Latin-1, convert it: iconv -f latin1 -t utf-8 {tmp_path}/a.txt > NEW"
    assert str(error.value).endswith("(byte 0xe9)" if name.endswith(".gz") else command)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"text" * 1000)[:-10])
    with pytest.raises(DataError, match=r"data\.source: .*/cut\.gz cannot be read"):
        texts(DataSpec(source=str(tmp_path / "cut.gz"), document_separator=separator))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no/such/file.txt", r"data\.source: '/.*/no/such/file\.txt' does not exist; set it to python-stdlib, a file"),
        ("no/such/*.txt", r"data\.source: no file matches '/.*/no/such/\*\.txt'"),
        ("nosuchprotocol://x", r"data\.source: 'nosuchprotocol://x' cannot be read \(Protocol not known"),
        ("{tmp}", r"data\.include: no file of the folder .* matches '\*\*/\*'"),
    ],
)
def test_a_missing_source_is_an_error(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_corpus(DataSpec(source=source.format(tmp=tmp_path)))


def test_the_split_depends_only_on_the_text_and_has_about_the_requested_size() -> None:
    contents = [content_hash(f"text {number}".encode()) for number in range(20_000)]
    kept = {content for content in contents if is_validation(content, 0.05)}
    assert abs(len(kept) / len(contents) - 0.05) < 0.005
    assert kept <= {content for content in contents if is_validation(content, 0.1)}, "a larger share keeps the smaller"
    fixed = [number for number in range(20) if is_validation(contents[number], 0.2)]
    assert fixed == [0, 19], "a document that moved would leak into training"


def test_every_document_is_in_exactly_one_split_and_progress_adds_up_to_the_file_sizes(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
    found = open_corpus(DataSpec(source=str(tmp_path), validation_fraction=0.3))
    for split in SPLITS:
        passed: list[int] = []
        list(found.documents(found.files, split, passed.append))
        assert sum(passed) == found.num_bytes
    train, validation = ({d.text for d in found.documents(found.files, split)} for split in SPLITS)
    assert train
    assert validation
    assert not train & validation
    assert len(train | validation) == 50


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40))
def test_shards_are_consecutive_files_up_to_a_size(num_bytes: list[int]) -> None:
    files = tuple(corpus.SourceFile(str(i), str(i), size, "") for i, size in enumerate(num_bytes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "SHARD_BYTES", 20)
        shards = corpus.Corpus(DataSpec(source="x"), None, files, True).shards()
    assert tuple(file for shard in shards for file in shard) == files
    for shard in shards:
        assert shard
        assert len(shard) == 1 or sum(file.num_bytes for file in shard) <= 20


def test_the_standard_library_source_excludes_its_tests() -> None:
    found = open_corpus(DataSpec(source="python-stdlib"))
    names = [file.name for file in found.files]
    assert names == sorted(names)
    assert {"argparse.py", "asyncio/tasks.py", "json/decoder.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)
    assert not [name for name in names if NOT_STDLIB & set(name.split("/")[:-1])]
    assert 5e6 < found.num_bytes < 40e6
    assert all(file.version == "" for file in found.files), "the same wherever this Python is installed"


def test_a_size_for_an_existing_tokenizer_and_values_out_of_range_are_rejected() -> None:
    with pytest.raises(ValidationError, match="leave out one of the two"):
        DataSpec(source="x", tokenizer="gpt2", vocab_size=1000)
    for values in (
        {"vocab_size": 256},
        {"validation_fraction": 0.0},
        {"validation_fraction": 1.0},
        {"workers": 0},
        {"document_separator": ""},
    ):
        with pytest.raises(ValidationError, match=next(iter(values))):
            DataSpec.model_validate({"source": "x", **values})


def test_a_measure_reads_so_much_of_many_files_and_says_what_share_that_is(tmp_path: Path, monkeypatch) -> None:
    for number in range(50):
        (tmp_path / f"{number}.txt").write_text(f"{number} " * 100)
    monkeypatch.setattr(corpus, "MEASURED_CHARACTERS", 5000)
    size = measure_text(DataSpec(source=str(tmp_path), validation_fraction=0.2))
    assert len(size.documents) < 20
    assert size.share == pytest.approx(len(size.documents) / 50, rel=0.3)
