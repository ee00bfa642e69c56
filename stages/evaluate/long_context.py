"""Loss, time and memory at contexts beyond that of training, with or without rotary scaling.

Shapes: T positions of a window.
"""

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from model.errors import UserError
from model.rotary_scaling import RotaryScaling, ScalingKind
from stages.checkpoint.pretrained import Pretrained
from stages.counted import counted
from stages.data.tokens import Int64Array
from stages.engine.devices import wait_for
from stages.evaluate.documents import TokenStream
from stages.evaluate.replicas import Replicas, device_of
from stages.evaluate.text import Float64Array, OnProgress, perplexity, position_losses
from stages.evaluate.windows import batches, sliding_windows
from stages.usage.resident_memory import resident_bytes

FIRST_BUCKET = 64
"""Positions of the first bucket; each further bucket ends at twice the position."""


class Bucket(NamedTuple):
    """Consecutive positions of the windows."""

    first: int
    last: int
    """The last position, included."""

    loss: float
    """Mean cross-entropy, nats per token."""

    num_scored: int


class ContextLoss(NamedTuple):
    """A model on windows of one length."""

    context: int
    scaling: RotaryScaling | None
    num_scored: int
    loss: float
    buckets: tuple[Bucket, ...]
    seconds: float
    memory_bytes: int | None
    """Memory that a batch needed beside the model. Of a GPU: the peak of allocated memory. Of a CPU: the growth of the
    process's resident memory at its peak; None if the kernel does not say."""

    batch_tokens: int
    """Tokens of a full batch."""

    @property
    def perplexity(self) -> float:
        """exp(loss); infinity if that overflows."""
        return perplexity(self.loss)

    @property
    def seconds_per_token(self) -> float:
        """Time of the forward pass and the loss."""
        return self.seconds / max(1, self.num_scored)

    @property
    def bytes_per_token(self) -> float | None:
        """Memory that a batch needed, per token."""
        return None if self.memory_bytes is None else self.memory_bytes / self.batch_tokens


def context_losses(
    checkpoint: Pretrained,
    replicas: Replicas,
    files: Sequence[Path],
    contexts: Sequence[int],
    *,
    kind: ScalingKind | None,
    trained_length: int,
    max_tokens: int,
    on_progress: OnProgress = lambda fraction: None,
) -> Iterator[ContextLoss]:
    """Yields the loss on the same tokens, the first `max_tokens` of `files`, for each of `contexts`.

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
    position_losses(checkpoint, replicas, first, batch_tokens)
    for number, context in enumerate(contexts):
        on_progress(number / len(contexts))
        factor = context / trained_length
        scaling = RotaryScaling(kind, factor, trained_length) if kind and factor > 1 else None
        yield _measured(checkpoint, replicas, tokens, context, scaling, max(1, batch_tokens // context))


def _measured(
    checkpoint: Pretrained,
    replicas: Replicas,
    tokens: Int64Array,
    context: int,
    scaling: RotaryScaling | None,
    batch_size: int,
) -> ContextLoss:
    device = device_of(replicas.first)
    wait_for(device)
    before = _start_measuring(device)
    started = time.perf_counter()
    found = batches(sliding_windows([tokens], context, context), batch_size)
    sums_T, counts_T = position_losses(checkpoint, replicas, found, context, scaling)
    wait_for(device)
    seconds = time.perf_counter() - started
    peak = _peak_bytes(device)
    return ContextLoss(
        context=context,
        scaling=scaling,
        num_scored=int(counts_T.sum()),
        loss=float(sums_T.sum() / counts_T.sum()),
        buckets=tuple(by_position(sums_T, counts_T)),
        seconds=seconds,
        memory_bytes=None if before is None or peak is None else max(0, peak - before),
        batch_tokens=min(batch_size * context, len(tokens) - 1),
    )


def by_position(sums_T: Float64Array, counts_T: Float64Array) -> Iterator[Bucket]:
    """The mean loss in buckets of positions: the first 64, then up to each doubling."""
    edges = [0]
    while edges[-1] < len(sums_T):
        edges.append(min(len(sums_T), 2 * edges[-1] or FIRST_BUCKET))
    for first, end in pairwise(edges):
        count = counts_T[first:end].sum()
        if count:
            yield Bucket(first, end - 1, float(sums_T[first:end].sum() / count), int(count))


def _first_tokens(checkpoint: Pretrained, files: Sequence[Path], max_tokens: int) -> Int64Array:
    parts: list[Int64Array] = []
    for part in TokenStream(files, checkpoint.tokenizer, checkpoint.text.end_of_text_id):
        parts.append(part)
        if sum(map(len, parts)) >= max_tokens:
            break
    return np.concatenate([np.empty(0, np.int64), *parts])[:max_tokens]


def _start_measuring(device: torch.device) -> int | None:
    """Bytes in use now; from here on, the peak counts. None if the kernel does not let the peak be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # gives back what glibc kept from earlier batches
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak of resident memory
        return resident_bytes("VmRSS")
    return None


def _peak_bytes(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resident_bytes("VmHWM")
