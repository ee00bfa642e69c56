"""stages/data/dataset.py: sample order, windows and rejected datasets, on hand-made tokens."""

import hashlib
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain, repeat
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
from stages.data.samples import TrainingSamples
from stages.data.spec import DataSpec, SplitName
from stages.data.tokens import TokenSplit

MakeDataset = Callable[..., Path]


def write_dataset(
    directory: Path,
    train: Sequence[int],
    validation: Sequence[int],
    token_bytes: Literal[2, 4] = 4,
    beyond: Sequence[int] = (),
) -> Path:
    """Makes a dataset with tokens 0, 1, 2, ... in each split, whose shards have these numbers of tokens.

    `beyond`: how many tokens of validation each train shard goes on with, as imported files do.
    """
    splits: dict[SplitName, DatasetSplit] = {}
    by_split: dict[SplitName, tuple[Sequence[int], Sequence[int]]]
    by_split = {"train": (train, beyond), "validation": (validation, ())}
    for split, (lengths, others) in by_split.items():
        (directory / split).mkdir(parents=True, exist_ok=True)
        files, first = [], 0
        for number, (length, more) in enumerate(zip(lengths, chain(others, repeat(0)), strict=False)):
            ids = np.append(np.arange(first, first + length), np.full(more, 2**16 - 1))
            data, name = ids.astype(f"<u{token_bytes}").tobytes(), f"{split}/{number:05d}.ds"
            (directory / name).write_bytes(data)
            sha256, num_tokens = hashlib.sha256(data).hexdigest(), length if more else None
            files.append(DatasetFile(name=name, bytes=len(data), sha256=sha256, num_tokens=num_tokens))
            first += length
        splits[split] = DatasetSplit(num_tokens=first, num_bytes=3 * first, num_documents=1, files=tuple(files))
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
    def make(train: list[int], validation: Sequence[int] = (100,), token_bytes: Literal[2, 4] = 4) -> Path:
        return write_dataset(tmp_path_factory.mktemp("dataset"), train, validation, token_bytes)

    return make


sizes = st.tuples(st.integers(1, 40), st.integers(0, 1500)).map(lambda pair: (pair[0], pair[0] + 1 + pair[1]))
"""A sequence length, and a number of tokens that suffices for it."""
seeds = st.integers(0, 2**63)


@settings(max_examples=40)
@given(sizes, seeds, st.integers(0, 5))
def test_an_epoch_contains_every_window_exactly_once(make_dataset, size, seed, epoch):
    length, num_tokens = size
    samples = TrainingSamples(make_dataset([num_tokens]), length, seed)
    targets = samples.batch(epoch * samples.num_windows, samples.num_windows)[:, 1:].ravel()
    assert len(targets) == len(set(targets.tolist())) == samples.num_windows * length
    assert num_tokens - len(targets) < length, "less than one window is left out"


@settings(max_examples=40)
@given(sizes, seeds, st.integers(0, 10**12), st.lists(st.integers(0, 9), max_size=5), st.sampled_from([2, 4]))
def test_samples_are_slices_of_the_stream_in_any_batches(tmp_path_factory, size, seed, first, counts, token_bytes):
    (length, num_tokens), total = size, sum(counts)
    shards = [1, *([num_tokens - 2, 1] if num_tokens > 2 else [num_tokens - 1])]
    directory = write_dataset(tmp_path_factory.mktemp("dataset"), shards, [9], token_bytes, beyond=[3, 0, 5])
    whole = TrainingSamples(directory, length, seed).batch(first, total)
    assert (whole.shape, whole.dtype) == ((total, length + 1), np.int64)
    assert np.array_equal(whole, (whole[:, :1] + np.arange(length + 1)) % num_tokens)
    again, ends = TrainingSamples(directory, length, seed), np.cumsum([0, *counts]).tolist()
    parts = [again.batch(first + end, count) for end, count in zip(ends, counts, strict=False)]
    assert np.array_equal(np.concatenate([*parts, whole[:0]]), whole)
    assert all(np.array_equal(again[first + row], whole[row]) for row in range(total))


def test_every_seed_and_epoch_has_its_own_order_and_cuts_and_neighbours_are_far_apart(make_dataset):
    directory, epochs = make_dataset([100_001]), []
    for seed in (0, 1, 2**40):
        samples = TrainingSamples(directory, 10, seed)
        epochs += [samples.places(epoch * samples.num_windows, samples.num_windows)[:, 1] for epoch in range(3)]
    for i, first in enumerate(epochs):
        assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.03
        assert all(np.mean(first == second) < 0.01 for second in epochs[:i])
    assert len({int(starts[0]) % 10 for starts in epochs}) > 3, "the cuts are shifted against each other"


def test_a_read_can_span_any_number_of_shards(make_dataset):
    split = TokenSplit(make_dataset([5, 1, 1, 20, 3]), "train")
    for start in range(31):
        for length in range(31 - start):
            assert split.read(start, length).tolist() == list(range(start, start + length))
    for start, length in ((-1, 2), (0, 31), (30, 1)):
        with pytest.raises(IndexError, match="30 tokens"):
            split.read(start, length)


