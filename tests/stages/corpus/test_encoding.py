"""stages/corpus/encoding.py: pieces of a document give the tokens of the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from stages.corpus import encoding as encoding_module
from stages.corpus.encoding import encode_documents, is_cuttable, pieces

END = "<|endoftext|>"
PARTS = [*"abé7 \n", "ab", ".\n", "。\n", ",\r\n", ". ", "中\n", "  ", "\n\n", "'ll", "\u0301", "²", "\t", END]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=60).map("".join) | st.text()


@pytest.fixture(scope="module")
def content() -> str:
    """A byte-level BPE of few entries, with NeoX's normaliser, and added tokens like its runs of spaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=[END], initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    text = "a b é\n\nb  a.\n aa'll 77 7.\n\n é中。\n中\nab a,\nb\n a\n"
    tokenizer.train_from_iterator([text] * 3 + [".\n,\n。\n"] * 9, trainer)
    tokenizer.add_tokens([AddedToken("  ", normalized=True), AddedToken("ba", normalized=False)])
    return tokenizer.to_str()


@given(TEXTS, st.integers(1, 6))
def test_pieces_of_a_text_give_the_tokens_of_the_whole_text(content, text, longest):
    tokenizer, cut = Tokenizer.from_str(content), list(pieces(text, longest))
    assert "".join(cut) == text
    tokenizer.encode_special_tokens = True
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    assert [id for piece in cut for id in tokenizer.encode(piece, add_special_tokens=False).ids] == whole


def test_a_text_is_cut_wherever_it_is_long():
    assert list(pieces("ab cd ef gh", 4)) == ["ab cd", " ef gh"]


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# as Llama 3 and Qwen have it
WORDS = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated"), BYTES])
# looks for white space where none is left
TWICE = pre_tokenizers.Sequence([BYTES, pre_tokenizers.WhitespaceSplit()])


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": normalizers.NFKC()},
        *({"pre_tokenizer": each} for each in (None, pre_tokenizers.Metaspace(), WORDS, TWICE)),
        {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
        *({"add_tokens": [each]} for each in ("new york", AddedToken("x", rstrip=True))),
        {"add_tokens": [AddedToken("x", single_word=True)]},
        {"add_special_tokens": ["<end of>"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_tokenizer_that_might_not_cut_encodes_documents_whole(content, change):
    tokenizer = Tokenizer.from_str(content)
    assert is_cuttable(tokenizer)
    [(name, value)] = change.items()
    if name.startswith("add"):
        getattr(tokenizer, name)(value)
    else:
        setattr(tokenizer, name, value)
    assert not is_cuttable(tokenizer)
    parts = list(encode_documents(tokenizer, [(0, "ab " * 30_000)], None, 0, "<u2"))
    assert [left for _, _, left in parts] == [0]


def test_the_tokenizer_of_neox_can_cut(shared):
    assert is_cuttable(Tokenizer.from_file(str(shared / "data/gpt-neox-20b-tokenizer.json")))


@pytest.mark.parametrize("begin", [None, 7])
def test_documents_of_any_length_keep_their_order_and_have_one_beginning_and_end(content, monkeypatch, begin):
    monkeypatch.setattr(encoding_module, "BATCH_CHARACTERS", 300_000)
    tokenizer = Tokenizer.from_str(content)
    texts = ["a b", "", "ab aa\n" * 30_000, f"b {END} a", "a" * 1000]
    found: list[list[int]] = [[]]
    for text, tokens, left in encode_documents(tokenizer, zip(texts, texts, strict=True), begin, 0, "<u4"):
        assert text == texts[len(found) - 1]
        assert tokens.dtype == "<u4"
        found[-1] += tokens.tolist()
        if left == 0:
            found.append([])
    first = [] if begin is None else [begin]
    assert found == [*([*first, *tokenizer.encode(text, add_special_tokens=False).ids, 0] for text in texts), []]
