"""stages/data/dataset.py: sample order, windows and rejected datasets, on hand-made tokens."""

import hashlib
import json
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

from stages.data.dataset import (
    DatasetFile,
    DatasetManifest,
    DatasetSplit,
    check_dataset,
    dataset_fingerprint,
    dataset_manifest_bytes,
    read_dataset_manifest,
    verify_dataset,
)
from stages.data.errors import DataError
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.order import Blocks
from stages.data.samples import TrainingSamples
from stages.data.spec import DataSpec, SplitName
from stages.data.tokens import Int64Array, TokenSplit

MakeDataset = Callable[..., Path]


def write_dataset(directory: Path, train: list[int], validation: list[int], token_bytes: Literal[2, 4] = 4) -> Path:
    """Makes a dataset with tokens 0, 1, 2, ... in each split. Arguments: the number of tokens of each shard."""
    splits: dict[SplitName, DatasetSplit] = {}
    by_split: dict[SplitName, list[int]] = {"train": train, "validation": validation}
    for name, lengths in by_split.items():
        files, first = [], 0
        for number, length in enumerate(lengths):
            data = np.arange(first, first + length).astype(f"<u{token_bytes}").tobytes()
            first += length
            path = directory / name / f"{number:05d}.ds"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            files.append(
                DatasetFile(name=f"{name}/{path.name}", bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            )
        splits[name] = DatasetSplit(
            num_tokens=sum(lengths), num_bytes=3 * sum(lengths), num_documents=1, files=tuple(files)
        )
    return write_manifest(directory, splits, token_bytes)


def write_manifest(directory: Path, splits: dict[SplitName, DatasetSplit], token_bytes: Literal[2, 4] = 2) -> Path:
    """Makes a dataset of the files in `directory`."""
    (directory / "tokenizer.json").write_text("{}")
    tokenizer_sha256 = hashlib.sha256(b"{}").hexdigest()
    manifest = DatasetManifest(
        spec=DataSpec(source="numbers"),
        vocab_size=2**16,
        token_bytes=token_bytes,
        tokenizer_sha256=tokenizer_sha256,
        end_of_text_id=0,
        splits=splits,
        fingerprint=dataset_fingerprint(tokenizer_sha256, splits),
    )
    (directory / "manifest.json").write_bytes(dataset_manifest_bytes(manifest))
    return directory


@pytest.fixture(scope="module")
def make_dataset(tmp_path_factory: pytest.TempPathFactory) -> MakeDataset:
    def make(train: list[int], validation: list[int] | None = None, token_bytes: Literal[2, 4] = 4) -> Path:
        return write_dataset(tmp_path_factory.mktemp("dataset"), train, validation or [100], token_bytes)

    return make


def limit_shards(dataset: Path, num_tokens: dict[str, int]) -> None:
    """Describes shards anew, of whose tokens only the first `num_tokens` belong to their split."""
    manifest = read_dataset_manifest(dataset)
    splits = {}
    for name, split in manifest.splits.items():
        files = []
        for file in split.files:
            data = (dataset / file.name).read_bytes()
            sha256 = hashlib.sha256(data).hexdigest()
            files.append(
                DatasetFile(name=file.name, bytes=len(data), sha256=sha256, num_tokens=num_tokens.get(file.name))
            )
        splits[name] = split.model_copy(update={"files": tuple(files)})
    fingerprint = dataset_fingerprint(manifest.tokenizer_sha256, splits)
    changed = manifest.model_copy(update={"splits": splits, "fingerprint": fingerprint})
    (dataset / "manifest.json").write_bytes(dataset_manifest_bytes(changed))


sizes = st.tuples(st.integers(1, 40), st.integers(0, 1500)).map(lambda pair: (pair[0], pair[0] + 1 + pair[1]))
"""A sequence length, and a number of tokens that suffices for it."""


@settings(max_examples=40)
@given(sizes, st.integers(0, 2**63), st.integers(0, 5))
def test_an_epoch_contains_every_window_exactly_once(
    make_dataset: MakeDataset, size: tuple[int, int], seed: int, epoch: int
) -> None:
    length, num_tokens = size
    samples = TrainingSamples(make_dataset([num_tokens]), length, seed)
    targets = samples.batch(epoch * samples.num_windows, samples.num_windows)[:, 1:].ravel()
    assert len(targets) == len(set(targets.tolist())) == samples.num_windows * length
    assert num_tokens - len(targets) < length, "less than one window is left out"


def test_no_sample_reads_beyond_the_tokens_of_a_shard_that_belong_to_its_split(tmp_path: Path) -> None:
    whole, limited = write_dataset(tmp_path / "whole", [7, 40], [9]), write_dataset(tmp_path / "limited", [7, 40], [9])
    for name, more in (("00000", 3), ("00001", 5)):  # as an imported file goes on with tokens of validation
        path = limited / f"train/{name}.ds"
        path.write_bytes(path.read_bytes() + np.full(more, 2**16 - 1, "<u4").tobytes())
    limit_shards(limited, {"train/00000.ds": 7, "train/00001.ds": 40})
    split = TokenSplit(limited, "train")
    assert len(split) == 47
    assert split.read(5, 42).tolist() == list(range(5, 47))
    with pytest.raises(IndexError, match="47 tokens"):
        split.read(46, 2)
    expected = TrainingSamples(whole, 6, seed=3).batch(0, 50)
    assert np.array_equal(TrainingSamples(limited, 6, seed=3).batch(0, 50), expected)
    assert np.array_equal(pickle.loads(pickle.dumps(TrainingSamples(limited, 6, seed=3))).batch(0, 50), expected)


@settings(max_examples=30)
@given(sizes, st.integers(0, 2**63), st.integers(0, 10**12), st.lists(st.integers(0, 9), max_size=5))
def test_samples_do_not_depend_on_how_they_are_batched(
    make_dataset: MakeDataset, size: tuple[int, int], seed: int, first: int, counts: list[int]
) -> None:
    length, num_tokens = size
    directory = make_dataset([1, num_tokens - 1])
    total = sum(counts)
    whole = TrainingSamples(directory, length, seed).batch(first, total)
    assert whole.shape == (total, length + 1)
    assert whole.dtype == np.int64
    again, parts, position = TrainingSamples(directory, length, seed), [], first
    for count in counts:
        parts.append(again.batch(position, count))
        position += count
    assert np.array_equal(np.concatenate([*parts, whole[:0]]), whole)
    for row in range(total):
        assert np.array_equal(again.batch(first + row, 1)[0], whole[row])


@settings(max_examples=30)
@given(sizes, st.integers(0, 2**63), st.integers(0, 10**9))
def test_a_sample_is_a_slice_of_the_stream_joined_end_to_start(
    make_dataset: MakeDataset, size: tuple[int, int], seed: int, first: int
) -> None:
    length, num_tokens = size
    batch = TrainingSamples(make_dataset([num_tokens]), length, seed).batch(first, 8)
    assert np.array_equal(batch, (batch[:, :1] + np.arange(length + 1)) % num_tokens)


def test_every_seed_and_epoch_has_its_own_order_and_cuts(make_dataset: MakeDataset) -> None:
    directory = make_dataset([10_001])
    epochs = []
    for seed in (0, 1, 2**40):
        samples = TrainingSamples(directory, 10, seed)
        epochs += [samples.places(epoch * samples.num_windows, samples.num_windows)[:, 1] for epoch in range(3)]
    for i, first in enumerate(epochs):
        for second in epochs[:i]:
            assert np.mean(first == second) < 0.01
    assert len({int(starts[0]) % 10 for starts in epochs}) > 3, "the cuts are shifted against each other"


def test_neighbouring_samples_are_spread_over_the_data(make_dataset: MakeDataset) -> None:
    num_tokens, length = 2_000_000, 16
    samples = TrainingSamples(make_dataset([num_tokens]), length, seed=3)
    starts = samples.places(0, 20_000)[:, 1]
    assert abs(np.corrcoef(starts[:-1], starts[1:])[0, 1]) < 0.03
    counts, _ = np.histogram(starts, bins=50, range=(0, num_tokens))
    chi_squared = float(np.sum((counts - 400) ** 2) / 400)
    assert chi_squared < 90, "49 degrees of freedom: 99.97 % of uniform draws lie below"


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_a_read_can_span_any_number_of_shards(make_dataset: MakeDataset, token_bytes: int) -> None:
    split = TokenSplit(make_dataset([5, 1, 1, 40, 3], token_bytes=token_bytes), "train")
    assert len(split) == 50
    for start in range(51):
        for length in range(51 - start):
            assert split.read(start, length).tolist() == list(range(start, start + length))
    for start, length in ((-1, 2), (0, 51), (50, 1)):
        with pytest.raises(IndexError):
            split.read(start, length)


@settings(max_examples=40)
@given(sizes, st.none() | st.integers(1, 60))
def test_evaluation_windows_are_in_order_and_predict_no_token_twice(
    make_dataset: MakeDataset, size: tuple[int, int], max_sequences: int | None
) -> None:
    length, num_tokens = size
    directory = make_dataset([5], [num_tokens // 2, num_tokens - num_tokens // 2])
    windows = EvaluationWindows(directory, "validation", length, max_sequences)
    all_windows = (num_tokens - 1) // length
    assert len(windows) == (all_windows if max_sequences is None else min(max_sequences, all_windows))
    batch = windows.batch(0, len(windows))
    assert batch.shape == (len(windows), length + 1)
    assert np.array_equal(batch, batch[:, :1] + np.arange(length + 1))
    targets = batch[:, 1:].ravel()
    assert np.all(np.diff(targets) > 0)
    assert np.array_equal(np.concatenate([windows.batch(i, i + 1) for i in range(len(windows))]), batch)
    if max_sequences is None:
        assert num_tokens - 1 - len(targets) < length


def test_limited_evaluation_windows_are_spread_over_the_split(make_dataset: MakeDataset) -> None:
    windows = EvaluationWindows(make_dataset([5], [1001]), "validation", 10, max_sequences=4)
    assert windows.batch(0, 4)[:, 0].tolist() == [0, 250, 500, 750]
    assert windows.sources[0].bytes_per_token == 3.0


def test_a_split_shorter_than_a_sample_is_rejected_with_a_fix(make_dataset: MakeDataset) -> None:
    directory = make_dataset([64], [64])
    assert TrainingSamples(directory, 63, seed=0).num_windows == 1
    with pytest.raises(DataError, match=r"train split .* has 64 tokens, .* needs 65"):
        TrainingSamples(directory, 64, seed=0)
    with pytest.raises(DataError, match=r"data\.validation_fraction"):
        EvaluationWindows(directory, "validation", 64)


def test_missing_shards_and_shards_without_the_tokens_of_the_manifest_are_rejected(
    make_dataset: MakeDataset,
) -> None:
    directory = make_dataset([10, 10])
    shard = directory / "train/00001.ds"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"train/00001\.ds has 36 bytes, not 40 as in the manifest"):
        TokenSplit(directory, "train")
    shard.unlink()
    with pytest.raises(DataError, match=r"train/00001\.ds is missing"):
        TrainingSamples(directory, 4, seed=0)
    assert len(TokenSplit(directory, "validation")) == 100
    manifest = read_dataset_manifest(directory)
    wrong = {name: split.model_copy(update={"num_tokens": 1_000_000}) for name, split in manifest.splits.items()}
    (directory / "manifest.json").write_bytes(dataset_manifest_bytes(manifest.model_copy(update={"splits": wrong})))
    with pytest.raises(DataError, match="do not hold 1000000 tokens"):
        TokenSplit(directory, "validation")


def test_verification_finds_a_single_changed_byte_anywhere(make_dataset: MakeDataset) -> None:
    directory = make_dataset([10])
    verify_dataset(directory)
    for path in (directory / "train/00000.ds", directory / "tokenizer.json"):
        good = path.read_bytes()
        path.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        with pytest.raises(DataError, match=path.name):
            verify_dataset(directory)
        path.write_bytes(good)
    manifest = directory / "manifest.json"
    other = read_dataset_manifest(directory).model_copy(update={"fingerprint": "0"})
    manifest.write_bytes(dataset_manifest_bytes(other))
    with pytest.raises(DataError, match="fingerprint"):
        verify_dataset(directory)


def test_a_directory_that_is_not_a_dataset_is_reported_with_the_reason(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"is not a dataset: it has no manifest\.json"):
        read_dataset_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json cannot be read"):
        read_dataset_manifest(tmp_path)
    text = (make_dataset([10]) / "manifest.json").read_text()
    for broken, where in (
        (text.replace('"format_version": 3', '"format_version": 2'), "format version 2"),
        (text.replace('"validation": {', '"elsewhere": {'), "splits"),
        (text.replace('"vocab_size": 65536', '"vocab_size": "many"'), "vocab_size"),
    ):
        (tmp_path / "manifest.json").write_text(broken)
        with pytest.raises(DataError, match=where):
            read_dataset_manifest(tmp_path)


def test_a_changed_value_that_no_hash_covers_breaks_the_seal(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([10])
    verify_dataset(dataset)
    path = dataset / "manifest.json"
    whole = path.read_text()
    for name, value in (("vocab_size", 65536), ("token_bytes", 4), ("num_bytes", 30), ("end_of_text_id", 0)):
        assert f'"{name}": {value}' in whole
        path.write_text(whole.replace(f'"{name}": {value}', f'"{name}": {value + 2}'))
        with pytest.raises(DataError, match=r"seal does not match|token_bytes"):
            read_dataset_manifest(dataset)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "train/../../secret", "train//a", "", "a\0"])
def test_a_file_name_that_could_lead_out_of_a_dataset_is_rejected(make_dataset: MakeDataset, name: str) -> None:
    dataset = make_dataset([10])
    text = (dataset / "manifest.json").read_text()
    (dataset / "manifest.json").write_text(text.replace('"train/00000.ds"', json.dumps(name)))
    with pytest.raises(DataError, match="must be a plain relative path"):
        read_dataset_manifest(dataset)


def test_a_dataset_with_a_link_out_of_it_is_rejected(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset([10])
    (dataset / "train/00000.ds").rename(tmp_path / "elsewhere")
    (dataset / "train/00000.ds").symlink_to(tmp_path / "elsewhere")
    for use in (verify_dataset, lambda path: TokenSplit(path, "train")):
        with pytest.raises(DataError, match="is a link that leads out of the directory"):
            use(dataset)


def test_datasets_up_to_a_size_are_hashed_and_larger_ones_checked_by_file_sizes(
    make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset([10, 30])
    reported: list[tuple[str, float | None]] = []
    check_dataset(dataset, lambda *report: reported.append(report))
    assert reported[0] == ("checking the dataset", 0.0)
    assert reported[-1] == ("checking the dataset", 1.0)
    shard = dataset / "train/00000.ds"
    shard.write_bytes(bytes(len(shard.read_bytes())))
    with pytest.raises(DataError, match=r"train/00000\.ds does not have the hash"):
        check_dataset(dataset)
    monkeypatch.setattr("stages.data.dataset.HASHED_BYTES", 100)
    check_dataset(dataset)
    shard.unlink()
    with pytest.raises(DataError, match=r"train/00000\.ds is missing"):
        check_dataset(dataset)


@pytest.mark.parametrize("positions", [range(0, 9000, 397), [5000, 3, 5001, 5002, 8191, 8192, 4090, 5002]])
def test_reading_ahead_in_blocks_gives_the_same_samples_as_each_alone(
    make_dataset: MakeDataset, positions: Iterable[int]
) -> None:
    directory = make_dataset([3001])
    samples = TrainingSamples(directory, 3, seed=5)
    for first in positions:
        starts = TrainingSamples(directory, 3, seed=5).places(first, 7)[:, 1]
        assert np.array_equal(samples.batch(first, 7), (starts[:, None] + np.arange(4)) % 3001)


def test_only_reading_in_order_computes_whole_blocks() -> None:
    computed = []

    def compute(first_index: int, count: int) -> Int64Array:
        computed.append((first_index, count))
        return np.arange(first_index, first_index + count)

    blocks = Blocks(compute)
    for first in (10**6, 5, 10**7, 0, 8, 16, 4088, 4090, 4096):
        assert blocks.read(first, 8).tolist() == list(range(first, first + 8))
    assert computed == [(10**6, 8), (5, 8), (10**7, 8), (0, 8), (0, 4096), (4090, 8), (4096, 8)]


def test_samples_and_windows_can_be_indexed_and_pickled(make_dataset: MakeDataset) -> None:
    directory = make_dataset([60, 41], [50])
    samples, windows = TrainingSamples(directory, 10, seed=1), EvaluationWindows(directory, "validation", 10)
    again = pickle.loads(pickle.dumps(samples))
    assert np.array_equal(np.stack([again[i] for i in range(15, 40)]), samples.batch(15, 25))
    assert len(pickle.dumps(TrainingSamples(make_dataset([100_000]), 10, seed=1))) < 10_000, "a pickle has no tokens"
    assert np.array_equal(np.stack([windows[i] for i in range(len(windows))]), windows.batch(0, len(windows)))
    for wrong in (lambda: windows[4], lambda: samples[-1]):
        with pytest.raises(IndexError):
            wrong()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_torchs_data_loader_reads_what_a_run_reads(make_dataset: MakeDataset, workers: int) -> None:
    samples = TrainingSamples(make_dataset([5000]), 16, seed=2)
    part: Any = Subset(samples, range(64, 256))  # type: ignore[arg-type]
    batches: Any = DataLoader(part, batch_size=32, num_workers=workers)
    assert np.array_equal(torch.cat(list(batches)).numpy(), samples.batch(64, 192))
    windows = EvaluationWindows(make_dataset([50], [500]), "validation", 16)
    validation = DataLoader(windows, batch_size=7)  # type: ignore[arg-type, var-annotated]
    assert np.array_equal(torch.cat(list(validation)).numpy(), windows.batch(0, len(windows)))