@settings(max_examples=40)
@given(sizes, st.none() | st.integers(1, 60))
def test_evaluation_windows_are_in_order_and_predict_no_token_twice(make_dataset, size, most):
    length, num_tokens = size
    directory = make_dataset([5], [num_tokens // 2, num_tokens - num_tokens // 2])
    windows, all_windows = EvaluationWindows(directory, "validation", length, most), (num_tokens - 1) // length
    assert len(windows) == windows.sources[0].num_windows == min(most or all_windows, all_windows)
    assert windows.sources[0].bytes_per_token == 3.0
    batch = windows.batch(0, len(windows))
    assert np.array_equal(batch, batch[:, :1] + np.arange(length + 1))
    starts = np.arange(len(windows)) * all_windows // len(windows) * length
    assert batch[:, 0].tolist() == starts.tolist(), "spread over the split"
    assert np.array_equal(np.concatenate([windows.batch(i, i + 1) for i in range(len(windows))]), batch)
    assert np.array_equal(np.stack([windows[i] for i in range(len(windows))]), batch)


def linked(path: Path) -> None:
    path.rename(path.parents[2] / "elsewhere")
    path.symlink_to(path.parents[2] / "elsewhere")


def resealed(path: Path, **changes: Any) -> None:
    """Changes a manifest, with a seal that fits."""
    path.write_bytes(dataset_manifest_bytes(read_dataset_manifest(path.parent).model_copy(update=changes)))


@pytest.mark.parametrize(
    ("name", "damage", "message", "opens"),
    [
        ("train/00001.ds", lambda path: os.truncate(path, 36), r"/00001\.ds has 36 bytes, not 40 as in", False),
        ("train/00001.ds", linked, "is a link that leads out of the directory", False),
        ("train/00001.ds", lambda path: path.write_bytes(bytes(40)), r"train/00001\.ds does not have the hash", True),
        ("tokenizer.json", lambda path: path.write_text("[]"), r"tokenizer\.json is missing or changed", True),
        (
            "manifest.json",
            lambda path: resealed(path, fingerprint="0"),
            "the fingerprint in its manifest does not",
            True,
        ),
    ],
    ids=["truncated", "linked", "altered", "tokenizer", "fingerprint"],
)
def test_a_damaged_dataset_is_rejected_and_opens_only_if_the_sizes_fit(tmp_path, name, damage, message, opens):
    dataset = write_dataset(tmp_path / "dataset", [10, 10], [100])
    verify_dataset(dataset)
    damage(dataset / name)
    with pytest.raises(DataError, match=message):
        verify_dataset(dataset)
    with nullcontext() if opens else pytest.raises(DataError, match=message):
        TokenSplit(dataset, "train")
    assert len(TokenSplit(dataset, "validation")) == 100


def test_files_without_the_tokens_of_the_manifest_are_rejected(make_dataset):
    dataset = make_dataset([10])
    splits = read_dataset_manifest(dataset).splits
    more = {name: split.model_copy(update={"num_tokens": 11}) for name, split in splits.items()}
    resealed(dataset / "manifest.json", splits=more)
    with pytest.raises(DataError, match="do not hold 11 tokens"):
        TokenSplit(dataset, "train")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"format_version": 3', '"format_version": 2', "format version 2"),
        ('"vocab_size": 65536', '"vocab_size": 65538', "seal does not match"),
        ('"train/00000.ds"', '"train/../../secret"', "must be a plain relative path"),
    ],
)
def test_a_manifest_with_another_value_cannot_be_read(make_dataset, old, new, message):
    path = make_dataset([10]) / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=rf"manifest\.json cannot be read: .*{message}"):
        read_dataset_manifest(path.parent)


def test_datasets_up_to_a_size_are_hashed_and_larger_ones_checked_by_file_sizes(make_dataset, monkeypatch):
    dataset = make_dataset([10, 30])
    check_dataset(dataset)
    shard = dataset / "train/00000.ds"
    shard.write_bytes(bytes(len(shard.read_bytes())))
    with pytest.raises(DataError, match=r"train/00000\.ds does not have the hash"):
        check_dataset(dataset)
    monkeypatch.setattr("stages.data.dataset.HASHED_BYTES", 100)
    check_dataset(dataset)


def test_samples_and_windows_can_be_pickled_and_read_by_torchs_data_loader(make_dataset):
    dataset: Any = write_dataset(make_dataset([5]), [60, 41], [50], beyond=[3, 0])
    samples: Any = TrainingSamples(dataset, 10, seed=1)
    windows: Any = EvaluationWindows(dataset, "validation", 10)
    rows = list(DataLoader(Subset(samples, range(15, 40)), batch_size=8))
    assert np.array_equal(torch.cat(rows).numpy(), samples.batch(15, 25))
    assert np.array_equal(torch.cat(list(DataLoader(windows, batch_size=3))).numpy(), windows.batch(0, 4))
    assert np.array_equal(pickle.loads(pickle.dumps(samples)).batch(15, 25), samples.batch(15, 25))
    assert len(pickle.dumps(TrainingSamples(make_dataset([100_000]), 10, seed=1))) < 10_000, "a pickle has no tokens"
