"""`growctl data import`."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from stages.checkpoint import files as checkpoint_files
from stages.corpus.prepare import prepare
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.dataset import read_dataset_manifest, verify_dataset
from stages.data.documents import document_lengths
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.spec import SPLITS, DataSpec, SplitName
from stages.data.tokens import TokenSplit
from tests.growctl.runs import run_here
from tests.growctl.schedules import TEXT, file_of
from tests.pretrained import END_OF_TEXT, byte_tokenizer
from tests.stages.corpus.token_file_definition import write_datatrove_files, write_megatron_files

TEXTS = [f"the thing {number} in the text" * (number % 4 + 1) for number in range(40)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(byte_tokenizer().to_str())
    return path


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """A dataset as `growctl prepare` makes it."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    spec = DataSpec(source=str(folder / "texts.jsonl"), tokenizer=str(tokenizer), validation_fraction=0.2)
    return prepare(spec, folder / "datasets")


def encoded(texts: list[str]) -> list[list[int]]:
    return [[*byte_tokenizer().encode(text).ids, 0] for text in texts]


def documents_in(dataset: Path, split: SplitName) -> list[list[int]]:
    """The tokens of each document of a split."""
    ends, tokens = np.cumsum(np.concatenate([*document_lengths(dataset, split)])), TokenSplit(dataset, split)
    return [part.tolist() for part in np.split(tokens.read(0, len(tokens)), ends[:-1])]


def pile(prefix: Path) -> Path:
    return write_megatron_files(prefix, [[tokens] for tokens in encoded(TEXTS)])


def test_an_import_of_a_prepared_text_has_the_fingerprint_of_its_preparation(
    tmp_path: Path, dataset: Path, tokenizer: Path
) -> None:
    files = {
        split: write_megatron_files(tmp_path / split, [[tokens] for tokens in documents_in(dataset, split)])
        for split in SPLITS
    }
    options = ("--validation", files["validation"], "--tokenizer", dataset / "tokenizer.json")
    run_here("data", "import", files["train"], *options, "--output", tmp_path / "back")
    before, after = read_dataset_manifest(dataset), verify_dataset(tmp_path / "back")
    for split in SPLITS:
        assert documents_in(tmp_path / "back", split) == documents_in(dataset, split)
        was, now = before.splits[split], after.splits[split]
        assert (now.num_tokens, now.num_documents, now.num_bytes) == (was.num_tokens, was.num_documents, was.num_bytes)
    assert after.fingerprint == before.fingerprint


@pytest.mark.parametrize("kind", ["B", "h", "H", "i", "q"])
def test_the_last_documents_of_a_prefix_become_validation_whatever_its_type(
    tmp_path: Path, tokenizer: Path, kind: str
) -> None:
    expected = [[5, 6, 7, 0]] * 39 + [[8, 0]] if kind == "B" else encoded(TEXTS)  # B: ids up to 255
    prefix = write_megatron_files(tmp_path / "pile", [[tokens] for tokens in expected], kind)
    out, _ = run_here(
        *("data", "import", prefix, "--tokenizer", tokenizer, "--validation-fraction", "0.1"),
        *("--output", tmp_path / "new", "--json"),
    )
    linked = json.loads(out)["linked_files"]
    assert linked == ([str(tmp_path / "new/train/00000.ds")] if kind in "hHi" else [])
    manifest = verify_dataset(tmp_path / "new")
    cut = len(expected) * 9 // 10
    for split, part in zip(SPLITS, (expected[:cut], expected[cut:]), strict=True):
        assert documents_in(tmp_path / "new", split) == part
        stream = TokenSplit(tmp_path / "new", split)
        tokens = [token for document in part for token in document]
        assert stream.read(0, len(stream)).tolist() == tokens
        if kind != "B":
            text = "".join(TEXTS[:cut] if split == "train" else TEXTS[cut:])
            assert manifest.splits[split].num_bytes == len(text.encode())
    assert manifest.token_bytes == (4 if kind == "i" else 2)
    EvaluationWindows(tmp_path / "new", "validation", 1)


