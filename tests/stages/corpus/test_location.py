"""stages/corpus/location.py: one spelling for every name of the same text, and what is said of a missing one."""

import os
import re
import shlex
from pathlib import Path

import pytest
from huggingface_hub.utils import filter_repo_objects

from stages.corpus.location import by_hand, local_path, missing_text, one_spelling
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
    (tmp_path / "linked").symlink_to(folder)
    (tmp_path / "linked.txt").symlink_to(folder / "1.txt")
    (tmp_path / "blob").write_text('{"text": "one"}\n')
    (folder / "d.jsonl").symlink_to(tmp_path / "blob")
    (tmp_path / "gone").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("{}", "{} {}/ {}// file://{} local://{} texts ./texts texts/ texts/../texts ~/texts linked ./linked/"),
        ("{}", "linked/../texts"),
        ("{}/1.txt", "texts/1.txt linked/1.txt linked.txt file://{}/1.txt"),
        ("{}/d.jsonl", "linked/d.jsonl"),  # a link to a file whose name ends differently
        ("{}/*.txt", "texts/*.txt ./linked/*.txt {}/*.txt"),
        ("python-stdlib", "python-stdlib"),
        ("hf://datasets/a/b", "hf://datasets/a/b hf://datasets/a/b/"),
        ("memory://", "memory://"),
        ("zip://*.txt::texts.zip", "zip://*.txt::texts.zip"),
    ],
)
def test_all_names_of_a_text_have_one_spelling(texts, name, spellings):
    for spelling in spellings.split():
        assert one_spelling(spelling.format(texts)) == name.format(texts)
        assert (local_path(spelling) is None) == (not name.startswith("{}"))
        assert missing_text(DataSpec(source=spelling.format(texts))) is None


def test_a_text_or_tokenizer_under_another_spelling_is_not_prepared_again(texts):
    def prepared(**values: object) -> Path:
        common = {"source": "texts", "include": "*.txt", "validation_fraction": 0.3}
        return prepare(DataSpec.model_validate(common | values), texts.parent / "datasets")

    first = prepared(vocab_size=300)
    assert read_dataset_manifest(first).spec.source == str(texts)
    for spelling in ("./linked/", f"file://{texts}"):
        assert prepared(source=spelling, vocab_size=300) == first
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
def test_a_missing_local_source_or_tokenizer_is_named(texts, values, message):
    said = missing_text(DataSpec.model_validate(values))
    assert said.startswith(message.format(above=texts.parent))


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("hf://datasets/a/b", r"`hf download a/b --repo-type dataset --include '\*' --local-dir DIR`; then .*=DIR$"),
        ("hf://datasets/a/b@v1/c/d", r"--include 'c/d/\*' --revision v1 --local-dir DIR`; then .*=DIR/c/d$"),
        ("hf://datasets/a/b/c/d.jsonl", r"--include c/d\.jsonl --local-dir DIR`; then .*source=DIR/c/d\.jsonl$"),
        ("hf://datasets/a/b/c/**/*.jsonl", r"--include 'c/\*\.jsonl' --local-dir DIR`; then .*=DIR/c/\*\*/\*\.jsonl$"),
        ("gs://bucket/texts", r"^download its files on a machine that can reach it, and set data\.source to their loc"),
        ("/local/texts", "^$"),
        ("file:///local/texts", "^$"),
    ],
)
def test_a_message_gives_a_command_that_downloads_a_remote_source(source, command):
    assert re.search(command, by_hand(DataSpec(source=source)))


@pytest.mark.parametrize(
    ("include", "files"),
    [
        ("**/*.jsonl.zst", ["train/00.jsonl.zst", "train/a/b/30.jsonl.zst"]),
        ("**/30.jsonl.zst", ["train/a/b/30.jsonl.zst"]),
        ("a/**/*.zst", ["train/a/b/30.jsonl.zst"]),
        ("**/*", ["train/00.jsonl.zst", "train/README.md", "train/a/b/30.jsonl.zst"]),
    ],
)
def test_the_command_downloads_the_files_that_the_source_includes(include, files):
    published = ["README.md", "test.jsonl.zst", "train/00.jsonl.zst", "train/README.md", "train/a/b/30.jsonl.zst"]
    words = shlex.split(by_hand(DataSpec(source="hf://datasets/a/pile/train", include=include)).split("`")[1])
    pattern = words[words.index("--include") + 1]
    assert list(filter_repo_objects(published, allow_patterns=pattern)) == files
