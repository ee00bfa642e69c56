"""stages/corpus/corpus.py and files.py: the files of a source, its documents, and the split of each."""

import os
import re
from typing import Any
from unittest.mock import Mock

import pytest

from stages.corpus import corpus
from stages.corpus.corpus import content_hash, is_validation, measure_text, open_corpus
from stages.corpus.files import NOT_STDLIB
from stages.data.errors import DataError
from stages.data.spec import SPLITS, DataSpec
from tests.stages.corpus.small_source import texts


def names(source: object, **values: Any) -> list[str]:
    return [file.name for file in open_corpus(DataSpec(source=str(source), **values)).files]


def test_a_folder_or_glob_has_its_files_without_hidden_ones_and_each_is_a_document(tmp_path):
    contents = {"b.txt": "second\r\n", "a/z.md": "first", "empty": "", "blank": " \n", "settings.json": "[1]"}
    for name, text in (contents | {"a/.hidden": "no", ".git/config": "no"}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    assert names(tmp_path) == sorted(contents)
    assert texts(DataSpec(source=str(tmp_path))) == ["first", "second\r\n", "[1]"]
    assert texts(DataSpec(source=str(tmp_path), include="**/*.md")) == ["first"]
    assert names(f"{tmp_path}/*.txt") == ["b.txt"]
    (tmp_path / "a").rename(tmp_path / "a[b]*")
    assert names(f"{tmp_path}/a[b]*") == ["z.md"]
    with pytest.raises(DataError, match=r"data\.include: no file of the folder .* matches '\*\*/\*\.py'"):
        names(tmp_path, include="**/*.py")


def test_links_to_files_and_folders_are_followed(tmp_path):
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    for folder in (source, elsewhere / "more"):
        folder.mkdir(parents=True)
    (elsewhere / "a.txt").write_text("linked")
    (elsewhere / "more/b.txt").write_text("in a linked folder")
    (source / "a.txt").symlink_to(elsewhere / "a.txt")
    (source / "folder").symlink_to(elsewhere, target_is_directory=True)
    (source / "again").symlink_to("folder")
    assert names(source) == ["a.txt", *(f"{name}/{file}" for name in ("again", "folder") for file in names(elsewhere))]
    assert texts(DataSpec(source=str(source))) == ["linked", *["linked", "in a linked folder"] * 2]
    assert names(f"{source}/*.txt") == names(source / "folder", include="*.txt") == ["a.txt"]
    assert open_corpus(DataSpec(source=str(source))).files[0].num_bytes == len("linked")


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ({"a/loop": ".."}, r"/loop cannot be read \(Too many levels of symbolic links\)\. Fix it, or remove it if"),
        ({"a/to_b": "../b", "b/to_a": "../a"}, r"/to_[ab] cannot be read \(Too many levels"),
        ({"a/gone": "/no/such/file"}, r"/a/gone cannot be read \(No such file"),
    ],
)
def test_a_link_that_cannot_be_followed_is_an_error_unless_it_is_hidden(tmp_path, links, message):
    for folder in ("a", "b", ".git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text.txt").write_text(folder)
    (tmp_path / ".git/loop").symlink_to(".")
    (tmp_path / ".#locked-by-an-editor").symlink_to("nobody@nowhere")
    assert names(tmp_path) == ["a/text.txt", "b/text.txt"]
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    with pytest.raises(DataError, match=rf"data\.source: .*{message}"):
        names(tmp_path)


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_skipped(tmp_path, monkeypatch):
    error = PermissionError(13, "Permission denied", f"{tmp_path}/closed")
    monkeypatch.setattr(os, "scandir", Mock(side_effect=error))  # root may read any folder
    with pytest.raises(DataError, match=r"data\.source: the folder .*/closed cannot be read \(Permission denied\)"):
        names(tmp_path)


@pytest.mark.parametrize(
    ("name", "beside", "way_out"),
    [
        *((name, "", "") for name in ("docs.tar.bz2", "text.ZIP", "docs.csv")),
        ("docs.json", "", ""),
        ("train.bin", "", "import {} --dtype uint16 --tokenizer TOKENIZER --output DIR; then data.source=DIR"),
        ("train.bin", "train.idx", "import {} --tokenizer TOKENIZER --output DIR; then data.source=DIR"),
    ],
)
def test_a_file_that_holds_no_text_by_its_name_is_refused(tmp_path, name, beside, way_out):
    for each in filter(None, (name, beside)):
        (tmp_path / each).write_text("the beginning says nothing")
    message = rf"data\.source: .*/{name} ends in \.\w+, but growctl reads UTF-8.*" + re.escape(way_out)
    for source in (tmp_path / name, tmp_path)[: 1 if name == "docs.json" else 2]:
        with pytest.raises(DataError, match=message.replace(re.escape("{}"), str(tmp_path / name))):
            names(source)


def test_the_split_depends_only_on_the_text_and_has_about_the_requested_size():
    contents = [content_hash(f"text {number}".encode()) for number in range(20_000)]
    kept = {content for content in contents if is_validation(content, 0.05)}
    assert abs(len(kept) / len(contents) - 0.05) < 0.005
    assert kept <= {content for content in contents if is_validation(content, 0.1)}, "a larger share keeps the smaller"
    fixed = [number for number in range(20) if is_validation(contents[number], 0.2)]
    assert fixed == [0, 19], "a document that moved would leak into training"


def test_the_standard_library_source_excludes_its_tests():
    found = open_corpus(DataSpec(source="python-stdlib"))
    names = [file.name for file in found.files]
    assert {"argparse.py", "asyncio/tasks.py", "json/decoder.py"} <= set(names)
    assert not [name for name in names if NOT_STDLIB & set(name.split("/")[:-1])]


def test_a_measure_counts_a_small_text_and_tells_what_share_of_a_large_one_it_read(tmp_path, monkeypatch):
    for number in range(50):
        (tmp_path / f"{number}.txt").write_text(f"{number} " * 100)
    spec = DataSpec(source=str(tmp_path), validation_fraction=0.2)
    found, whole = open_corpus(spec), measure_text(spec)
    assert whole.share == 1
    for split in SPLITS:
        sizes = [document.num_bytes for document in found.documents(found.files, split)]
        assert whole.split(split, 0.2) == (len(sizes), sum(sizes))
    monkeypatch.setattr(corpus, "MEASURED_CHARACTERS", 5000)
    part = measure_text(spec)
    assert len(part.documents) == 10
    assert part.share == sum(document.num_bytes for document in part.documents) / found.num_bytes
    assert sum(part.split(split, 0.2)[0] for split in SPLITS) == pytest.approx(50, rel=0.1)
