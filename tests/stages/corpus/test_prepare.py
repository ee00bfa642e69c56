"""stages/corpus/prepare.py: the content of a dataset, atomic preparation, and rejected sources."""

import gzip
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from stages.corpus import corpus as corpus_module
from stages.corpus.prepare import prepare
from stages.corpus.shards import Shards
from stages.corpus.tasks import Progress
from stages.data.dataset import read_dataset_manifest, verify_dataset
from stages.data.errors import DataError, Unreadable
from stages.data.spec import SPLITS, DataSpec
from tests.pretrained import byte_tokenizer
from tests.stages.corpus.small_source import assert_holds_the_source, decoded, is_held_out, spec_of


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 900)


def prepared(spec: DataSpec, datasets: Path) -> tuple[Path, dict[str, list[Any]]]:
    """The dataset, and the fractions that were reported meanwhile, by message."""
    reported: dict[str, list[Any]] = {}
    progress = Progress(on_progress=lambda message, fraction: reported.setdefault(message, []).append(fraction))
    return prepare(spec, datasets, progress=progress), reported


def folders(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_dir()] if directory.exists() else []


def test_a_dataset_holds_its_documents_and_is_reused_until_a_text_changes(folder, tmp_path, small_shards):
    dataset, reported = prepared(spec_of(folder), tmp_path / "datasets")
    manifest = assert_holds_the_source(dataset)
    assert len(manifest.splits["train"].shards) > 2
    assert 257 < manifest.vocab_size <= 300
    assert sorted(path.name for path in dataset.iterdir()) == ["manifest.json", "tokenizer.json", "train", "validation"]
    for work in ("reading the source", "training the tokenizer", "tokenising"):
        assert reported[work] == sorted(reported[work])
        assert (reported[work][0], reported[work][-1]) == (0.0, 1.0)

    before = {path: path.stat().st_mtime_ns for path in dataset.rglob("*")}
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    again, reported = prepared(spec_of(folder), tmp_path / "datasets")
    assert (again, list(reported)) == (dataset, ["reading the source", "checking the dataset"])
    assert {path: path.stat().st_mtime_ns for path in dataset.rglob("*")} == before
    moved = folder.rename(tmp_path / "elsewhere")
    second = prepare(spec_of(moved), tmp_path / "datasets")
    assert read_dataset_manifest(second).fingerprint == manifest.fingerprint
    changed = moved / "07.txt"
    changed.write_bytes(changed.read_bytes().replace(b"and", b"und"))
    os.utime(changed, (0, 0))
    third = prepare(spec_of(moved), tmp_path / "datasets")
    assert third not in (dataset, second), "a change that keeps size and time is noticed"
    assert read_dataset_manifest(third).fingerprint != manifest.fingerprint


def test_the_tokenizer_is_trained_on_the_train_split_only(tmp_path):
    for number in range(40):
        text = f"{number}" + " validation" * 50
        (tmp_path / f"{number}.txt").write_text(text if is_held_out(text) else f"{number}" + " learning" * 50)
    dataset = prepare(spec_of(tmp_path, vocab_size=600), tmp_path / ".datasets")
    vocabulary = Tokenizer.from_file(str(dataset / "tokenizer.json")).get_vocab()
    assert "Ġlearning" in vocabulary
    assert "valid" not in vocabulary
    assert read_dataset_manifest(dataset).vocab_size < 600, "what was reached, not what was asked for"


