"""The text of an inspection: whole windows."""

from pathlib import Path

import pytest
import torch

from model.errors import UserError
from stages.inspect.measure import text_windows
from tests.pretrained import byte_tokenizer

END = 0
"""The id of the end of text."""

TEXT = "".join(chr(ord("a") + i % 26) if i % 5 else " " for i in range(200))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_windows_of_a_file_overlap_by_one_token_and_leave_out_the_rest(file):
    ids = [*byte_tokenizer().encode(TEXT).ids, END]
    tokens_ST = text_windows([file], byte_tokenizer(), END, 1000, 10)
    assert tokens_ST.shape == ((len(ids) - 1) // 10, 11)
    assert tokens_ST[:, :-1].flatten().tolist() == ids[: tokens_ST.shape[0] * 10]
    assert torch.equal(tokens_ST[1:, 0], tokens_ST[:-1, -1])


@pytest.mark.slow
def test_a_text_is_read_only_as_far_as_windows_are_wanted(file):
    every_ST = text_windows([file], byte_tokenizer(), END, 1000, 10)
    with file.open("a") as more:
        more.write(TEXT * 12_000)
    broken = file.with_name("unread.txt")
    broken.write_bytes(b"\xff")
    some_ST = text_windows([file, broken], byte_tokenizer(), END, 2, 10)
    assert torch.equal(some_ST, every_ST[:2])


def test_a_text_shorter_than_a_window_is_rejected_with_both_lengths(file):
    file.write_text("abc")
    with pytest.raises(UserError, match=r"text.txt: the text has 3 tokens, but one window of --context 10 needs 11"):
        text_windows([file], byte_tokenizer(), None, 4, 10)
