"""Text becomes the tokens that training would see, in little memory, and words and bytes are counted."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from model.errors import UserError
from stages.checkpoint.manifest import TextFacts
from stages.evaluate.documents import TokenStream, text_files
from tests.pretrained import byte_tokenizer

END = TextFacts(end_of_text_id=0)
TWO_LINES = b'{"text": "the"}\n{"text": "hen"}\n'


def ids(*texts: str) -> list[int]:
    return [token for text in texts for token in (*byte_tokenizer().encode(text).ids, 0)]


def stream_of(*files: Path) -> tuple[list[int], TokenStream]:
    stream = TokenStream(files, byte_tokenizer(), END)
    return np.concatenate([np.empty(0, np.int64), *stream]).tolist(), stream


def test_each_file_and_each_json_line_is_a_document_with_the_end_of_text_after_it(tmp_path: Path):
    texts = {"b.txt": "the hen", "a.txt": "in the\n", ".hidden": "no", "empty.txt": " \n", "c.txt": "\ufeffthe"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "d.jsonl").write_bytes(TWO_LINES.replace(b'"hen"', b'"hen", "score": NaN'))
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(TWO_LINES))
    tokens, stream = stream_of(*text_files([tmp_path]))
    assert tokens == ids("in the\n", "the hen", "the", "the", "hen", "the", "hen")
    assert (stream.num_tokens, stream.num_bytes) == (len(tokens), 14 + 5 * 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.jsonl", b'{"text": "the"}\n{"content": "hen"}\n', r"bad\.jsonl line 2 .*'text'"),
        ("latin.txt", b"caf\xe9 the hen", r"latin\.txt line 1 is not UTF-8 text"),
        ("text", None, "--text .*/text: there is no such file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None, message: str):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        stream_of(*text_files([tmp_path / name]))


def test_what_stands_around_texts_is_added_if_there_is_any_and_ordinary_text_where_it_is_spelled_out(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the <|endoftext|> hen")
    assert stream_of(tmp_path / "a.txt")[0].count(0) == 1
    (tokens,) = TokenStream([tmp_path / "a.txt"], byte_tokenizer(), TextFacts(begin_of_text_id=5))
    assert [*tokens.tolist(), 0] == [5, *stream_of(tmp_path / "a.txt")[0]]


def test_a_long_document_arrives_in_pieces_with_the_tokens_and_counts_of_the_whole_and_its_share_read(tmp_path: Path):
    """Words are counted as lm-evaluation-harness counts them."""
    text = "the hen  is in\nthe barn, " * 15_000 + "é "
    (tmp_path / "a.txt").write_text(text)
    stream = TokenStream([tmp_path / "a.txt"], byte_tokenizer(), END)
    pieces = [(piece, stream.fraction, stream.num_tokens) for piece in stream]
    assert np.concatenate([piece for piece, *_ in pieces]).tolist() == ids(text)
    counts = (stream.num_words, stream.num_bytes, stream.num_tokens)
    assert counts == (len(re.split(r"\s+", text)), len(text.encode()), len(ids(text)))
    assert len(pieces) > 3
    for _, fraction, num_tokens in pieces:
        assert fraction == pytest.approx(num_tokens / stream.num_tokens, abs=0.01)