def test_datatrove_files_become_shards_without_a_copy(tmp_path: Path, tokenizer: Path) -> None:
    write_datatrove_files(tmp_path / "trove/a.ds", encoded(TEXTS[:30]))
    write_datatrove_files(tmp_path / "trove/b.ds", encoded(TEXTS[30:]))
    (tmp_path / "trove/b.ds").rename(tmp_path / "elsewhere.ds")
    (tmp_path / "trove/b.ds").symlink_to(tmp_path / "elsewhere.ds")
    (tmp_path / "link").symlink_to(tmp_path / "trove")
    out, _ = run_here(
        *("data", "import", pile(tmp_path / "pile"), tmp_path / "link", "--tokenizer", tokenizer),
        *("--validation-fraction", "0.1", "--output", tmp_path / "new", "--json"),
    )
    assert json.loads(out)["linked_files"] == [str(tmp_path / f"new/train/{number:05d}.ds") for number in range(3)]
    verify_dataset(tmp_path / "new")
    train = documents_in(tmp_path / "new", "train")
    assert train == encoded(TEXTS[:36] + TEXTS[:27] + TEXTS[30:39])
    assert documents_in(tmp_path / "new", "validation") == encoded(TEXTS[36:] + TEXTS[27:30] + TEXTS[39:])
    assert os.stat(tmp_path / "new/train/00001.ds").st_ino == os.stat(tmp_path / "trove/a.ds").st_ino


