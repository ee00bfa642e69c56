"""The text of an inspection: windows of a validation split or of a file, and the words around a place in it.

Shapes: S sequences, T sequence.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.errors import UserError
from stages.data.dataset import EvaluationWindows, read_dataset_manifest

TOKENS_SHOWN = 12
"""Data tokens shown before a place."""


def dataset_windows(dataset: Path, num_sequences: int, length: int, batch_size: int) -> tuple[Tensor, int]:
    """Windows of the validation split, spread evenly over it: (S, T + 1) int64, and the size of a batch.

    Fewer if the split has fewer. Raises DataError if it is shorter than one window.
    """
    available = len(EvaluationWindows(dataset, "validation", length))
    count, batch = whole_batches(min(num_sequences, available), batch_size)
    windows = EvaluationWindows(dataset, "validation", length, count)
    return torch.from_numpy(windows.batch(0, count)), batch


def file_windows(
    path: Path, tokenizer: Tokenizer, num_sequences: int, length: int, batch_size: int
) -> tuple[Tensor, int]:
    """Windows of a UTF-8 text file, spread evenly over it, like `dataset_windows`.

    Raises UserError if the file is not UTF-8 or shorter than one window, OSError if it cannot be read.
    """
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"--text {path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    ids_M = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids, dtype=torch.int64)
    available = (len(ids_M) - 1) // length
    if available < 1:
        raise UserError(
            f"--text {path} has {len(ids_M)} tokens, but one window of --length {length} needs {length + 1}; give more "
            "text or a smaller --length"
        )
    count, batch = whole_batches(min(num_sequences, available), batch_size)
    starts_S1 = (torch.arange(count) * available // count * length)[:, None]
    return ids_M[starts_S1 + torch.arange(length + 1)], batch


def whole_batches(num_sequences: int, batch_size: int) -> tuple[int, int]:
    """(sequences, size of a batch): as many sequences as fill whole batches, because the norm of a batch's gradient
    depends on its size. With less than one batch, all of them are one."""
    if num_sequences < batch_size:
        return num_sequences, num_sequences
    return num_sequences - num_sequences % batch_size, batch_size


def describe_places(tokens_ST: Tensor, tokenizer: Tokenizer) -> Callable[[int, int], tuple[str, str]]:
    """A function that returns the text before a place (sequence, position), and the data token there."""

    def describe(sequence: int, position: int) -> tuple[str, str]:
        before = tokens_ST[sequence, max(0, position - TOKENS_SHOWN) : position].tolist()
        at = [int(tokens_ST[sequence, position])]
        text, token = (tokenizer.decode(ids, skip_special_tokens=False) for ids in (before, at))
        return text, token

    return describe


def longest_window(dataset: Path) -> int:
    """The most tokens that a window of the validation split can have."""
    return max(1, read_dataset_manifest(dataset).splits["validation"].num_tokens - 1)
