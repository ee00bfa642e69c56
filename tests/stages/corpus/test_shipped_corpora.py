"""schedules/data: each shipped corpus, read from small files in the layout that its repository publishes."""

import json
import shlex
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest
import yaml
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects
from pyarrow import parquet

from stages.corpus.corpus import open_corpus
from stages.corpus.location import by_hand
from stages.data.errors import DataError
from stages.data.spec import SPLITS, DataSpec

CHOICES = Path(__file__).parents[3] / "schedules" / "data"
FINEWEB = {"id": "<urn:uuid:1>", "dump": "CC-MAIN-2024-10", "url": "https://a", "file_path": "s3://a", "language": "en"}
FINEWEB_SCORES = {"language_score": 0.9, "token_count": 3, "score": 3.1, "int_score": 3}
PUBLISHED: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "climbmix": ({}, ["shard_00000.parquet", "shard_00099.parquet"], ["shard_00100.parquet", "shard_06542.parquet"]),
    "fineweb_edu": (
        FINEWEB | FINEWEB_SCORES,
        ["sample/10BT/000_00000.parquet", "sample/10BT/013_00000.parquet"],
        ["sample/100BT/000_00000.parquet", "data/CC-MAIN-2024-10/000_00000.parquet"],
    ),
    "dclm": (
        {"bff_contained_ngram_count_before_dedupe": 0, "metadata": {"Content-Type": "a"}, "url": "https://a"},
        ["global-shard_01_of_10/local-shard_0_of_10/shard_00000000_processed.jsonl.zst"],
        [
            "global-shard_01_of_10/local-shard_1_of_10/shard_00000000_processed.jsonl.zst",
            "global-shard_10_of_10/local-shard_0_of_10/shard_00000278_processed.jsonl.zst",
        ],
    ),
    "common_pile": (
        {"id": "1", "source": "a"},
        ["wikimedia/wikimedia.chunk.00.jsonl.gz", "peS2o/peS2o.chunk.63.jsonl.gz"],
        [],
    ),
    "smollm_corpus": (
        {"prompt": "Write", "token_length": 3, "audience": "general", "format": "textbook", "seed_data": "web"},
        ["cosmopedia-v2/train-00000-of-00104.parquet", "cosmopedia-v2/train-00103-of-00104.parquet"],
        ["fineweb-edu-dedup/train-00000-of-00234.parquet", "python-edu/train-00000-of-00002.parquet"],
    ),
}
"""By choice: the columns beside the text, files that it reads, and files of the repository that it does not."""


def choice(name: str) -> DataSpec:
    values = yaml.safe_load((CHOICES / f"{name}.yaml").read_text())
    return DataSpec.model_validate({key: value for key, value in values.items() if key != "approximate_tokens"})


def publish(folder: Path, name: str) -> list[str]:
    """Writes the files of the repository, each with two documents. Returns the names of those that the choice reads."""
    columns, read, others = PUBLISHED[name]
    for file in (*read, *others):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        rows = [{"text": f"{number} of {file}"} | columns for number in (1, 2)]
        if file.endswith(".parquet"):
            parquet.write_table(pyarrow.Table.from_pylist(rows), folder / file, row_group_size=1)
        else:
            with fsspec.open(folder / file, "wt", compression="infer") as out:
                out.write("".join(json.dumps(row) + "\n" for row in rows))
    for file in ("README.md", ".gitattributes", "assets/loss.png"):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(b"\xff")
    return read


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shipped_corpus_is_read_in_its_published_layout_and_the_message_tells_how_to_copy_it(
    tmp_path: Path, name: str
) -> None:
    read = publish(tmp_path, name)
    spec = choice(name)
    words = shlex.split(by_hand(spec).split("`")[1])
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(filter_repo_objects(files, allow_patterns=words[words.index("--include") + 1])) == sorted(read)
    local = by_hand(spec).partition("then set data.source=")[2].replace("DIR", str(tmp_path), 1)
    corpus = open_corpus(spec.model_copy(update={"source": local}))
    found = [document.text for split in SPLITS for document in corpus.documents(corpus.files, split)]
    assert sorted(found) == sorted(f"{number} of {file}" for file in read for number in (1, 2))


@pytest.mark.parametrize("name", PUBLISHED)
def test_without_a_network_the_error_says_what_to_download_and_which_key_to_set(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    spec = choice(name)
    repository = "/".join(spec.source.split("/")[3:5])
    with pytest.raises(DataError) as error:
        open_corpus(spec)
    message = str(error.value)
    assert message.startswith(f"data.source: '{spec.source}' cannot be read (")
    assert f"`hf download {repository} --repo-type dataset --include" in message
    assert "then set data.source=DIR" in message
