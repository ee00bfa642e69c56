"""The orders of samples, the files of datasets and token files of other programs, as hashes that never change."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from growctl.data.token_import import import_tokens
from stages.corpus.prepare import prepare
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.dataset import read_dataset_manifest
from stages.data.documents import document_lengths
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.packing import packing_facts, packing_file
from stages.data.samples import TrainingSamples
from stages.data.spec import DataSpec
from stages.data.tokens import TokenSplit
from stages.spec import MixtureSpan, Packing
from tests.stages.corpus.token_file_definition import write_megatron_files

GOLDEN = Path(__file__).with_name("frozen_orders.json")
LENGTH = 16
"""Data tokens of a sample."""


def digest(*contents: bytes) -> str:
    hashed = hashlib.sha256()
    for content in contents:
        hashed.update(content)
    return hashed.hexdigest()[:16]


def digest_of_tokens(*arrays: npt.NDArray[np.int64]) -> str:
    return digest(*(array.astype("<i8").tobytes() for array in arrays))


def write_texts(folder: Path, seed: int, num_documents: int) -> Path:
    """Text files of random words, with accents, byte-order marks, empty documents and long ones."""
    rng = random.Random(seed)
    words = ["grow", "token", "héllo", "𝄞", "<|endoftext|>", "\n", "window", "stage", "naïve", "0123"]
    for number in range(num_documents):
        text = " ".join(rng.choices(words, k=rng.choice([0, 3, 20, 40, 300])))
        (folder / "part").mkdir(parents=True, exist_ok=True)
        mark = "\ufeff" if number % 7 == 0 else ""
        (folder / "part" / f"{number:03d}.txt").write_bytes((mark + text).encode())
    lines = [json.dumps({"text": " ".join(rng.choices(words, k=30))}) for _ in range(num_documents // 2)]
    (folder / "lines.jsonl").write_text("\n".join(["\ufeff" + lines[0], "", "{", *lines[1:]]) + "\n")
    return folder


def digests_of_dataset(name: str, dataset: Path) -> dict[str, str]:
    manifest = read_dataset_manifest(dataset)
    files = [file for file in manifest.files if file.name.endswith((".ds", ".index"))]
    facts = {split: part.model_dump(mode="json", exclude={"files"}) for split, part in manifest.splits.items()}
    return {
        f"{name}: fingerprint": manifest.fingerprint[:16],
        f"{name}: shards": digest(*((dataset / file.name).read_bytes() for file in files)),
        f"{name}: counts": digest(json.dumps([facts, manifest.skipped.counts]).encode()),
    }


def digests_of_orders(name: str, dataset: Path, spans: tuple[MixtureSpan, ...] = ()) -> dict[str, str]:
    """Four epochs and more, in batches as one and two ranks read them, resumed, packed, and in two contexts."""
    found: dict[str, str] = {}
    kinds: list[tuple[Packing, int]] = [("concatenate", LENGTH), ("best_fit", LENGTH), ("concatenate", LENGTH // 4)]
    for packing, context in kinds:
        window = LENGTH if packing == "concatenate" else None
        samples = TrainingSamples(dataset, context, 7, spans, "others", packing, window)
        whole = samples.batch(0, 4000)
        ranks = [np.concatenate([samples.batch(first + rank, 1) for first in range(100, 140, 2)]) for rank in (0, 1)]
        assert np.array_equal(whole[100:140:2], ranks[0])
        assert np.array_equal(whole[101:140:2], ranks[1])
        resumed = TrainingSamples(dataset, context, 7, spans, "others", packing, window).batch(1234, 50)
        assert np.array_equal(whole[1234:1284], resumed)
        found[f"{name}: {packing}, context {context}"] = digest_of_tokens(whole)
        found[f"{name}: {packing}, context {context}, other seed"] = digest_of_tokens(
            TrainingSamples(dataset, context, 8, spans, "others", packing, window).batch(10**12, 100)
        )
        places = [samples.origin(index)[2] for index in range(200)]
        found[f"{name}: {packing}, context {context}, places"] = digest(json.dumps(places).encode())
    for most in (None, 10):
        windows = EvaluationWindows(dataset, "validation", LENGTH, most)
        found[f"{name}: validation, at most {most}"] = digest_of_tokens(windows.batch(0, len(windows)))
    return found


def all_digests(directory: Path) -> dict[str, str]:
    """Name and digest of everything that is frozen."""
    found: dict[str, str] = {}
    texts = {name: write_texts(directory / name, seed, 60) for seed, name in enumerate(["first", "second"])}
    common: dict[str, Any] = {"vocab_size": 300, "validation_fraction": 0.2, "on_bad_record": "skip", "workers": 1}
    trained = prepare(DataSpec(source=str(texts["first"]), **common), directory / "one")
    tokenizer: dict[str, Any] = {**common, "vocab_size": None, "tokenizer": str(trained / "tokenizer.json")}
    datasets = {
        "first": trained,
        "second": prepare(DataSpec(source=str(texts["second"]), **tokenizer), directory / "one"),
        "shuffled": prepare(DataSpec(source=str(texts["first"]), **tokenizer, shuffle_seed=3), directory / "one"),
    }
    processes = prepare(DataSpec(source=str(texts["first"]), **common | {"workers": 2}), directory / "two")
    assert read_dataset_manifest(processes).fingerprint == read_dataset_manifest(trained).fingerprint
    found["tokenizer"] = digest((trained / "tokenizer.json").read_bytes())
    for name, dataset in datasets.items():
        found |= digests_of_dataset(name, dataset) | digests_of_orders(name, dataset)
    facts = packing_facts(trained, LENGTH)
    found["packing index"] = digest(packing_file(trained, LENGTH).read_bytes())
    found["packing facts"] = digest(facts.model_dump_json().encode())

    ends = np.cumsum(np.concatenate([*document_lengths(trained, "train")]))
    documents = np.split(TokenSplit(trained, "train").read(0, int(ends[-1])), ends[:-1])
    written = write_megatron_files(directory / "written", [[document.tolist()] for document in documents])
    imports = {"megatron": written, "datatrove": trained / "train/00000.ds"}
    for name, path in imports.items():
        output, file = directory / f"from {name}", trained / "tokenizer.json"
        import_tokens([path], output, str(file), end_of_text="<|endoftext|>", validation_fraction=0.25)
        found |= digests_of_dataset(f"{name} import", output) | digests_of_orders(f"{name} import", output)

    ingredients = [Ingredient("a", trained, 3.0), Ingredient("b", datasets["second"], 1.0, 1.5)]
    mixture = write_mixture(ingredients, directory / "one")
    found |= digests_of_orders("mixture", mixture)
    spans = (
        MixtureSpan(first_window=0, weights={"a": 3.0, "b": 1.0}),
        MixtureSpan(first_window=70, weights={"a": 1.0, "b": 2.0}),
    )
    found |= digests_of_orders("mixture with stages", mixture, spans)

    remote = prepare(DataSpec(source=f"file://{trained}"), directory / "far")
    assert not (set(digests_of_orders("first", remote).items()) - found.items())
    import fsspec

    fsspec.filesystem("memory").put(str(trained), "/frozen/first", recursive=True)
    remote = prepare(DataSpec(source="memory://frozen/first"), directory / "far")
    assert remote.is_relative_to(directory / "far")
    assert not (set(digests_of_orders("first", remote).items()) - found.items())
    return found


@pytest.mark.slow
def test_orders_datasets_and_token_files_are_what_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.corpus.corpus.SHARD_BYTES", 5000)
    assert all_digests(tmp_path) == json.loads(GOLDEN.read_text())
