"""`growctl data import`."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from growctl.data.token_import import DataImportDocument, import_tokens
from stages.corpus.prepare import prepare
from stages.data.dataset import dataset_parts, read_dataset_manifest, verify_dataset
from stages.data.documents import document_lengths, misplaced_ends
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.spec import SPLITS, DataSpec, SplitName
from stages.data.tokens import TokenSplit
from tests.growctl.runs import run_here
from tests.pretrained import END_OF_TEXT, byte_tokenizer
from tests.stages.corpus.token_file_definition import write_datatrove_files, write_megatron_files

TEXTS = [f"the thing {number} in the text" * (number % 4 + 1) for number in range(40)]
ENCODED = [[*byte_tokenizer().encode(text).ids, 0] for text in TEXTS]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(byte_tokenizer().to_str())
    return path


def imported(tokenizer: Path, *sources: Path, fraction: float = 0.1, **options: Any) -> DataImportDocument:
    """An import of `sources` to `new` beside the first."""
    output = sources[0].parent / "new"
    values: dict[str, Any] = {"end_of_text": END_OF_TEXT, "validation_fraction": fraction} | options
    return import_tokens(sources, output, str(tokenizer), **values)


def documents_in(dataset: Path, split: SplitName) -> list[list[int]]:
    """The tokens of each document of a split, after a check of the dataset."""
    verify_dataset(dataset)
    ends, tokens = np.cumsum(np.concatenate([*document_lengths(dataset, split)])), TokenSplit(dataset, split)
    return [part.tolist() for part in np.split(tokens.read(0, len(tokens)), ends[:-1])]


def pile(prefix: Path) -> Path:
    return write_megatron_files(prefix, [[tokens] for tokens in ENCODED])


def test_an_import_of_a_prepared_text_has_the_fingerprint_of_its_preparation(tmp_path, tokenizer):
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    tokens: dict[str, Any] = {"tokenizer": str(tokenizer), "begin_of_text": END_OF_TEXT}
    spec = DataSpec(source=str(tmp_path / "texts.jsonl"), validation_fraction=0.2, **tokens)
    dataset = prepare(spec, tmp_path / "datasets")
    for split in SPLITS:
        write_megatron_files(tmp_path / split, [[tokens] for tokens in documents_in(dataset, split)])
    options = ("--validation", tmp_path / "validation", "--tokenizer", dataset / "tokenizer.json")
    begin = ("--begin-of-text", END_OF_TEXT)
    run_here("data", "import", tmp_path / "train", *options, *begin, "--output", tmp_path / "back")
    before, after = read_dataset_manifest(dataset), verify_dataset(tmp_path / "back")
    assert after.fingerprint == before.fingerprint
    assert (after.begin_of_text_id, after.spec.begin_of_text) == (0, END_OF_TEXT)
    for split in SPLITS:
        was, now = before.splits[split], after.splits[split]
        assert (now.num_tokens, now.num_documents, now.num_bytes) == (was.num_tokens, was.num_documents, was.num_bytes)


@pytest.mark.parametrize("kind", ["B", "H", "i", "q"])
def test_the_last_documents_of_a_prefix_become_validation_whatever_its_type(tmp_path, tokenizer, kind):
    expected = [[5, 6, 7, 0]] * 39 + [[8, 0]] if kind == "B" else ENCODED  # B: ids up to 255
    prefix = write_megatron_files(tmp_path / "pile", [[tokens] for tokens in expected], kind)
    new = tmp_path / "new"
    document = imported(tokenizer, prefix)
    assert document.linked_files == ((new / "train/00000.ds",) if kind in "hHi" else ())
    assert document.manifest.token_bytes == (4 if kind == "i" else 2)
    for split, part, texts in zip(SPLITS, (expected[:36], expected[36:]), (TEXTS[:36], TEXTS[36:]), strict=True):
        assert documents_in(new, split) == part
        assert kind == "B" or document.manifest.splits[split].num_bytes == len("".join(texts).encode())
    EvaluationWindows(new, "validation", 1)


@pytest.mark.slow
def test_datatrove_files_become_shards_without_a_copy_also_behind_links(tmp_path, tokenizer):
    write_datatrove_files(tmp_path / "trove/a.ds", ENCODED[:30])
    write_datatrove_files(tmp_path / "trove/b.ds", ENCODED[30:])
    (tmp_path / "trove/b.ds").rename(tmp_path / "elsewhere.ds")
    (tmp_path / "trove/b.ds").symlink_to(tmp_path / "elsewhere.ds")
    (tmp_path / "link").symlink_to(tmp_path / "trove")
    options = ("--tokenizer", tokenizer, "--validation-fraction", "0.1", "--output", tmp_path / "new", "--json")
    out, _ = run_here("data", "import", pile(tmp_path / "pile"), tmp_path / "link", *options)
    assert json.loads(out)["linked_files"] == [str(tmp_path / f"new/train/{number:05d}.ds") for number in range(3)]
    assert documents_in(tmp_path / "new", "train") == ENCODED[:36] + ENCODED[:27] + ENCODED[30:39]
    assert documents_in(tmp_path / "new", "validation") == ENCODED[36:] + ENCODED[27:30] + ENCODED[39:]
    assert os.stat(tmp_path / "new/train/00001.ds").st_ino == os.stat(tmp_path / "trove/a.ds").st_ino


def raw(path: Path, tokens: list[int], magic: int = 0, num_tokens: int | None = None) -> Path:
    """Tokens of uint16 as nanoGPT writes them or, with `magic`, as llm.c does."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, 1, len(tokens) if num_tokens is None else num_tokens
    path.write_bytes((header.tobytes() if magic else b"") + np.array(tokens, "<u2").tobytes())
    return path