def test_hashes_of_the_text_depend_on_the_documents_alone(folder, tmp_path, small_shards, monkeypatch):
    def text_hashes(name: str, source: Path = folder, **values: object) -> list[str | None]:
        manifest = read_dataset_manifest(prepare(spec_of(source, **values), tmp_path / name))
        return [manifest.splits[split].text_hash for split in SPLITS]

    expected = text_hashes("small shards")
    rows = [json.dumps({"text": path.read_bytes().decode()}) for path in sorted(folder.iterdir(), reverse=True)]
    (tmp_path / "reversed.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    monkeypatch.undo()
    assert text_hashes("large shards", vocab_size=320) == expected
    assert text_hashes("reversed", tmp_path / "reversed.jsonl.gz") == expected
    held_out = next(path for path in sorted(folder.iterdir()) if is_held_out(path.read_bytes().decode()))
    held_out.write_text(next(text for text in (f"another text {number}" for number in range(99)) if is_held_out(text)))
    train, validation = text_hashes("other")
    assert train == expected[0]
    assert validation != expected[1]


@settings(max_examples=15)
@given(st.lists(st.integers(0, 8), min_size=12, max_size=40), st.sampled_from([0.1, 0.3, 0.5]), st.booleans())
def test_no_text_is_in_both_splits_and_none_is_left_out(numbers, fraction, in_one_file):
    """Draws documents from few different texts, so that many are duplicates."""
    texts = [f"text {number}" for number in numbers]
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "SHARD_BYTES", 150)
        source, datasets = Path(place, "source"), Path(place, "datasets")
        source.mkdir()
        for number, content in enumerate([" ; ".join(texts)] if in_one_file else texts):
            (source / f"{number:02d}.txt").write_text(content)
        spec = spec_of(source, validation_fraction=fraction, document_separator=" ; ")
        train, validation = ([text for text in texts if is_held_out(text, fraction) == held] for held in (False, True))
        if train and validation:
            dataset = prepare(spec, datasets)
            assert (decoded(dataset, "train"), decoded(dataset, "validation")) == (train, validation)
        else:
            with pytest.raises(DataError, match=r"data\.validation_fraction: .*documents with the same text stay"):
                prepare(spec, datasets)


def test_shuffling_mixes_the_train_documents_of_all_files_by_the_seed_alone(folder, tmp_path, small_shards):
    in_order, first, other = (prepare(spec_of(folder, shuffle_seed=seed), tmp_path) for seed in (None, 1, 2))
    train = verify_dataset(first).splits["train"]
    assert len(train.shards) > 2
    expected, shuffled, again = (decoded(each, "train") for each in (in_order, first, other))
    assert len({tuple(each) for each in (expected, shuffled, again)}) == 3
    assert sorted(shuffled) == sorted(again) == sorted(expected)
    first_shard = [int(text.split()[1]) for text in shuffled[: len(shuffled) // len(train.shards)]]
    assert max(first_shard) - min(first_shard) > 30, "documents of a shard come from everywhere in the source"
    assert decoded(first, "validation") == decoded(in_order, "validation")
    assert train.num_documents == len(expected)


@pytest.mark.parametrize(
    ("error", "failing", "num_kept"),
    [(Unreadable("the server hung up"), 2, 2), (DataError("bad text"), 2, 0), (Unreadable("the server hung up"), 0, 0)],
    ids=["unreadable", "bad text", "at once"],
)
def test_a_source_that_breaks_off_keeps_what_is_done_and_bad_text_does_not(
    folder, tmp_path, monkeypatch, small_shards, error, failing, num_kept
):
    run, datasets = Shards._tokenise, tmp_path / "datasets"

    def work(self, number, meter):
        if number == failing:
            raise error
        return run(self, number, meter)

    monkeypatch.setattr(Shards, "_tokenise", work)
    with pytest.raises(type(error), match=str(error)):
        prepare(spec_of(folder), datasets)
    left = sorted(path.name for path in datasets.rglob("tokenising-*.json"))
    assert left == ["tokenising-00000.json", "tokenising-00001.json"][:num_kept]
    assert bool(folders(datasets)) == (num_kept > 0)


def test_a_text_that_changes_meanwhile_never_mixes_with_what_is_done(folder, tmp_path, small_shards):
    """The file changes after the start and changes back later, so that the same dataset is asked for again."""
    unbroken, last = prepare(spec_of(folder), tmp_path / "unbroken"), folder / "59.txt"
    before = last.read_bytes()

    def change(message, fraction):
        if message == "tokenising":
            last.write_bytes(before.replace(b"Document", b"Folio"))

    with pytest.raises(DataError, match=r"59\.txt changed while it was prepared; run the same command again"):
        prepare(spec_of(folder), tmp_path / "datasets", progress=Progress(on_progress=change))
    last.write_bytes(before)
    resumed, reported = prepared(spec_of(folder), tmp_path / "datasets")
    assert any(message.startswith("resuming: ") for message in reported), "what is done has the right text"
    assert read_dataset_manifest(resumed).fingerprint == read_dataset_manifest(unbroken).fingerprint


@pytest.mark.parametrize("damaged", ["train/00000.ds", "manifest.json", "tokenizer.json"])
def test_a_damaged_dataset_is_set_aside_and_prepared_again(folder, tmp_path, damaged):
    dataset = prepare(spec_of(folder), tmp_path / "datasets")
    fingerprint = read_dataset_manifest(dataset).fingerprint
    (dataset / damaged).unlink()
    if damaged == "tokenizer.json":
        (dataset / damaged).write_text("{}")
    left = sorted(path.name for path in dataset.rglob("*"))
    again, reported = prepared(spec_of(folder), dataset.parent)
    assert (again, verify_dataset(again).fingerprint) == (dataset, fingerprint)
    aside = next(path for path in dataset.parent.iterdir() if "broken" in path.name)
    assert sorted(path.name for path in aside.rglob("*")) == left, "nothing is deleted"
    assert any(str(aside) in message and "preparing it again" in message for message in reported)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "token_bytes"), [(2**16, 2), (2**16 + 1, 4)])
