"""Text becomes the tokens that training would see, in little memory, and words and bytes are counted."""

import gzip
import json
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


def test_the_share_read_is_that_of_the_tokens_also_within_a_long_document(tmp_path: Path):
    (tmp_path / "long.txt").write_text("the hen\n" * 40_000)
    stream = TokenStream([tmp_path / "long.txt"], byte_tokenizer(), end_of_text_id=0)
    shares = [(stream.fraction, stream.num_tokens) for _ in stream]
    assert len(shares) > 3
    for fraction, num_tokens in shares:
        assert fraction == pytest.approx(num_tokens / stream.num_tokens, abs=0.01)


def test_json_lines_are_documents_also_compressed(tmp_path: Path):
    with gzip.open(tmp_path / "two.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in ("the", "hen"))
    assert stream_of(tmp_path / "two.jsonl.gz")[0] == ids("the", "hen")


def test_a_byte_order_mark_at_the_start_of_a_text_is_no_token(tmp_path: Path):
    (tmp_path / "marked.txt").write_text("\ufeffthe")
    (tmp_path / "marked.jsonl").write_text('\ufeff{"text": "\ufeffhen"}\n')
    assert stream_of(tmp_path / "marked.txt", tmp_path / "marked.jsonl")[0] == ids("the", "hen")


def test_nan_beside_the_text_of_a_json_line_is_read_but_a_lone_surrogate_is_not(tmp_path: Path):
    (tmp_path / "nan.jsonl").write_text('{"text": "the", "score": NaN}\n{"score": -Infinity, "text": "hen"}\n')
    assert stream_of(tmp_path / "nan.jsonl")[0] == ids("the", "hen")
    (tmp_path / "bad.jsonl").write_text('{"text": "\\ud800", "score": NaN}\n')
    with pytest.raises(UserError, match="is not JSON"):
        stream_of(tmp_path / "bad.jsonl")


def test_a_line_that_is_no_json_document_is_named(tmp_path: Path):
    (tmp_path / "bad.jsonl").write_text('{"text": "the"}\n{"content": "hen"}\n')
    with pytest.raises(UserError, match=r"bad\.jsonl line 2 .*'text'"):
        stream_of(tmp_path / "bad.jsonl")


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"--text .*folde: there is no such file.*; did you mean '.*/folder'\?"):
        text_files([tmp_path / "folde"])
    with pytest.raises(UserError, match=r"--text .*folder: .*no file in that folder"):
        text_files([tmp_path / "folder"])


def test_text_that_is_not_utf_8_is_named(tmp_path: Path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 the hen")
    with pytest.raises(UserError, match=r"latin\.txt line 1 is not UTF-8 text"):
        stream_of(tmp_path / "latin.txt")


def test_a_tokenizer_without_an_end_of_text_adds_none(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the hen")
    (tokens,) = TokenStream([tmp_path / "a.txt"], byte_tokenizer(), None)
    assert [*tokens.tolist(), 0] == ids("the hen")


def test_an_end_of_text_spelled_out_in_a_document_is_ordinary_text(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the <|endoftext|> hen")
    assert stream_of(tmp_path / "a.txt")[0].count(0) == 1


def test_a_document_in_pieces_has_the_tokens_and_the_counts_of_the_whole(tmp_path: Path):
    text = "the hen  is in\nthe barn, é " * 10_000
    (tmp_path / "a.txt").write_text(text)
    tokens, stream = stream_of(tmp_path / "a.txt")
    assert tokens == ids(text)
    counts = (stream.num_words, stream.num_bytes, stream.num_tokens)
    assert counts == (len(re.split(r"\s+", text)), len(text.encode()), len(tokens))


def test_words_are_counted_as_the_evaluation_harness_counts_them(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the  hen\nin the barn")
    assert stream_of(tmp_path / "a.txt")[1].num_words == 5
