"""Text becomes the tokens that training would see, in little memory, and words and bytes are counted."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from model.errors import UserError
from stages.evaluate.documents import TokenStream, text_files
from tests.pretrained import byte_tokenizer


def ids(*texts: str) -> list[int]:
    return [token for text in texts for token in (*byte_tokenizer().encode(text).ids, 0)]


def stream_of(*files: Path) -> tuple[list[int], TokenStream]:
    stream = TokenStream(files, byte_tokenizer(), end_of_text_id=0)
    return np.concatenate([np.empty(0, np.int64), *stream]).tolist(), stream


def test_each_file_is_a_document_with_the_end_of_text_after_it(tmp_path: Path):
    for name, text in {"b.txt": "the hen", "a.txt": "in the\n", ".hidden": "no", "empty.txt": " \n"}.items():
        (tmp_path / name).write_text(text)
    tokens, stream = stream_of(*text_files([tmp_path]))
    assert tokens == ids("in the\n", "the hen")
    assert (stream.num_tokens, stream.num_bytes) == (len(tokens), 14)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("two.jsonl", b'{"text": "the"}\n{"text": "hen"}\n'),
        ("two.jsonl.gz", gzip.compress(b'{"text": "the"}\n{"text": "hen"}\n', mtime=0)),
        ("marked.jsonl", '\ufeff{"text": "\ufeffthe"}\n{"text": "hen"}\n'.encode()),
        ("nan.jsonl", b'{"text": "the", "score": NaN}\n{"score": -Infinity, "text": "hen"}\n'),
    ],
)
def test_json_lines_are_documents(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "marked.txt").write_text("\ufeffthe")
    assert stream_of(tmp_path / name, tmp_path / "marked.txt")[0] == ids("the", "hen", "the")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.jsonl", b'{"text": "\\ud800", "score": NaN}\n', "is not JSON"),
        ("bad.jsonl", b'{"text": "the"}\n{"content": "hen"}\n', r"bad\.jsonl line 2 .*'text'"),
        ("latin.txt", b"caf\xe9 the hen", r"latin\.txt line 1 is not UTF-8 text"),
        ("text", None, r"--text .*/text: there is no such file.*; did you mean '.*/texts'\?"),
        ("texts", None, "--text .*/texts: .*no file in that folder"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None, message: str):
    (tmp_path / "texts").mkdir()
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        stream_of(*text_files([tmp_path / name]))


def test_an_end_of_text_is_added_if_there_is_one_and_ordinary_text_where_it_is_spelled_out(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the <|endoftext|> hen")
    assert stream_of(tmp_path / "a.txt")[0].count(0) == 1
    (tokens,) = TokenStream([tmp_path / "a.txt"], byte_tokenizer(), None)
    assert [*tokens.tolist(), 0] == stream_of(tmp_path / "a.txt")[0]


def test_the_share_read_is_that_of_the_tokens_also_within_a_long_document(tmp_path: Path):
    (tmp_path / "long.txt").write_text("the hen\n" * 40_000)
    stream = TokenStream([tmp_path / "long.txt"], byte_tokenizer(), end_of_text_id=0)
    shares = [(stream.fraction, stream.num_tokens) for _ in stream]
    assert len(shares) > 3
    for fraction, num_tokens in shares:
        assert fraction == pytest.approx(num_tokens / stream.num_tokens, abs=0.01)


def test_a_document_in_pieces_has_the_tokens_and_the_counts_of_the_whole(tmp_path: Path):
    """Words are counted as lm-evaluation-harness counts them."""
    text = "the hen  is in\nthe barn, é " * 10_000
    (tmp_path / "a.txt").write_text(text)
    tokens, stream = stream_of(tmp_path / "a.txt")
    assert tokens == ids(text)
    counts = (stream.num_words, stream.num_bytes, stream.num_tokens)
    assert counts == (len(re.split(r"\s+", text)), len(text.encode()), len(tokens))
