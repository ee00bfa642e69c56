"""stages/data/safe_cuts.py and encoding.py: pieces of a document give the tokens of the whole."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import PreTokenizer

from stages.corpus import encoding as encoding_module
from stages.corpus.encoding import encode_documents, is_cuttable, pieces

END = "<|endoftext|>"
PARTS = [*"abé7 \n", "ab", ".\n", "。\n", ",\r\n", ". ", "中\n", "  ", "\n\n", "'ll", "\u0301", "²", "\t", END]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=60).map("".join) | st.text()


def trained(pre_tokenizer: PreTokenizer) -> Tokenizer:
    """A byte-level BPE of few entries, NeoX's normaliser, and added tokens like its runs of spaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=[END], initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(
        ["a b é\n\nb  a.\n aa'll 77 7.\n\n é中。\n中\nab a,\nb\n a\n"] * 3 + [".\n,\n。\n"] * 9, trainer
    )
    tokenizer.add_tokens([AddedToken("  ", normalized=True), AddedToken("ba", normalized=False)])
    return tokenizer


def split_then_bytes(pattern: str) -> PreTokenizer:
    """As Llama 3 and Qwen have it."""
    steps = [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return pre_tokenizers.Sequence(steps)


def bytes_then_white_space() -> PreTokenizer:
    """Looks for white space where none is left: ByteLevel has turned a space into a letter."""
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), pre_tokenizers.WhitespaceSplit()]
    return pre_tokenizers.Sequence(steps)


TOKENIZER = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))


@given(TEXTS, st.integers(1, 6))
def test_pieces_of_a_text_give_the_tokens_of_the_whole_text(text: str, longest: int) -> None:
    cut = list(pieces(text, longest))
    assert "".join(cut) == text
    assert is_cuttable(TOKENIZER)
    TOKENIZER.encode_special_tokens = True
    whole = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert [id for piece in cut for id in TOKENIZER.encode(piece, add_special_tokens=False).ids] == whole


def test_a_text_is_cut_wherever_it_is_long_and_stays_whole_where_no_place_is_safe() -> None:
    assert list(pieces("ab cd ef gh", 4)) == ["ab cd", " ef gh"]
    assert list(pieces("。\n" * 50 + "ab c", 6)) == ["。\n" * 50 + "ab", " c"]
    assert list(pieces("x" * 50, 6)) == ["x" * 50]
    assert list(pieces("", 6)) == [""]


@pytest.mark.parametrize(
    "change",
    [
        lambda tokenizer: setattr(tokenizer, "normalizer", normalizers.NFKC()),
        lambda tokenizer: setattr(tokenizer, "pre_tokenizer", None),
        lambda tokenizer: setattr(tokenizer, "pre_tokenizer", pre_tokenizers.Metaspace()),
        lambda tokenizer: setattr(tokenizer, "pre_tokenizer", split_then_bytes(r"\w+ \w+")),
        lambda tokenizer: setattr(tokenizer, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda tokenizer: tokenizer.add_tokens(["new york"]),
        lambda tokenizer: tokenizer.add_tokens([AddedToken("x", rstrip=True)]),
        lambda tokenizer: tokenizer.add_special_tokens(["<end of>"]),
        lambda tokenizer: setattr(tokenizer, "pre_tokenizer", bytes_then_white_space()),
    ],
)
@pytest.mark.slow
def test_a_tokenizer_that_might_not_cut_encodes_documents_whole(change: Callable[[Tokenizer], object]) -> None:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    change(tokenizer)
    assert not is_cuttable(tokenizer)
    parts = list(encode_documents(tokenizer, [(0, "ab " * 100_000)], 0, "<u2"))
    assert [left for _, _, left in parts] == [0]


def test_documents_of_any_length_keep_their_order_and_end_in_the_end_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_module, "BATCH_CHARACTERS", 300_000)
    tokenizer = TOKENIZER
    texts = ["a b", "", "ab aa\n" * 60_000, f"b {END} a", "a" * 1000]
    found: list[list[int]] = [[]]
    for text, tokens, left in encode_documents(tokenizer, zip(texts, texts, strict=True), 0, "<u4"):
        assert text == texts[len(found) - 1]
        assert tokens.dtype == np.dtype("<u4")
        found[-1] += tokens.tolist()
        if left == 0:
            found.append([])
    assert found.pop() == []
    assert found == [[*tokenizer.encode(text, add_special_tokens=False).ids, 0] for text in texts]


def test_the_published_neox_tokenizer_is_cut(tmp_path: Path) -> None:
    path = Path(__file__).parents[3].parent / "shared" / "data" / "gpt-neox-20b-tokenizer.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    assert is_cuttable(Tokenizer.from_file(str(path)))