TOKENS = [token for document in ENCODED for token in document]


@pytest.mark.parametrize(
    ("tokens", "magic", "documents"),
    [
        (TOKENS, 0, ENCODED),
        # llm.c writes the end of text before each document
        ([0, *TOKENS[:-1]], 20240520, [[0], *ENCODED[:-1], ENCODED[-1][:-1]]),
    ],
    ids=["nanogpt", "llm.c"],
)
def test_raw_tokens_are_cut_at_ends_of_text_and_copied_only_for_a_header(tmp_path, tokenizer, tokens, magic, documents):
    document = imported(tokenizer.parent, raw(tmp_path / "a.bin", tokens, magic), dtype="uint16")
    assert len(document.linked_files) == (magic == 0)
    train, validation = (documents_in(document.path, split) for split in SPLITS)
    assert (train + validation, len(validation)) == (documents, 4)


def test_raw_tokens_without_an_end_of_text_are_cut_into_pieces(tmp_path, tokenizer):
    train, validation = raw(tmp_path / "train.bin", [5] * 10_000), raw(tmp_path / "val.bin", [6] * 100)
    given = ("--dtype", "uint16", "--tokenizer", tokenizer, "--output", tmp_path / "new")
    out, _ = run_here("data", "import", train, *given, "--validation", validation)
    assert "without <|endoftext|>, each document is a piece of the file" in out
    assert [len(document) for document in documents_in(tmp_path / "new", "train")] == [4096, 4096, 1808]
    assert documents_in(tmp_path / "new", "validation") == [[6] * 100]


def test_without_hard_links_files_are_copied(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(18, "Invalid cross-device link")))
    assert imported(tokenizer, pile(tmp_path / "a")).linked_files == ()
    assert documents_in(tmp_path / "new", "train") == ENCODED[:36]


def test_documents_without_an_end_of_text_stay_and_those_without_tokens_are_left_out(tmp_path, tokenizer):
    prefix = write_megatron_files(tmp_path / "bare", [[], [[5, 6, 0]], [[7]], [], [[8, 9]], [[5, 0]], *[[]] * 9])
    options = ("--tokenizer", tokenizer, "--validation-fraction", "0.2", "--output", tmp_path / "new")
    out, _ = run_here("data", "import", prefix, *options)
    assert "2 documents without <|endoftext|> at the end, left as they are" in out
    assert documents_in(tmp_path / "new", "train") == [[5, 6, 0], [7], [8, 9]]
    assert documents_in(tmp_path / "new", "validation") == [[5, 0]]
    shown = " ".join(run_here("data", "show", tmp_path / "new")[0].split())
    assert "2 of 4 documents end in <|endoftext|> (id 0)" in shown