def test_a_large_vocabulary_takes_four_bytes_per_token(tmp_path, size, token_bytes):
    words = {str(number): number for number in range(size - 1)} | {"<|endoftext|>": size - 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("|".join(f"{number} {size - 2}" for number in range(40)))
    spec = spec_of(tmp_path / "text", tokenizer=str(tmp_path), vocab_size=None, document_separator="|")
    manifest = assert_holds_the_source(prepare(spec, tmp_path / "datasets"))
    assert (manifest.token_bytes, manifest.vocab_size) == (token_bytes, size)


def test_only_the_vocabulary_of_an_existing_tokenizer_counts(folder, tmp_path):
    tokenizer = Tokenizer.from_str(byte_tokenizer().to_str())
    own = {"tokenizer": str(tmp_path), "vocab_size": None}
    spec = spec_of(folder, **own)
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    dataset = prepare(spec, tmp_path / "datasets")
    assert_holds_the_source(dataset)
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.add_tokens(["Document"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    other = prepare(spec, tmp_path / "datasets")
    assert other != dataset, "another tokenizer of the same name"
    begun = assert_holds_the_source(prepare(spec_of(folder, **own, begin_of_text="<s>"), tmp_path / "datasets"))
    assert begun.text_facts(8).begin_of_text_id == tokenizer.token_to_id("<s>")
    assert begun.fingerprint != read_dataset_manifest(other).fingerprint


@pytest.mark.parametrize("special", [True, False])
def test_ends_of_text_that_the_tokenizer_finds_inside_documents_are_counted(tmp_path, special):
    tokenizer = Tokenizer.from_str(byte_tokenizer().to_str())
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "ends").write_text("|".join(f"one </s> and {number} </s>" for number in range(40)))
    own = {"tokenizer": str(tmp_path), "vocab_size": None, "end_of_text": "</s>", "document_separator": "|"}
    splits = read_dataset_manifest(prepare(spec_of(tmp_path / "ends", **own), tmp_path / "datasets")).splits.values()
    assert [split.num_inner_ends for split in splits] == [0 if special else 2 * split.num_documents for split in splits]
    assert not any(split.num_unended_documents for split in splits)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenizer": "{tmp}", "vocab_size": None, "end_of_text": "</s>"}, r"has no token '</s>'; its special tok"),
        ({"tokenizer": "{tmp}", "vocab_size": None, "begin_of_text": "<s>"}, r"begin_of_text: .* has no token '<s>'"),
        ({"validation_fraction": 1e-6}, r"data\.validation_fraction: 1e-06 of the 60 .* none for validation \("),
        ({"source": "{folder}/00.txt"}, r"of the 1 document in .* none for (train|vali.*) .* data\.document_separator"),
    ],
)
def test_an_error_that_the_user_can_fix_is_one_line_and_leaves_nothing_behind(folder, tmp_path, values, message):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    places = {"folder": folder, "tmp": tmp_path}
    values = {key: value.format(**places) if isinstance(value, str) else value for key, value in values.items()}
    with pytest.raises(DataError, match=rf"^[^\n]*{message}[^\n]*$"):
        prepare(spec_of(folder, **values), tmp_path / "datasets")
    assert not folders(tmp_path / "datasets")