def raw(path: Path, tokens: list[int], magic: int = 0, num_tokens: int | None = None) -> Path:
    """Tokens of uint16 as nanoGPT writes them or, with `magic`, as llm.c does."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, 1, len(tokens) if num_tokens is None else num_tokens
    path.write_bytes((header.tobytes() if magic else b"") + np.array(tokens, "<u2").tobytes())
    return path


def test_raw_tokens_are_cut_after_each_end_of_text_and_copied_only_for_a_header(
    tmp_path: Path, tokenizer: Path
) -> None:
    tokens = [token for document in encoded(TEXTS) for token in document]
    begun = [0, *tokens[:-1]]  # as llm.c writes them: the end of text stands before each document
    options = ("--dtype", "uint16", "--tokenizer", tokenizer.parent, "--validation-fraction", "0.1")
    for name, path, documents in (
        ("nanogpt", raw(tmp_path / "a.bin", tokens), encoded(TEXTS)),
        ("llm.c", raw(tmp_path / "b.bin", begun, 20240520), [[0], *encoded(TEXTS)[:-1], encoded(TEXTS)[-1][:-1]]),
    ):
        out, _ = run_here("data", "import", path, *options, "--output", tmp_path / name, "--json")
        assert len(json.loads(out)["linked_files"]) == (name == "nanogpt")
        verify_dataset(tmp_path / name)
        train, validation = (documents_in(tmp_path / name, split) for split in SPLITS)
        assert train + validation == documents
        assert len(validation) == 4


def test_raw_tokens_without_an_end_of_text_are_cut_into_pieces(tmp_path: Path, tokenizer: Path) -> None:
    train, validation = raw(tmp_path / "train.bin", [5] * 10_000), raw(tmp_path / "val.bin", [6] * 100)
    given = ("--dtype", "uint16", "--tokenizer", tokenizer, "--output", tmp_path / "new")
    out, _ = run_here("data", "import", train, *given, "--validation", validation)
    assert "without <|endoftext|>, each document is a piece of the file" in out
    assert [len(document) for document in documents_in(tmp_path / "new", "train")] == [4096, 4096, 1808]
    assert documents_in(tmp_path / "new", "validation") == [[6] * 100]


def test_raw_tokens_that_cannot_be_used_are_one_error(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "odd.bin").write_bytes(bytes(3))
    (tmp_path / "empty.bin").touch()
    raw(tmp_path / "high.bin", [5, 261, 0] * 200)
    raw(tmp_path / "short.bin", [5, 0], 20240520, num_tokens=3)
    (tmp_path / "texts").mkdir()
    given = ("--tokenizer", tokenizer, "--output", tmp_path / "new")
    for name, message in {
        "odd.bin": "odd.bin has 3 bytes of uint16 tokens, 2 bytes each: it is empty, truncated or of another --dtype",
        "empty.bin": "empty.bin has 0 bytes of uint16 tokens, 2 bytes each: it is empty, truncated",
        "high.bin": "high.bin: token 1 is 261, but the tokenizer's ids go from 0 to 260",
        "short.bin": "short.bin has 4 bytes of uint16 tokens, 2 bytes each, but its header says 3 of them",
        "texts": "texts has no token files: no *.bin",
    }.items():
        _, err = run_here("data", "import", tmp_path / name, *given, "--dtype", "uint16", expect=2)
        assert message in " ".join(err.split())
    _, err = run_here("data", "import", tmp_path / "odd.bin", *given, expect=2)
    assert "odd.bin has no index beside it: if it holds raw tokens (nanoGPT, llm.c), add --dtype uint16" in err
    assert not (tmp_path / "new").exists()


def test_without_hard_links_files_are_copied(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(checkpoint_files.os, "link", refuse)
    out, _ = run_here("data", "import", pile(tmp_path / "a"), "--tokenizer", tokenizer, "--validation-fraction", "0.1",
        "--output", tmp_path / "new", "--json")  # fmt: skip
    assert json.loads(out)["linked_files"] == []
    assert documents_in(tmp_path / "new", "train") == encoded(TEXTS[:36])


def test_documents_without_an_end_of_text_stay_and_those_without_tokens_are_left_out(
    tmp_path: Path, tokenizer: Path
) -> None:
    prefix = write_megatron_files(tmp_path / "bare", [[], [[5, 6, 0]], [[7]], [], [[8, 9]], [[5, 0]]])
    out, _ = run_here(
        *("data", "import", prefix, "--tokenizer", tokenizer, "--validation-fraction", "0.2"),
        *("--output", tmp_path / "new"),
    )
    assert "2 documents without <|endoftext|> at the end, left as they are" in out
    assert documents_in(tmp_path / "new", "train") == [[5, 6, 0], [7], [8, 9]]
    for dataset in (tmp_path / "new", write_mixture([Ingredient("bare", tmp_path / "new", 1)], tmp_path)):
        shown = " ".join(run_here("data", "show", dataset)[0].split())
        assert "2 of 4 documents end in <|endoftext|> (id 0)" in shown
        assert "each document ends" not in shown


def test_documents_without_tokens_do_not_count_in_the_validation_fraction(tmp_path: Path, tokenizer: Path) -> None:
    filled = [[5 + number, 0] for number in range(10)]
    empty_last = [[tokens] for tokens in filled] + [[]] * 20
    mixed = [document for tokens in filled for document in ([], [tokens], [])]
    for name, documents in (("last", empty_last), ("mixed", mixed)):
        prefix = write_megatron_files(tmp_path / name, documents)
        run_here("data", "import", prefix, "--tokenizer", tokenizer, "--validation-fraction", "0.2",
                 "--output", tmp_path / f"{name}-new")  # fmt: skip
        assert documents_in(tmp_path / f"{name}-new", "train") == filled[:8]
        assert documents_in(tmp_path / f"{name}-new", "validation") == filled[8:]


@pytest.mark.parametrize(
    ("written", "misplaced"),
    [
        ([5, 6, 7], "15 of the 20 documents of {} do not end in <|endoftext|> (id 0)"),
        ([5, 0, 7, 0], "{} has <|endoftext|> (id 0) inside its documents too, 15 times"),
        ([5, 6, 7, 0], None),
    ],
)
def test_a_document_mask_needs_one_end_of_text_at_the_end_of_each_document(
    tmp_path: Path, tokenizer: Path, written: list[int], misplaced: str | None
) -> None:
    prefix = write_megatron_files(tmp_path / "pile", [[[8] * 30 + [0]]] * 5 + [[written]] * 15)
    imported, runs = tmp_path / "imported", tmp_path / "runs"
    run_here("data", "import", prefix, "--tokenizer", tokenizer, "--output", imported, "--validation-fraction", "0.5")
    keys = (f"data.source={imported}", "~data.vocab_size", "~data.validation_fraction", "model.vocab_size=9000")
    schedule = file_of(tmp_path, TEXT)
    run_here("validate", schedule, *keys, "--runs-dir", runs)
    for command in ("validate", "plan", *(("run",) if misplaced else ())):
        masked = (command, schedule, *keys, "data.document_mask=true", "--runs-dir", runs)
        _, err = run_here(*masked, expect=2 if misplaced else 0)
        if misplaced:
            assert f"data.document_mask = true: {misplaced.format(imported)}; the model tells" in " ".join(err.split())
    assert not runs.exists()


def test_bytes_are_counted_by_decoding_if_the_tokenizer_is_not_byte_level(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({END_OF_TEXT: 0, "é": 1, "the": 2}, END_OF_TEXT))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    words.add_special_tokens([END_OF_TEXT])
    (tmp_path / "tokenizer.json").write_text(words.to_str())
    prefix = write_megatron_files(tmp_path / "words", [[[1, 2, 0]], [[2, 0]]])
    options = ("--tokenizer", tmp_path / "tokenizer.json", "--validation-fraction", "0.5", "--output", tmp_path / "new")
    run_here("data", "import", prefix, *options)
    splits = read_dataset_manifest(tmp_path / "new").splits
    assert [splits[split].num_bytes for split in SPLITS] == [len("é the".encode()), len("the")]


def test_unusable_input_is_one_error_and_leaves_nothing(tmp_path: Path, tokenizer: Path) -> None:
    good, new = pile(tmp_path / "good"), tmp_path / "new"
    high = write_megatron_files(tmp_path / "high", [[[5, 261, 0]], [[1, 0]]])
    low = write_megatron_files(tmp_path / "low", [[[5, 0]], [[-3, 0]]], "i")
    one = write_megatron_files(tmp_path / "one", [[[5, 0]]])
    empty = write_megatron_files(tmp_path / "empty", [[[5, 0]], *[[]] * 200])
    broken = write_megatron_files(tmp_path / "broken", [[[5, 0]]])
    (tmp_path / "broken.bin").write_bytes(b"")
    (taken := tmp_path / "taken").mkdir()
    before = sorted(tmp_path.rglob("*"))
    given = ("--tokenizer", tokenizer, "--output", new)
    for words, message in [
        (("import", high, *given, "--validation", good), "high.bin: token 1 is 261, but the tokenizer's ids go"),
        (("import", low, *given, "--validation", good), "low.bin: token 2 is -3, but the tokenizer's ids go from"),
        (("import", one, *given), "--validation-fraction 0.01 of 1 document leaves no tokens for validation; choose"),
        (("import", empty, *given), "0.01 of 1 document leaves no tokens for validation"),
        (("import", broken, *given), "broken.idx is damaged or belongs to another .bin"),
        (("import", good, good, *given), "good.bin is given twice; name each file once"),
        (("import", good, *given, "--validation", good), "good.bin is given twice"),
        (("import", good, *given, "--validation-fraction", "1"), "1.0 of 40 documents leaves no tokens for train"),
        (("import", tmp_path / "gone", *given), "gone.bin does not exist"),
        (("import", good, "--tokenizer", good, "--output", new), "good is not a tokenizer.json"),
        (("import", good, "--tokenizer", f"{good}.bin", "--output", new), "--tokenizer: "),
        (("import", good, *given, "--end-of-text", "</s>"), "--end-of-text: the tokenizer"),
        (("import", good, "--tokenizer", tokenizer, "--output", taken), "taken already exists; choose another"),
    ]:  # fmt: skip
        out, err = run_here("data", *words, expect=2)
        assert message in " ".join(err.split()), err
        assert not out
        assert sorted(tmp_path.rglob("*")) == before
