"""The text of an inspection: windows of a validation split or of files.

Shapes: S sequences, T sequence.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.errors import UserError
from stages.counted import counted
from stages.data.evaluation_windows import EvaluationWindows
from stages.evaluate.documents import TokenStream
from stages.evaluate.windows import sliding_windows


def dataset_windows(dataset: Path, num_sequences: int, context: int, batch_size: int) -> tuple[Tensor, int]:
    """Windows of the validation split, spread evenly over it: (S, T + 1) int64, and the size of a batch.

    Fewer if the split has fewer. Raises DataError if it is shorter than one window.
    """
    available = len(EvaluationWindows(dataset, "validation", context))
    count, batch_size = whole_batches(min(num_sequences, available), batch_size)
    return torch.from_numpy(EvaluationWindows(dataset, "validation", context, count).batch(0, count)), batch_size


def text_windows(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    end_of_text_id: int | None,
    num_sequences: int,
    context: int,
    batch_size: int,
) -> tuple[Tensor, int]:
    """The first windows of the text in `files`, read no further than they need: (S, T + 1) int64, and the size of a
    batch.

    Raises UserError if the text is shorter than one window, DataError if a file cannot be read.
    """
    stream = TokenStream(files, tokenizer, end_of_text_id)
    first = islice(sliding_windows(stream, context, context), num_sequences)
    whole = [window.tokens for window in first if len(window.tokens) == context + 1]
    if not whole:
        raise UserError(
            f"--text {files[0]}: the text has {counted(stream.num_tokens, 'token')}, but one window of "
            f"--context {context} needs {context + 1}; give more text or a smaller --context"
        )
    count, batch_size = whole_batches(len(whole), batch_size)
    return torch.from_numpy(np.stack(whole[:count])), batch_size


def whole_batches(num_sequences: int, batch_size: int) -> tuple[int, int]:
    """(sequences, size of a batch): as many sequences as fill whole batches, because the norm of a batch's gradient
    depends on its size. With less than one batch, all of them are one."""
    batch_size = min(num_sequences, batch_size)
    return num_sequences - num_sequences % batch_size, batch_size
