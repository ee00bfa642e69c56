"""stages/data/prepare.py: the content of a dataset, atomic preparation, and rejected sources."""

import errno
import gzip
import json
import os
import tempfile
from pathlib import Path

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stages.corpus import corpus as corpus_module
from stages.corpus import tokenizer as tokenizer_module
from stages.corpus.corpus import content_hash, is_validation
from stages.corpus.prepare import prepare
from stages.corpus.shards import Shards
from stages.corpus.tasks import Meter, Progress, ShardRecord
from stages.data.dataset import read_dataset_manifest, verify_dataset
from stages.data.errors import DataError, Unreadable
from stages.data.spec import DataSpec
from tests.stages.corpus.small_source import assert_holds_the_source, decoded, is_held_out, spec_of

REPOSITORY = Path(__file__).parents[3]
SHARED = REPOSITORY.parent / "shared" / "data"
NEOX_TOKENIZER = SHARED / "gpt-neox-20b-tokenizer.json"
WIKITEXT = SHARED / "wikitext2-valid.txt"


def prepared(spec: DataSpec, datasets: Path) -> tuple[Path, list[str]]:
    """The dataset, and what was reported meanwhile, each message once."""
    messages: list[str] = []
    dataset = prepare(spec, datasets, progress=Progress(on_progress=lambda message, _: messages.append(message)))
    return dataset, list(dict.fromkeys(messages))


def test_the_tokens_of_a_folder_decode_to_its_exact_documents(folder: Path, tmp_path: Path) -> None:
    dataset = prepare(spec_of(folder), tmp_path / "datasets")
    manifest = assert_holds_the_source(dataset)
    assert 257 < manifest.vocab_size <= 300
    assert sorted(path.name for path in dataset.iterdir()) == ["manifest.json", "tokenizer.json", "train", "validation"]
    texts = [path.read_bytes().decode() for path in folder.iterdir()]
    assert manifest.splits["validation"].num_documents == sum(map(is_held_out, texts))


def test_the_tokenizer_is_trained_on_the_train_split_only(tmp_path: Path) -> None:
    source = tmp_path / "texts"
    source.mkdir()
    for number in range(40):
        text = f"{number}" + " validation" * 50
        (source / f"{number}.txt").write_text(text if is_held_out(text) else f"{number}" + " learning" * 50)
    dataset = prepare(spec_of(source, vocab_size=600), tmp_path / "datasets")
    vocabulary = Tokenizer.from_file(str(dataset / "tokenizer.json")).get_vocab()
    assert "Ġlearning" in vocabulary
    assert "valid" not in vocabulary
    assert read_dataset_manifest(dataset).vocab_size < 600, "what was reached, not what was asked for"


@pytest.mark.slow
def test_the_result_is_the_same_for_any_number_of_workers_and_every_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 900)
    log = tmp_path / "prepare.log"
    first, second, again = (
        prepare(spec_of(folder, workers=workers), tmp_path / name, progress=Progress(log))
        for name, workers in (("one", 1), ("two", 2), ("again", 1))
    )
    manifests = [assert_holds_the_source(dataset) for dataset in (first, second, again)]
    assert len(manifests[0].splits["train"].files) > 4, "several shards"
    assert len({manifest.fingerprint for manifest in manifests}) == 1
    assert first.name == second.name == again.name
    for path in (path for path in first.rglob("*.*") if path.name != "manifest.json"):
        assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()
    assert "tokenising" in log.read_text()


