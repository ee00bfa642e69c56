"""Measures how fast training samples are read from the page cache, against a bare memmap loop.

    python -m benchmarks.data > benchmarks/results/data.json    # two minutes
    python -m benchmarks.data --tokens 100000 --turns 2

Each batch is (8, 1024) inputs and the token after each, as int64. In one process, all readers take turns, and each turn
reads new batches of the same 16-bit tokens:

- `memmap`: `tokens[starts[:, None] + arange(1025)].astype(int64)` on a numpy.memmap, at random starts
- `training`: TrainingSamples in order; `mixture`: those of a mixture of the four quarters of the tokens in order
- `megatron`: TrainingSamples in order of a Megatron file of the same uint16 tokens, which `growctl data import` linked;
  `megatron_int32`: of one of int32, as Megatron writes tokens of larger vocabularies, twice the bytes
- `packed`: packed TrainingSamples in order of the same tokens, in documents of log-normal lengths, 700 on average
- `training_at_random`, `mixture_at_random`: the same at random indices, as a loader that shuffles would read

Seconds are CPU time of one thread, so that other work on the machine counts little. A ratio is the median over turns of
two readers' seconds in the same turn. `goal_tokens_per_second` and `goals` are what we aim at.
"""

import hashlib
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models

from benchmarks.machine import options, print_results
from growctl.data.token_import import import_tokens
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.dataset import DatasetFile, DatasetManifest, DatasetSplit, dataset_fingerprint, dataset_manifest_bytes
from stages.data.samples import TrainingSamples
from stages.data.spec import DataSpec, SplitName
from stages.data.tokens import Int64Array
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME

BATCH, LENGTH = 8, 1024
VOCAB_SIZE = 50_000
DOCUMENT_TOKENS = 700
LENGTH_SPREAD = 1.0
"""Standard deviation of the logarithms of documents' lengths, for the packed samples."""
WEIGHTS = {"a": 0.5, "b": 0.25, "c": 0.15, "d": 0.1}
RATIOS = {
    "training_over_memmap": ("training", "memmap"),
    "mixture_over_training": ("mixture", "training"),
    "packed_over_training": ("packed", "training"),
    "megatron_over_training": ("megatron", "training"),
    "megatron_int32_over_training": ("megatron_int32", "training"),
    "training_at_random_over_memmap": ("training_at_random", "memmap"),
    "mixture_at_random_over_training_at_random": ("mixture_at_random", "training_at_random"),
}
GOALS = {"training_over_memmap": 1.5, "mixture_over_training": 1.2, "megatron_over_training": 1.2}
GOAL_TOKENS_PER_SECOND = 20_000_000
PROPORTIONS_AFTER = 10_000
Read = Callable[[], Int64Array]


def main() -> None:
    """Runs the benchmark and prints one JSON document."""
    print_measured(measured, str(__doc__))


def print_measured(measure: Callable[[Path, int, int, int], dict[str, Any]], description: str) -> None:
    """Prints what `measure(folder, num_tokens, turns, batches)` returns, with the options of the command line."""
    parser = options(description)
    parser.add_argument("--tokens", type=int, default=100_000_000, help="tokens to read from, of 2 bytes")
    parser.add_argument("--turns", type=int, default=21, help="turns of each reader")
    parser.add_argument("--batches", type=int, default=2000, help="batches in a turn")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="growctl-data-") as folder:
        document = measure(Path(folder), arguments.tokens, arguments.turns, arguments.batches)
    print_results(arguments.note, "numpy", **document)


def measured(folder: Path, num_tokens: int, turns: int, batches: int) -> dict[str, Any]:
    """The benchmark's document."""
    tokens = np.random.default_rng(0).integers(0, VOCAB_SIZE, num_tokens, np.uint16)
    whole = write_dataset(folder / "whole", tokens)
    documents = write_dataset(folder / "documents", tokens, document_ends(num_tokens))
    quarters = zip(WEIGHTS, np.array_split(tokens, len(WEIGHTS)), strict=True)
    sources = [Ingredient(name, write_dataset(folder / name, quarter), WEIGHTS[name]) for name, quarter in quarters]
    mixed = TrainingSamples(write_mixture(sources, folder), LENGTH, seed=0)
    assert mixed.mixture
    imported = {
        "megatron": import_megatron(folder / "uint16", tokens),
        "megatron_int32": import_megatron(folder / "int32", tokens.astype(np.int32)),
    }
    readers = readers_of(whole, documents, mixed, imported)
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(turns + 1):
        for name in readers if turn % 2 else reversed(readers):
            start = time.process_time()
            for _ in range(batches):
                readers[name]()
            if turn:  # the first turn only warms up
                seconds[name].append(time.process_time() - start)
        print(f"turn {turn} of {turns}", file=sys.stderr)
    ratios = {
        ratio: [one / other for one, other in zip(seconds[first], seconds[second], strict=True)]
        for ratio, (first, second) in RATIOS.items()
    }
    return {
        "settings": {
            "tokens": num_tokens,
            "shape": [BATCH, LENGTH],
            "turns": turns,
            "batches_per_turn": batches,
            "weights": WEIGHTS,
        },
        "tokens_per_second": {
            name: round(batches * BATCH * LENGTH / statistics.median(each)) for name, each in seconds.items()
        },
        "goal_tokens_per_second": GOAL_TOKENS_PER_SECOND,
        "ratios": {ratio: round(statistics.median(each), 3) for ratio, each in ratios.items()},
        "quartiles": {
            ratio: [round(q, 3) for q in statistics.quantiles(each, n=4)[::2]] for ratio, each in ratios.items()
        },
        "goals": GOALS,
        f"samples_of_each_source_after_{PROPORTIONS_AFTER}": dict(
            zip(WEIGHTS, mixed.mixture.counts(PROPORTIONS_AFTER), strict=True)
        ),
    }