@pytest.mark.parametrize(
    ("written", "misplaced"),
    [
        ([5, 6, 7], "15 of the 20 documents of {} do not end in <|endoftext|> (id 0)"),
        ([5, 0, 7, 0], "{} has <|endoftext|> (id 0) inside its documents too, 15 times"),
        ([5, 6, 7, 0], None),
    ],
)
def test_ends_of_text_anywhere_but_at_the_end_of_each_document_are_counted(tmp_path, tokenizer, written, misplaced):
    prefix = write_megatron_files(tmp_path / "pile", [[[8] * 30 + [0]]] * 5 + [[written]] * 15)
    new = imported(tokenizer, prefix, fraction=0.5).path
    assert misplaced_ends(dataset_parts(new)) == (misplaced and misplaced.format(new))


def test_bytes_are_counted_by_decoding_if_the_tokenizer_is_not_byte_level(tmp_path):
    words = Tokenizer(models.WordLevel({END_OF_TEXT: 0, "é": 1, "the": 2}, END_OF_TEXT))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    words.add_special_tokens([END_OF_TEXT])
    (tmp_path / "tokenizer.json").write_text(words.to_str())
    prefix = write_megatron_files(tmp_path / "words", [[[1, 2, 0]], [[2, 0]]])
    splits = imported(tmp_path / "tokenizer.json", prefix, fraction=0.5).manifest.splits
    assert [splits[split].num_bytes for split in SPLITS] == [len("é the".encode()), len("the")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("high --validation good", "high.bin: token 1 is 261, but the tokenizer's ids go from 0 to 260"),
        ("low --validation good", "low.bin: token 2 is -3, but the tokenizer's ids go from"),
        ("one", "--validation-fraction 0.01 of 1 document leaves no tokens for validation; choose"),
        ("broken", "broken.idx is damaged or belongs to another .bin"),
        ("good --validation good", "good.bin is given twice"),
        ("good --end-of-text </s>", "--end-of-text: the tokenizer"),
        ("good --validation one --begin-of-text <|endoftext|>", "40 documents of good.bin begin without it; leave"),
        ("good --output taken", "taken already exists; choose another"),
        ("odd.bin --dtype uint16", "odd.bin has 3 bytes of uint16 tokens, 2 bytes each: it is empty, truncated or of"),
        ("raw.bin --dtype uint16", "raw.bin: token 1 is 261, but the tokenizer's ids go from 0 to 260"),
        ("short.bin --dtype uint16", "short.bin has 4 bytes of uint16 tokens, 2 bytes each, but its header says 3 of"),
    ],
)
def test_unusable_input_is_one_error_and_leaves_nothing(tmp_path, tokenizer, words, message):
    pile(tmp_path / "good")
    write_megatron_files(tmp_path / "high", [[[5, 261, 0]], [[1, 0]]])
    write_megatron_files(tmp_path / "low", [[[5, 0]], [[-3, 0]]], "i")
    write_megatron_files(tmp_path / "one", [[[5, 0]]])
    write_megatron_files(tmp_path / "broken", [[[5, 0]]])
    (tmp_path / "broken.bin").write_bytes(b"")
    (tmp_path / "odd.bin").write_bytes(bytes(3))
    raw(tmp_path / "raw.bin", [5, 261, 0] * 200)
    raw(tmp_path / "short.bin", [5, 0], 20240520, num_tokens=3)
    (tmp_path / "taken").mkdir()
    before = sorted(tmp_path.rglob("*"))
    given = ["--tokenizer", tokenizer, "--output", tmp_path / "new"]
    out, err = run_here("data", "import", *given, *words.split(), expect=2, cwd=tmp_path)
    assert message in " ".join(err.split()), err
    assert not out
    assert sorted(tmp_path.rglob("*")) == before