def test_hashes_of_the_text_depend_on_the_documents_and_not_on_tokenizer_order_files_or_compression(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = read_dataset_manifest(prepare(spec_of(folder), tmp_path / "small"))
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 900)
    large = read_dataset_manifest(prepare(spec_of(folder, vocab_size=320), tmp_path / "large"))
    assert small.fingerprint != large.fingerprint
    assert len(large.splits["train"].files) > len(small.splits["train"].files)
    texts = [{name: split.text_hash for name, split in manifest.splits.items()} for manifest in (small, large)]
    assert texts[0] == texts[1]
    rows = [json.dumps({"text": path.read_bytes().decode()}) for path in sorted(folder.iterdir(), reverse=True)]
    (tmp_path / "reversed.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    reordered = read_dataset_manifest(prepare(spec_of(tmp_path / "reversed.jsonl.gz"), tmp_path / "reversed"))
    assert {name: split.text_hash for name, split in reordered.splits.items()} == texts[0]
    held_out = next(path for path in sorted(folder.iterdir()) if is_held_out(path.read_bytes().decode()))
    held_out.write_text(next(text for text in (f"another text {number}" for number in range(99)) if is_held_out(text)))
    other = read_dataset_manifest(prepare(spec_of(folder), tmp_path / "other"))
    assert other.splits["train"].text_hash == texts[0]["train"] != texts[0]["validation"]
    assert other.splits["validation"].text_hash != texts[0]["validation"]


def test_a_dataset_depends_on_the_content_of_its_source_and_not_on_its_path_or_times(
    folder: Path, tmp_path: Path
) -> None:
    first = prepare(spec_of(folder), tmp_path / "datasets")
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    assert prepared(spec_of(folder), first.parent) == (first, ["reading the source", "checking the dataset"])
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == before
    moved = folder.rename(tmp_path / "elsewhere")
    second = prepare(spec_of(moved), tmp_path / "datasets")
    assert read_dataset_manifest(second).fingerprint == read_dataset_manifest(first).fingerprint
    changed = moved / "07.txt"
    changed.write_bytes(changed.read_bytes().replace(b"and", b"und"))
    os.utime(changed, (0, 0))
    third = prepare(spec_of(moved), tmp_path / "datasets")
    assert third not in (first, second), "a change that keeps size and time is noticed"
    assert read_dataset_manifest(third).fingerprint != read_dataset_manifest(first).fingerprint


@settings(max_examples=12)
@given(
    st.lists(st.integers(0, 8), min_size=12, max_size=40),
    st.sampled_from(["folder", "jsonl"]),
    st.sampled_from([0.1, 0.3, 0.5]),
)
def test_no_text_is_in_both_splits_and_none_is_left_out(numbers: list[int], kind: str, fraction: float) -> None:
    """Draws documents from few different texts, so that many are duplicates."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "SHARD_BYTES", 150)
        source = Path(place) / "source"
        source.mkdir()
        texts = [f"text {number}" for number in numbers]
        if kind == "folder":
            for index, text in enumerate(texts):
                (source / f"{index:02d}.txt").write_text(text)
        else:
            (source / "d.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
        spec = spec_of(source, validation_fraction=fraction)
        held_out = [is_validation(content_hash(text.encode()), fraction) for text in texts]
        if all(held_out) or not any(held_out):
            with pytest.raises(
                DataError, match=r"data\.validation_fraction: .*documents with the same text stay together"
            ):
                prepare(spec, Path(place) / "datasets")
            return
        dataset = prepare(spec, Path(place) / "datasets")
        train, validation = decoded(dataset, "train"), decoded(dataset, "validation")
        assert not set(train) & set(validation)
        assert train == [text for text, held in zip(texts, held_out, strict=True) if not held]
        assert validation == [text for text, held in zip(texts, held_out, strict=True) if held]


def test_shuffling_mixes_the_train_documents_of_all_files_by_the_seed_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_order = decoded(prepare(spec_of(folder), tmp_path / "in order"), "train")
    one_shard = decoded(prepare(spec_of(folder, shuffle_seed=1), tmp_path / "one shard"), "train")
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 900)
    first, other = (prepare(spec_of(folder, shuffle_seed=seed), tmp_path / "datasets") for seed in (1, 2))
    manifest = verify_dataset(first)
    shards = [file for file in manifest.splits["train"].files if file.name.endswith(".ds")]
    assert len(shards) > 2
    shuffled = decoded(first, "train")
    assert len({tuple(texts) for texts in (in_order, one_shard, shuffled, decoded(other, "train"))}) == 4
    assert sorted(shuffled) == sorted(one_shard) == sorted(in_order)
    first_shard = [int(text.split()[1]) for text in shuffled[: len(in_order) // len(shards)]]
    assert max(first_shard) - min(first_shard) > 30, "documents of a shard come from everywhere in the source"
    assert decoded(first, "validation") == decoded(prepare(spec_of(folder), tmp_path / "in order"), "validation")
    assert manifest.splits["train"].num_documents == len(in_order)


@pytest.mark.parametrize(
    ("error", "failing", "num_kept"),
    [(Unreadable("the server hung up"), 2, 2), (DataError("bad text"), 2, 0), (Unreadable("the server hung up"), 0, 0)],
)
def test_a_source_that_breaks_off_keeps_what_is_done_and_bad_text_does_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: DataError, failing: int, num_kept: int
) -> None:
    run, datasets = Shards._tokenise, tmp_path / "datasets"

    def work(self: Shards, number: int, meter: Meter) -> ShardRecord:
        if number == failing:
            raise error
        return run(self, number, meter)

    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 900)
    monkeypatch.setattr(Shards, "_tokenise", work)
    with pytest.raises(type(error), match=str(error)):
        prepare(spec_of(folder), datasets)
    left = sorted(path.name for path in datasets.rglob("tokenising-*.json"))
    assert left == ["tokenising-00000.json", "tokenising-00001.json"][:num_kept]
    assert any(path.is_dir() for path in datasets.iterdir()) == (num_kept > 0)


def test_a_text_that_changes_meanwhile_never_mixes_with_what_is_done(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file changes after the start and changes back later, so that the same dataset is asked for again."""
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 900)
    unbroken = prepare(spec_of(folder), tmp_path / "unbroken")
    last = folder / "59.txt"
    before = last.read_bytes()

    def change(message: str, fraction: float | None) -> None:
        if message == "tokenising":
            last.write_bytes(before.replace(b"Document", b"Folio"))

    with pytest.raises(DataError, match=r"59\.txt changed while it was prepared; run the same command again"):
        prepare(spec_of(folder), tmp_path / "datasets", progress=Progress(on_progress=change))
    last.write_bytes(before)
    resumed, messages = prepared(spec_of(folder), tmp_path / "datasets")
    assert any(message.startswith("resuming: ") for message in messages), "what is done has the right text"
    assert read_dataset_manifest(resumed).fingerprint == read_dataset_manifest(unbroken).fingerprint


