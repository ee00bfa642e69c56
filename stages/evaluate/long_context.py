"""Loss, time and memory at contexts beyond that of training, with or without rotary scaling.

Shapes: T positions of a window.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from model.config import RotaryScaling
from model.errors import UserError
from stages.checkpoint.pretrained import Pretrained
from stages.counted import counted
from stages.data.tokens import Int64Array
from stages.engine.devices import wait_for
from stages.evaluate.documents import TokenStream
from stages.evaluate.results import Score, position_metric
from stages.evaluate.text import Float64Array, OnProgress, mean_loss, position_losses
from stages.evaluate.windows import batches, sliding_windows

FIRST_BUCKET = 64
"""Positions of the first bucket; each further bucket ends at twice the position."""


def context_losses(
    checkpoint: Pretrained,
    files: Sequence[Path],
    contexts: Sequence[int],
    *,
    kind: Literal["linear", "ntk", "yarn"] | None,
    trained_length: int,
    max_tokens: int,
    on_progress: OnProgress = lambda fraction: None,
) -> Iterator[Score]:
    """Yields the scores on the same tokens, the first `max_tokens` of `files`, for each of `contexts`.

    A context above `trained_length` gets the scaling `kind`, by the factor that it is longer. Every batch has as many
    tokens as the longest context, so that times and memory can be compared. Windows do not overlap. One batch of the
    longest context comes first, unmeasured.

    Raises UserError if the text is shorter than the longest context.
    """
    if kind is not None and not checkpoint.manifest.model.rotary_width:
        raise UserError(f"--rope-scaling {kind}: {checkpoint.directory} has no rotary embedding to scale")
    tokens, batch_tokens = _first_tokens(checkpoint, files, max_tokens), max(contexts)
    if len(tokens) <= batch_tokens:
        raise UserError(
            f"--text {files[0]}: the text has {counted(len(tokens), 'token')}; a context of {batch_tokens:,} needs "
            f"{batch_tokens + 1:,}"
        )
    # The first batch pays for what later ones find ready: memory that stays with the process, and kernels.
    first = batches(sliding_windows([tokens[: batch_tokens + 1]], batch_tokens, batch_tokens), 1)
    position_losses(checkpoint, first, batch_tokens)
    for number, context in enumerate(contexts):
        on_progress(number / len(contexts))
        factor = context / trained_length
        scaling = (
            RotaryScaling(kind=kind, factor=factor, trained_length=trained_length) if kind and factor > 1 else None
        )
        measured = _measured(checkpoint, tokens, context, scaling, max(1, batch_tokens // context))
        for metric, value, num_tokens in measured:
            yield Score(task=f"context-{context}", metric=metric, value=value, num_samples=num_tokens)


def _measured(
    checkpoint: Pretrained, tokens: Int64Array, context: int, scaling: RotaryScaling | None, batch_size: int
) -> Iterator[tuple[str, float | None, int]]:
    """Yields metrics, values and numbers of tokens."""
    device = checkpoint.model.embedding.weight.device
    wait_for(device)
    before = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    started = time.perf_counter()
    windows = batches(sliding_windows([tokens], context, context), batch_size)
    sums_T, counts_T = position_losses(checkpoint, windows, context, scaling)
    wait_for(device)
    seconds = time.perf_counter() - started
    num_tokens, loss = mean_loss(sums_T, counts_T)
    yield "loss", loss, num_tokens
    yield "seconds_per_token", seconds / num_tokens, num_tokens
    memory = None
    if device.type == "cuda":
        batch_tokens = min(batch_size * context, len(tokens) - 1)
        memory = (torch.cuda.max_memory_allocated(device) - before) / batch_tokens
    yield "bytes_per_token", memory, num_tokens
    for first, last, count, part in by_position(sums_T, counts_T):
        yield position_metric(first, last), part, count


def by_position(sums_T: Float64Array, counts_T: Float64Array) -> Iterator[tuple[int, int, int, float]]:
    """First and last position, number of predictions and their mean loss, for buckets of positions: the first 64, then
    up to each doubling."""
    edges = [0]
    while edges[-1] < len(sums_T):
        edges.append(min(len(sums_T), 2 * edges[-1] or FIRST_BUCKET))
    for first, end in pairwise(edges):
        if counts_T[first:end].any():
            yield first, end - 1, *mean_loss(sums_T[first:end], counts_T[first:end])


def _first_tokens(checkpoint: Pretrained, files: Sequence[Path], max_tokens: int) -> Int64Array:
    tokens = np.empty(0, np.int64)
    for part in TokenStream(files, checkpoint.tokenizer, checkpoint.text):
        tokens = np.concatenate((tokens, part))
        if len(tokens) >= max_tokens:
            break
    return tokens[:max_tokens]
