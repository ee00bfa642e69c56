"""Measures how fast `growctl prepare` tokenises, against `encode_batch` of the tokenizers library alone.

    python -m benchmarks.prepare_speed > benchmarks/results/prepare_speed.json    # three minutes
    python -m benchmarks.prepare_speed --megabytes 4 --turns 1 --long-megabytes 5

In each turn, on the same JSONL files and with the same tokenizer, a byte-level BPE trained on the text:

- `encode_batch`: reads the files, and calls `Tokenizer.encode_batch` on 1,000 documents at a time, on all cores; keeps
  nothing
- `prepare`: `stages.corpus.prepare.prepare`, to the finished dataset

A ratio is that of both wall times in one turn; the median over turns is reported. Then each prepares one document of
`--long-megabytes` in a process of its own, whose peak of memory is reported.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.machine import options, print_results
from stages.corpus.corpus import open_corpus
from stages.corpus.prepare import prepare
from stages.data.dataset import read_dataset_manifest
from stages.data.spec import DataSpec

FILES = 4
BATCH_DOCUMENTS = 1000
GOAL = 1.2


def main() -> None:
    """Runs the benchmark and prints one JSON document."""
    parser = options(__doc__)
    parser.add_argument("--megabytes", type=int, default=64, help="text to tokenise")
    parser.add_argument("--turns", type=int, default=5, help="turns of each")
    parser.add_argument("--long-megabytes", type=int, default=200, help="the size of the long document")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json (default: train one of 8,192 entries)")
    parser.add_argument("--long-document", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.long_document:
        print(_prepare_alone(*arguments.long_document))
        return
    with tempfile.TemporaryDirectory(prefix="growctl-prepare-") as folder:
        document = measured(
            Path(folder), arguments.megabytes, arguments.turns, arguments.long_megabytes, arguments.tokenizer
        )
    print_results(arguments.note, "tokenizers", **document)


def measured(
    folder: Path, megabytes: int, turns: int, long_megabytes: int, tokenizer: Path | None = None
) -> dict[str, Any]:
    """The benchmark's document."""
    corpus = open_corpus(DataSpec(source="python-stdlib"))
    texts = [document.text for document in corpus.documents(corpus.files, None)]
    tokenizer = tokenizer or prepare(DataSpec(source="python-stdlib"), folder / "stdlib") / "tokenizer.json"
    source = folder / "texts"
    source.mkdir()
    endless = cycle(texts)
    for number in range(FILES):
        with (source / f"{number}.jsonl").open("w") as file:
            while file.tell() < megabytes * 1_000_000 // FILES:
                file.write(json.dumps({"text": f"# {number} {file.tell()}\n{next(endless)}"}) + "\n")
    ours: list[float] = []
    alone: list[float] = []
    num_tokens = 0
    for turn in range(turns):
        start = time.perf_counter()
        num_tokens = encode_alone(source, tokenizer)
        alone.append(time.perf_counter() - start)
        datasets = folder / "datasets"
        start = time.perf_counter()
        dataset = prepare(DataSpec(source=str(source), tokenizer=str(tokenizer)), datasets)
        ours.append(time.perf_counter() - start)
        splits = read_dataset_manifest(dataset).splits.values()
        assert sum(split.num_tokens - split.num_documents for split in splits) == num_tokens
        shutil.rmtree(datasets)
        print(f"turn {turn + 1} of {turns}", file=sys.stderr)
    ratios = [one / other for one, other in zip(ours, alone, strict=True)]
    return {
        "settings": {"megabytes": megabytes, "turns": turns, "files": FILES, "long_megabytes": long_megabytes},
        "tokens": num_tokens,
        "tokens_per_second": {
            "encode_batch": round(num_tokens / statistics.median(alone)),
            "prepare": round(num_tokens / statistics.median(ours)),
        },
        "ratios": {"prepare_over_encode_batch": round(statistics.median(ratios), 3)},
        "turns": {"prepare_over_encode_batch": [round(ratio, 3) for ratio in ratios]},
        "goals": {"prepare_over_encode_batch": GOAL},
        "long_document_peak_megabytes": _long_document(folder, texts, long_megabytes, tokenizer),
    }


def encode_alone(source: Path, tokenizer: Path) -> int:
    """Reads and encodes the documents in the JSONL files of `source`. Returns the number of tokens."""
    encoder, num_tokens = Tokenizer.from_file(str(tokenizer)), 0
    for path in sorted(source.iterdir()):
        with path.open("rb") as file:
            texts = (json.loads(line)["text"] for line in file)
            while batch := list(islice(texts, BATCH_DOCUMENTS)):
                num_tokens += sum(map(len, encoder.encode_batch(batch, add_special_tokens=False)))
    return num_tokens


def _long_document(folder: Path, texts: list[str], megabytes: int, tokenizer: Path) -> int:
    """The peak of memory, in MB, of a process that prepares one document of `megabytes`, and many short ones."""
    source = folder / "long.jsonl"
    with source.open("w") as file:
        for number in range(200):
            file.write(json.dumps({"text": f"short {number}"}) + "\n")
        copies = megabytes * 1_000_000 // sum(map(len, texts)) + 1
        file.write(json.dumps({"text": ("".join(texts) * copies)[: megabytes * 1_000_000]}) + "\n")
    command = [sys.executable, "-m", "benchmarks.prepare_speed", "--long-document", str(source), str(tokenizer)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _prepare_alone(source: Path, tokenizer: Path) -> int:
    spec = DataSpec(source=str(source), tokenizer=str(tokenizer), validation_fraction=0.1)
    prepare(spec, source.parent / "long")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


if __name__ == "__main__":
    main()