def test_a_complete_dataset_that_could_not_be_renamed_is_only_renamed_the_next_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network disk that fails for a moment."""
    rename = os.rename

    def failing(source: Path, target: Path) -> None:
        if Path(source).suffix == ".incomplete":
            raise OSError(errno.EIO, "Input/output error", str(source))
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        with pytest.raises(OSError, match="Input/output error"):
            prepare(spec_of(folder), tmp_path / "datasets")
    monkeypatch.setattr(Shards, "_tokenise", lambda *_: pytest.fail("the work is done"))
    dataset = prepare(spec_of(folder), tmp_path / "datasets")
    verify_dataset(dataset)
    assert [path for path in dataset.parent.iterdir() if path.is_dir()] == [dataset]


@pytest.mark.parametrize("damage", ["missing shard", "no manifest", "changed tokenizer"])
def test_a_damaged_dataset_is_set_aside_and_prepared_again(folder: Path, tmp_path: Path, damage: str) -> None:
    dataset = prepare(spec_of(folder), tmp_path / "datasets")
    fingerprint = read_dataset_manifest(dataset).fingerprint
    if damage == "changed tokenizer":
        (dataset / "tokenizer.json").write_text("{}")
    else:
        (dataset / ("train/00000.ds" if damage == "missing shard" else "manifest.json")).unlink()
    left = sorted(path.name for path in dataset.rglob("*"))
    again, messages = prepared(spec_of(folder), dataset.parent)
    assert (again, verify_dataset(again).fingerprint) == (dataset, fingerprint)
    aside = next(path for path in dataset.parent.iterdir() if "broken" in path.name)
    assert sorted(path.name for path in aside.rglob("*")) == left, "nothing is deleted"
    assert any(str(aside) in message and "preparing it again" in message for message in messages)


def test_a_single_file_and_json_lines_and_a_url_can_be_prepared(tmp_path: Path) -> None:
    (tmp_path / "lone.txt").write_text("".join(f"line {number} of a text\n" for number in range(20_000)))
    (tmp_path / "d.jsonl").write_text("".join(f'{{"body": "text number {number}"}}\n' for number in range(50)))
    with fsspec.open("memory://corpus/text", "wb") as file:
        file.write(" ; ".join(f"text {number}" for number in range(50)).encode())
    for values in (
        {"source": str(tmp_path / "lone.txt")},
        {"source": str(tmp_path / "d.jsonl"), "text_key": "body"},
        {"source": "memory://corpus", "document_separator": " ; ", "workers": 2},
    ):
        assert_holds_the_source(prepare(spec_of(tmp_path, **values), tmp_path / "datasets"))


def test_progress_names_the_work_and_goes_from_0_to_1(folder: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, float | None]] = []
    prepare(spec_of(folder), tmp_path / "datasets", progress=Progress(on_progress=lambda *call: calls.append(call)))
    assert list(dict.fromkeys(message for message, _ in calls))[:3] == [
        "reading the source",
        "training the tokenizer",
        "tokenising",
    ]
    for work in ("training the tokenizer", "tokenising"):
        fractions = [fraction for message, fraction in calls if message == work and fraction is not None]
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)


# Existing tokenizers


@pytest.mark.slow
def test_wikitext_in_neox_tokens(tmp_path: Path) -> None:
    if not (NEOX_TOKENIZER.is_file() and WIKITEXT.is_file()):
        pytest.skip(f"{SHARED} has no NeoX tokenizer and WikiText file")
    spec = DataSpec(source=str(WIKITEXT), tokenizer=str(NEOX_TOKENIZER), validation_fraction=0.1)
    manifest = assert_holds_the_source(prepare(spec, tmp_path))
    assert manifest.vocab_size == 50277
    assert manifest.token_bytes == 2
    assert manifest.end_of_text_id == 0
    tokens = sum(split.num_tokens for split in manifest.splits.values())
    text_bytes = sum(split.num_bytes for split in manifest.splits.values())
    assert 4 < text_bytes / tokens < 5


@pytest.fixture
def trained(folder: Path, tmp_path: Path) -> Tokenizer:
    dataset = prepare(spec_of(folder), tmp_path / "for the tokenizer")
    return Tokenizer.from_file(str(dataset / "tokenizer.json"))


def test_truncation_and_padding_of_an_existing_tokenizer_do_not_affect_the_data(
    trained: Tokenizer, folder: Path, tmp_path: Path
) -> None:
    trained.enable_truncation(5)
    trained.enable_padding(length=64)
    (tmp_path / "model").mkdir()
    trained.save(str(tmp_path / "model" / "tokenizer.json"))
    spec = spec_of(folder, tokenizer=str(tmp_path / "model"), vocab_size=None)
    assert_holds_the_source(prepare(spec, tmp_path / "datasets"))


@pytest.mark.parametrize("special", [True, False])
def test_ends_of_text_that_the_tokenizer_finds_inside_documents_are_counted(
    trained: Tokenizer, tmp_path: Path, special: bool
) -> None:
    (trained.add_special_tokens if special else trained.add_tokens)(["</s>"])
    trained.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "ends").mkdir()
    for number in range(40):
        (tmp_path / f"ends/{number}").write_text(f"one </s> and {number} </s>")
    spec = spec_of(tmp_path / "ends", vocab_size=None, tokenizer=str(tmp_path / "tokenizer.json"), end_of_text="</s>")
    splits = read_dataset_manifest(prepare(spec, tmp_path / "datasets")).splits.values()
    assert [split.num_inner_ends for split in splits] == [0 if special else 2 * split.num_documents for split in splits]
    assert not any(split.num_unended_documents for split in splits)


@pytest.mark.slow
def test_a_large_vocabulary_takes_four_bytes_per_token(trained: Tokenizer, folder: Path, tmp_path: Path) -> None:
    trained.add_tokens([f"token number {number}" for number in range(2**16)])
    trained.save(str(tmp_path / "large.json"))
    (folder / "00.txt").write_text(f"token number {2**16 - 1}")
    spec = spec_of(folder, tokenizer=str(tmp_path / "large.json"), vocab_size=None)
    manifest = assert_holds_the_source(prepare(spec, tmp_path / "datasets"))
    assert manifest.token_bytes == 4
    assert manifest.vocab_size == trained.get_vocab_size()


def test_another_tokenizer_with_the_same_name_gives_another_dataset(
    trained: Tokenizer, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    spec = spec_of(folder, tokenizer=str(path), vocab_size=None)
    trained.save(str(path))
    first = prepare(spec, tmp_path / "datasets")
    trained.add_tokens(["Document"])
    trained.save(str(path))
    assert prepare(spec, tmp_path / "datasets") != first


# Errors


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenizer": "{folder}/00.txt", "vocab_size": None}, r"data\.tokenizer: .* is not a tokenizer\.json"),
        (
            {"tokenizer": "{trained}", "vocab_size": None, "end_of_text": "</s>"},
            r"data\.end_of_text: .* has no token '</s>'; its special tokens are <\|endoftext\|>",
        ),
        ({"validation_fraction": 1e-6}, r"data\.validation_fraction: 1e-06 of the 60 .* none for validation \("),
        ({"validation_fraction": 0.999999}, r"data\.validation_fraction: .* leaves none for train \("),
        (
            {"source": "{folder}/00.txt"},
            r"of the 1 document in .* leaves none for (train|validation) .* data\.document_separator",
        ),
        ({"source": "{blank}"}, r"of the 0 documents in '.*/blank' leaves none for train and validation "),
        (
            {"source": "{same}", "document_separator": "|", "validation_fraction": 0.25},
            r"data\.validation_fraction: 0\.25 .* none for validation \(documents with the same text stay together\)",
        ),
    ],
)
def test_an_error_that_the_user_can_fix_is_one_line_and_leaves_nothing_behind(
    folder: Path, tmp_path: Path, trained: Tokenizer, values: dict[str, object], message: str
) -> None:
    trained.save(str(tmp_path / "trained.json"))
    (tmp_path / "blank").write_text(" \n\n")
    (tmp_path / "same").write_text("the same|" * 100)
    places = {"folder": folder} | {name: tmp_path / name for name in ("blank", "same")}
    places["trained"] = tmp_path / "trained.json"
    values = {key: value.format(**places) if isinstance(value, str) else value for key, value in values.items()}
    datasets = tmp_path / "datasets"
    with pytest.raises(DataError, match=message) as caught:
        prepare(spec_of(folder, **values), datasets)
    assert "\n" not in str(caught.value)
    assert not datasets.exists() or not [path for path in datasets.iterdir() if path.is_dir()]


def test_an_error_in_a_worker_has_the_same_message(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "SHARD_BYTES", 900)
    monkeypatch.setattr(tokenizer_module, "TOKENIZER_SAMPLE_BYTES", 1)
    (folder / "59.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"data\.source: .*/59\.txt line 1 is not UTF-8"):
        prepare(spec_of(folder, workers=2), tmp_path / "datasets")
    assert not [path for path in (tmp_path / "datasets").iterdir() if path.is_dir()]
