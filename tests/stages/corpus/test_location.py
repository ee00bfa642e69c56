"""stages/corpus/location.py: one spelling for every name of the same text, and what is said of a missing one."""

import json
import os
import shlex
from pathlib import Path

import fsspec
import pyarrow
import pytest
import yaml
from huggingface_hub.utils import filter_repo_objects
from pyarrow import parquet

from stages.corpus.location import by_hand, local_path, missing_text, one_spelling
from stages.corpus.prepare import prepare
from stages.data.spec import DataSpec
from tests.stages.corpus.small_source import texts as texts_of


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
    assert prepared(vocab_size=300, source=f"file://{texts.parent}/linked/") == first
    (texts.parent / "prepared").symlink_to(first)
    spellings = (str(first / "tokenizer.json"), "./prepared", os.path.relpath(first / "tokenizer.json"))
    assert len({first, *(prepared(tokenizer=spelling) for spelling in spellings)}) == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": "texts/x*"}, "data.source: no file matches '{above}/texts/x*'; set it to python-stdlib, a file, "),
        ({"source": "texts", "tokenizer": "./tok.json"}, "data.tokenizer: there is no file '{above}/tok.json'"),
    ],
)
def test_a_missing_local_source_or_tokenizer_is_named(texts, values, message):
    said = missing_text(DataSpec.model_validate(values))
    assert said.startswith(message.format(above=texts.parent))


CHOICES = Path(__file__).parents[3] / "schedules" / "data"
DCLM = "global-shard_{}/local-shard_{}_of_10/shard_{}_processed.jsonl.zst"
PUBLISHED: dict[str, tuple[list[str], list[str]]] = {
    "climbmix": (["shard_00000.parquet", "shard_00099.parquet"], ["shard_00100.parquet", "shard_06542.parquet"]),
    "fineweb_edu": (
        ["sample/10BT/000_00000.parquet", "sample/10BT/013_00000.parquet"],
        ["sample/100BT/000_00000.parquet", "data/CC-MAIN-2024-10/000_00000.parquet"],
    ),
    "dclm": (
        [DCLM.format("01_of_10", 0, "00000000")],
        [DCLM.format("01_of_10", 1, "00000000"), DCLM.format("10_of_10", 0, "00000278")],
    ),
    "common_pile": (["wikimedia/wikimedia.chunk.00.jsonl.gz", "peS2o/peS2o.chunk.63.jsonl.gz"], []),
    "smollm_corpus": (
        ["cosmopedia-v2/train-00000-of-00104.parquet", "cosmopedia-v2/train-00103-of-00104.parquet"],
        ["fineweb-edu-dedup/train-00000-of-00234.parquet", "python-edu/train-00000-of-00002.parquet"],
    ),
}
"""By choice: files that it reads, and files of the repository that it does not."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shipped_corpus_is_read_in_its_published_layout_and_the_message_tells_how_to_copy_it(tmp_path, name):
    read, others = PUBLISHED[name]
    for file in (*read, *others):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        rows = [{"id": 1, "text": f"{number} of {file}"} for number in (1, 2)]
        if file.endswith(".parquet"):
            parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / file)
        else:
            with fsspec.open(tmp_path / file, "wt", compression="infer") as out:
                out.write("".join(json.dumps(row) + "\n" for row in rows))
    for file in ("README.md", ".gitattributes", "loss.png"):
        (tmp_path / file).write_bytes(b"\xff")
    values = yaml.safe_load((CHOICES / f"{name}.yaml").read_text())
    spec = DataSpec.model_validate({key: value for key, value in values.items() if key != "approximate_tokens"})
    words = shlex.split(by_hand(spec).split("`")[1])
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(filter_repo_objects(files, allow_patterns=words[words.index("--include") + 1])) == sorted(read)
    local = by_hand(spec).partition("then set data.source=")[2].replace("DIR", str(tmp_path), 1)
    found = texts_of(spec.model_copy(update={"source": local}))
    assert sorted(found) == sorted(f"{number} of {file}" for file in read for number in (1, 2))