def readers_of(whole: Path, documents: Path, mixed: TrainingSamples, others: Mapping[str, Path]) -> dict[str, Read]:
    """Functions that read the next batch, by name; `documents` has document ends, `others` are read in order."""
    file = np.memmap(whole / "train/00000.ds", "<u2", mode="r")
    random, places = np.random.default_rng(1), np.arange(LENGTH + 1)
    samples = TrainingSamples(whole, LENGTH, seed=0)

    def memmap() -> Int64Array:
        starts = random.integers(0, len(file) - LENGTH, BATCH)
        tokens_BT: Int64Array = file[starts[:, None] + places].astype(np.int64)
        return tokens_BT

    def in_order(source: TrainingSamples) -> Read:
        numbers = count()
        return lambda: source.batch(next(numbers) * BATCH, BATCH)

    def at_random(source: TrainingSamples) -> Read:
        return lambda: source.batch(int(random.integers(0, 10**9)), BATCH)

    return {
        "memmap": memmap,
        "training": in_order(samples),
        "packed": in_order(TrainingSamples(documents, LENGTH, seed=0, packing="best_fit")),
        "mixture": in_order(mixed),
        **{name: in_order(TrainingSamples(dataset, LENGTH, seed=0)) for name, dataset in others.items()},
        "training_at_random": at_random(TrainingSamples(whole, LENGTH, seed=0)),
        "mixture_at_random": at_random(mixed),
    }


def import_megatron(folder: Path, tokens: npt.NDArray[Any]) -> Path:
    """Writes tokens as a Megatron file and imports it: a dataset whose shard is that file."""
    folder.mkdir()
    ends = np.minimum(np.arange(DOCUMENT_TOKENS, len(tokens) + DOCUMENT_TOKENS, DOCUMENT_TOKENS), len(tokens))
    prefix, tokenizer = folder / "tokens", str(folder / "tokenizer.json")
    sizes, code = np.diff(ends, prepend=0), 8 if tokens.itemsize == 2 else 4
    tokens.astype(np.dtype(f"<{'u2' if code == 8 else 'i4'}")).tofile(f"{prefix}.bin")
    starts = (ends - sizes) * tokens.itemsize
    tables = (sizes.astype("<i4"), starts.astype("<i8"), np.arange(len(ends) + 1, dtype="<i8"))
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(ends), len(ends) + 1)
    Path(f"{prefix}.idx").write_bytes(header + b"".join(table.tobytes() for table in tables))
    byte_level = Tokenizer(models.BPE(vocab={str(number): number for number in range(VOCAB_SIZE)}, merges=[]))
    byte_level.decoder = decoders.ByteLevel()
    byte_level.add_special_tokens(["0"])
    byte_level.save(tokenizer)
    fraction = max(0.01, 1 / len(ends))
    imported = import_tokens([prefix], folder / "dataset", tokenizer, end_of_text="0", validation_fraction=fraction)
    assert imported.linked_files  # otherwise a copy would be read
    return imported.path


def document_ends(num_tokens: int) -> npt.NDArray[np.uint64]:
    """Where documents of log-normal lengths end in `num_tokens` tokens: DOCUMENT_TOKENS each, on average."""
    mean = np.log(DOCUMENT_TOKENS) - LENGTH_SPREAD**2 / 2
    lengths = np.random.default_rng(2).lognormal(mean, LENGTH_SPREAD, 2 * num_tokens // DOCUMENT_TOKENS + 100)
    ends = np.cumsum(np.maximum(1, lengths.astype(np.uint64)))
    return np.append(ends[ends < num_tokens], np.uint64(num_tokens))


def write_dataset(directory: Path, tokens: npt.NDArray[np.uint16], ends: npt.NDArray[np.uint64] | None = None) -> Path:
    """Writes a dataset whose splits both hold these tokens, without a real tokenizer; `ends`: those of documents."""
    (directory / "train").mkdir(parents=True)
    (directory / TOKENIZER_NAME).touch()
    contents = {"train/00000.ds": tokens} | ({} if ends is None else {"train/00000.ds.index": ends})
    files = []
    for name, content in contents.items():
        content.tofile(directory / name)
        files.append(DatasetFile(name=name, bytes=content.nbytes, sha256=hashlib.sha256(content.data).hexdigest()))
    num_documents = 1 if ends is None else len(ends)
    split = DatasetSplit(
        num_tokens=len(tokens), num_bytes=4 * len(tokens), num_documents=num_documents, files=tuple(files)
    )
    splits: dict[SplitName, DatasetSplit] = {"train": split, "validation": split}
    manifest = DatasetManifest(
        spec=DataSpec(source="random tokens"),
        vocab_size=VOCAB_SIZE,
        token_bytes=2,
        tokenizer_sha256=hashlib.sha256(b"").hexdigest(),
        end_of_text_id=0,
        splits=splits,
        fingerprint=dataset_fingerprint(hashlib.sha256(b"").hexdigest(), splits),
    )
    (directory / MANIFEST_NAME).write_bytes(dataset_manifest_bytes(manifest))
    return directory


if __name__ == "__main__":
    main()
