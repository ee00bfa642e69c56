"""`growctl data show` on a small prepared dataset: figures, samples and messages."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from growctl.data.show import PERCENTILES, count_lengths, read_sample
from stages.corpus.prepare import prepare
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.samples import TrainingSamples
from stages.data.spec import DataSpec
from stages.spec import MixtureSpan
from tests.growctl.runs import made_once, run_here
from tests.growctl.schedules import TEXT, file_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the schedule tiny.yaml, and its dataset in runs."""

    def make(folder: Path) -> None:
        texts = [f"Document {number}: café\tend\n" * (1 + number * number % 7) for number in range(40)]
        (folder / "docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        file_of(folder, TEXT.replace("python-stdlib", str(folder / "docs.jsonl")), "tiny.yaml")
        run_here("prepare", folder / "tiny.yaml", "--runs-dir", folder / "runs")

    return made_once(tmp_path_factory, "data_show", make)


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Path:
    [manifest] = (folder / "runs/.datasets").glob("*/manifest.json")
    return manifest.parent


@pytest.fixture(scope="module")
def mixture(folder: Path, dataset: Path) -> Path:
    """A mixture of that dataset and another one with its tokenizer."""
    text = folder / "chants.txt"
    text.write_text("".join(f"chant {number * 7919}, {'la ' * (number % 5)}\n" for number in range(9000)))
    spec = DataSpec(source=str(text), tokenizer=str(dataset / "tokenizer.json"), validation_fraction=0.3)
    chants = prepare(spec, folder / "elsewhere")
    return write_mixture([Ingredient("docs", dataset, 3.0), Ingredient("chants", chants, 1.0, 5.0)], folder / "mixed")


def show(folder: Path, *options: object) -> tuple[str, str]:
    return run_here("data", "show", folder / "tiny.yaml", *options, "--runs-dir", folder / "runs")


SPANS = (MixtureSpan(first_window=0, weights={"docs": 1.0, "chants": 1.0}),)


@settings(max_examples=60)
@given(
    st.booleans(), st.integers(0, 2**40), st.integers(1, 200), st.integers(0, 2**32 - 1),
    st.sampled_from(["concatenate", "best_fit"]), st.sampled_from([(), SPANS]),
)  # fmt: skip
def test_a_sample_shown_is_the_sample_that_training_reads(dataset, mixture, mixes, index, length, seed, packing, spans):
    read, index = (mixture, index % 20_000) if mixes else (dataset, index)
    samples = TrainingSamples(read, length, seed, spans if mixes else (), "others", packing)
    sample = read_sample(read, samples, index)
    expected = samples.batch(index, 1)[0].tolist()
    tokenizer = Tokenizer.from_file(str(dataset / "tokenizer.json"))
    assert (list(sample.ids), sample.text) == (expected, tokenizer.decode(expected, skip_special_tokens=False))
    if samples.mixture:
        source, epoch, _ = samples.origin(index)
        assert (sample.source, sample.epoch) == (samples.mixture.sources[source].name, epoch)


def test_a_sample_is_printed_as_it_is_and_packed_if_the_schedule_packs(folder: Path, dataset: Path) -> None:
    sample = read_sample(dataset, TrainingSamples(dataset, 16, 3), 123456)
    fact = f"sample 123,456: epoch {sample.epoch + 1:,}, 17 tokens from token {sample.position:,} of train"
    assert show(folder, "--sample", 123456)[0] == f"{fact}\n{sample.text}\n"
    found = json.loads(show(folder, "data.packing=best_fit", "--sample", 3, "--json")[0])["sample"]
    assert found["ids"] == TrainingSamples(dataset, 16, 3, packing="best_fit")[3].tolist()


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(1, 20) | st.integers(1, 2**40), max_size=30), max_size=4).filter(any))
def test_lengths_are_counted_exactly_whatever_the_parts(parts: list[list[int]]) -> None:
    every = sorted(length for part in parts for length in part)
    ranks = {name: max(0, math.ceil(percent * len(every) / 100) - 1) for name, percent in PERCENTILES.items()}
    found = count_lengths(np.array(part, np.int64) for part in parts)
    assert found == {"mean": sum(every) / len(every)} | {name: every[rank] for name, rank in ranks.items()}


def test_what_cannot_be_shown_gets_one_message(folder: Path, dataset: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(dataset, tmp_path / "copy"))
    with (copy / "train/00000.ds").open("ab") as shard:
        shard.write(b"12")
    for words, message in (
        ((folder / "tiny.yaml", "--sample", 2**63), "--sample"),
        ((folder / "tiny.yaml", "data.vocab_size=299"), "to prepare it: growctl prepare "),
        ((copy,), f"{copy} is damaged: train/00000.ds has "),
    ):
        _, err = run_here("data", "show", *words, "--runs-dir", folder / "runs", expect=2)
        assert message in " ".join(err.split())
