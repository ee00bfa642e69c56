"""schedules/data: each shipped corpus, read from small files in the layout that its repository publishes."""

import json
import shlex
from pathlib import Path

import fsspec
import pyarrow
import pytest
import yaml
from huggingface_hub.utils import filter_repo_objects
from pyarrow import parquet

from stages.corpus.location import by_hand
from stages.data.spec import DataSpec
from tests.stages.corpus.small_source import texts

CHOICES = Path(__file__).parents[3] / "schedules" / "data"
DCLM = "global-shard_{}/local-shard_{}_of_10/shard_{}_processed.jsonl.zst"
PUBLISHED: dict[str, tuple[str, list[str], list[str]]] = {
    "climbmix": ("", ["shard_00000.parquet", "shard_00099.parquet"], ["shard_00100.parquet", "shard_06542.parquet"]),
    "fineweb_edu": (
        "id dump url file_path language language_score token_count score int_score",
        ["sample/10BT/000_00000.parquet", "sample/10BT/013_00000.parquet"],
        ["sample/100BT/000_00000.parquet", "data/CC-MAIN-2024-10/000_00000.parquet"],
    ),
    "dclm": (
        "bff_contained_ngram_count_before_dedupe metadata url",
        [DCLM.format("01_of_10", 0, "00000000")],
        [DCLM.format("01_of_10", 1, "00000000"), DCLM.format("10_of_10", 0, "00000278")],
    ),
    "common_pile": ("id source", ["wikimedia/wikimedia.chunk.00.jsonl.gz", "peS2o/peS2o.chunk.63.jsonl.gz"], []),
    "smollm_corpus": (
        "prompt token_length audience format seed_data",
        ["cosmopedia-v2/train-00000-of-00104.parquet", "cosmopedia-v2/train-00103-of-00104.parquet"],
        ["fineweb-edu-dedup/train-00000-of-00234.parquet", "python-edu/train-00000-of-00002.parquet"],
    ),
}
"""By choice: the columns beside the text, files that it reads, and files of the repository that it does not."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shipped_corpus_is_read_in_its_published_layout_and_the_message_tells_how_to_copy_it(tmp_path, name):
    columns, read, others = PUBLISHED[name]
    for file in (*read, *others):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        rows = [{"text": f"{number} of {file}"} | dict.fromkeys(columns.split(), 1) for number in (1, 2)]
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
    found = texts(spec.model_copy(update={"source": local}))
    assert sorted(found) == sorted(f"{number} of {file}" for file in read for number in (1, 2))
