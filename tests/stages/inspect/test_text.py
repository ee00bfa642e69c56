"""The text of an inspection: whole windows, whole batches, and the words around a place."""

from pathlib import Path

import pytest
import torch

from model.errors import UserError
from stages.inspect.text import describe_places, file_windows, whole_batches
from tests.pretrained import byte_tokenizer

TEXT = "".join(chr(ord("a") + i % 26) if i % 5 else " " for i in range(200))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_windows_of_a_file_overlap_by_one_token_and_leave_out_the_rest(file):
    ids = byte_tokenizer().encode(TEXT).ids
    tokens_ST, batch_size = file_windows(file, byte_tokenizer(), 1000, 10, 1)
    assert tokens_ST.shape == ((len(ids) - 1) // 10, 11)
    assert batch_size == 1
    assert tokens_ST[:, :-1].flatten().tolist() == ids[: tokens_ST.shape[0] * 10]
    assert torch.equal(tokens_ST[1:, 0], tokens_ST[:-1, -1])


def test_fewer_windows_are_spread_over_the_file(file):
    every_ST, _ = file_windows(file, byte_tokenizer(), 1000, 10, 1)
    some_ST, _ = file_windows(file, byte_tokenizer(), 2, 10, 1)
    assert torch.equal(some_ST, every_ST[[0, len(every_ST) // 2]])


@pytest.mark.parametrize(
    ("num_sequences", "batch_size", "expected"), [(64, 8, (64, 8)), (7, 3, (6, 3)), (2, 8, (2, 2)), (8, 8, (8, 8))]
)
def test_all_batches_have_the_same_size(num_sequences, batch_size, expected):
    assert whole_batches(num_sequences, batch_size) == expected


def test_a_text_shorter_than_a_window_is_rejected_with_both_lengths(file):
    file.write_text("abc")
    with pytest.raises(UserError, match=r"text.txt has 3 tokens, but one window of --length 10 needs 11"):
        file_windows(file, byte_tokenizer(), 4, 10, 2)


def test_text_that_is_not_utf8_is_rejected_with_the_byte(file):
    file.write_bytes(b"abc\xff")
    with pytest.raises(UserError, match=r"text.txt is not UTF-8 text: invalid start byte at byte 3"):
        file_windows(file, byte_tokenizer(), 4, 10, 2)


def test_a_place_is_described_by_the_text_before_it_and_the_token_there():
    ids = byte_tokenizer().encode("one four five").ids
    describe = describe_places(torch.tensor([[5] * len(ids), ids]), byte_tokenizer())
    assert describe(1, 0) == ("", "o")
    assert describe(1, 3) == ("one", " ")
    assert describe(1, 5) == ("one f", "o")
