"""Streaming text: whole characters only, the same text as decoding everything at once, and stop strings never shown."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from stages.generate.generate import Row
from tests.pretrained import byte_tokenizer

token_ids = st.lists(st.integers(0, 260), max_size=96)
texts = st.text(st.sampled_from("ab é€😀\n"), max_size=60)


def streamed(ids, prompt=(), stop=(), tokenizer=None) -> list[str]:
    row = Row(tokenizer or byte_tokenizer(), prompt, stop)
    pieces = []
    for token in ids:
        pieces.append(row.add(token))
        if row.finish_reason:
            return pieces
    return [*pieces, row.end("length")]


@given(token_ids)
def test_the_pieces_of_any_tokens_join_to_their_text(ids):
    assert "".join(streamed(ids)) == byte_tokenizer().decode(ids)


@given(texts, texts)
def test_no_piece_of_a_text_holds_half_a_character(prompt, text):
    encode = byte_tokenizer().encode
    pieces = streamed(encode(text).ids, encode(prompt).ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(texts, st.lists(st.text(st.sampled_from("ab é€😀\n"), min_size=1, max_size=4), max_size=3))
def test_a_text_ends_before_its_first_stop_string(text, stop):
    pieces = streamed(byte_tokenizer().encode(text).ids, stop=stop)
    places = [text.find(one) for one in stop if one in text]
    # Stop strings are looked for as text arrives, so one that is complete first wins over one that begins first.
    expected = {text[:place] for place in places} or {text}
    assert "".join(pieces) in expected
    assert not any(one in "".join(pieces) for one in stop)


PIECES = ["▁two", "▁words", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]


def sentence_piece() -> Tokenizer:
    """A tokenizer that marks words and spells other text in bytes."""
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(PIECES)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def test_a_tokenizer_that_marks_words_keeps_the_space_after_the_prompt():
    spelled = ["▁two", "▁words", "▁", *(f"<0x{byte:02X}>" for byte in "😀".encode())]
    ids = [PIECES.index(piece) for piece in spelled]
    assert "".join(streamed(ids, prompt=[0, 1], tokenizer=sentence_piece())) == " two words 😀"
