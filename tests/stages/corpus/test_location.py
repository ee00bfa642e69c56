"""stages/data/location.py: one spelling for every name of the same text, and what is said of a missing one."""

import os
from pathlib import Path

import pytest

from stages.corpus.location import local_path, missing_text, one_spelling
from stages.corpus.prepare import prepare
from stages.data.dataset import read_dataset_manifest
from stages.data.spec import DataSpec


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of texts beside links to it and to one of its files; the current directory is the folder above."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text(f"text {number} " * 20)
    (folder / "long.txt").write_text("a line of the long text\n" * 4000)
    (tmp_path / "linked").symlink_to(folder)
    (tmp_path / "linked.txt").symlink_to(folder / "long.txt")
    (tmp_path / "blob").write_text('{"text": "one"}\n')
    (folder / "d.jsonl").symlink_to(tmp_path / "blob")
    monkeypatch.chdir(tmp_path)
    return folder


SPELLINGS = {
    "{}": [
        *("{}", "{}/", "{}//", "file://{}", "local://{}", "texts", "./texts", "texts/", "texts/../texts", "~/texts"),
        *("linked", "./linked/", "linked/../texts"),
    ],
    "{}/long.txt": ["texts/long.txt", "linked/long.txt", "linked.txt", "file://{}/long.txt"],
    "{}/d.jsonl": ["linked/d.jsonl"],  # a link to a file whose name ends differently
    "{}/*.txt": ["texts/*.txt", "./linked/*.txt", "{}/*.txt"],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_all_names_of_a_folder_file_or_glob_have_one_spelling(
    texts: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(texts.parent))
    assert {one_spelling(spelling.format(texts)) for spelling in SPELLINGS[name]} == {name.format(texts)}


@pytest.mark.parametrize("name", ["python-stdlib", "hf://datasets/a/b", "memory://", "zip://*.txt::texts.zip"])
def test_names_and_urls_stay_as_they_are(texts: Path, name: str) -> None:
    assert (local_path(name), one_spelling(name)) == (None, name)
    assert one_spelling("s3://bucket/texts/") == "s3://bucket/texts"
    assert missing_text(DataSpec(source=name)) is None


def test_a_text_under_another_spelling_is_not_prepared_again(texts: Path) -> None:
    datasets = texts.parent / "datasets"

    def prepared(**values: object) -> Path:
        common = {"source": "texts", "include": "*.txt", "validation_fraction": 0.3}
        return prepare(DataSpec.model_validate(common | values), datasets)

    first = prepared(vocab_size=300)
    assert read_dataset_manifest(first).spec.source == str(texts)
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    for spelling in ("./linked/", f"file://{texts}"):
        assert prepared(source=spelling, vocab_size=300) == first
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == before
    second = prepared(tokenizer=str(first / "tokenizer.json"))
    (texts.parent / "prepared").symlink_to(first)
    for spelling in ("./prepared", os.path.relpath(first / "tokenizer.json")):
        assert prepared(tokenizer=spelling) == second


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": "q/0.txt"}, "data.source: '{above}/q/0.txt' does not exist; set it to python-stdlib, a file"),
        ({"source": "texts/x*"}, "data.source: no file matches '{above}/texts/x*'; set it to python-stdlib, a file, "),
        ({"source": "gone"}, "data.source: '{above}/gone' does not exist"),
        ({"source": "texts", "tokenizer": "./tok.json"}, "data.tokenizer: there is no file '{above}/tok.json'"),
    ],
)
def test_a_missing_local_source_or_tokenizer_is_named(texts: Path, values: dict[str, str], message: str) -> None:
    (texts.parent / "gone").symlink_to("nowhere")
    said = missing_text(DataSpec.model_validate(values))
    assert said
    assert said.startswith(message.format(above=texts.parent))
