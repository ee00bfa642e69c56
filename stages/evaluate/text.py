"""The loss of a checkpoint on text, over windows of its context length.

Shapes: B batch, T sequence, D model width.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from model.errors import Failure, UserError
from model.language_model import LanguageModel
from model.loss import IGNORED, token_scores
from model.rotary_scaling import RotaryScaling
from stages.checkpoint.pretrained import Pretrained
from stages.counted import counted
from stages.data.dataset import data_parts, read_dataset_manifest
from stages.data.documents import misplaced_ends, weighted_datasets
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.spec import SplitName
from stages.evaluate.documents import TokenStream
from stages.evaluate.replicas import Replicas, device_of
from stages.evaluate.windows import Batch, batches, sliding_windows
from stages.stage_dir import TOKENIZER_NAME

OnProgress = Callable[[float], None]
"""Receives the fraction done."""

Float64Array = npt.NDArray[np.float64]


class TextLoss(NamedTuple):
    """The loss of a model on text. Tokens include the end of text after each document."""

    num_scored: int
    """Tokens predicted: all but the first of the stream, which nothing precedes."""

    loss: float
    """Mean cross-entropy, nats per token."""

    num_tokens: int
    num_bytes: int
    """UTF-8 bytes of the whole text."""

    num_words: int | None
    """Words of the whole text, between white space; None for a dataset, which does not count them."""

    num_documents: int
    position_sums_T: Float64Array
    """The sum of the losses at each position of the windows, in nats."""

    position_counts_T: Float64Array
    """The number of predictions at each position."""

    by_source: "tuple[SourceText, ...]" = ()
    """The sources of a mixture, with the loss on each. The loss and the bits per byte of a mixture are the means of its
    sources' by base weights, as in training."""

    @property
    def perplexity(self) -> float:
        """exp(loss); infinity if that overflows."""
        return perplexity(self.loss)

    @property
    def word_perplexity(self) -> float | None:
        """exp(loss x tokens / words); None without a number of words."""
        return perplexity(self.loss * self.num_tokens / self.num_words) if self.num_words else None

    @property
    def bits_per_byte(self) -> float:
        """loss / ln 2 x tokens / bytes, as in training."""
        if self.by_source:
            return sum(source.weight * source.found.bits_per_byte for source in self.by_source)
        return self.loss / math.log(2) * self.num_tokens / max(1, self.num_bytes)


class SourceText(NamedTuple):
    """The loss on one source of a mixture."""

    name: str
    weight: float
    """Its share of the loss of the mixture."""

    found: TextLoss


def text_loss(
    checkpoint: Pretrained,
    replicas: Replicas,
    files: Sequence[Path],
    *,
    context: int,
    stride: int | None = None,
    batch_size: int = 8,
    on_progress: OnProgress = lambda fraction: None,
) -> TextLoss:
    """The loss on all text of `files`, in windows of `context` tokens that are `stride` tokens apart.

    By default, windows do not overlap.

    Raises UserError if the text is shorter than two tokens, DataError if a file cannot be read, and Failure if the loss
    is not finite.
    """
    stream = TokenStream(files, checkpoint.tokenizer, checkpoint.text.end_of_text_id)

    def progressing(windows: Iterable[Batch]) -> Iterator[Batch]:
        for batch in windows:
            on_progress(stream.fraction)
            yield batch

    found = batches(sliding_windows(stream, context, stride or context), batch_size)
    sums_T, counts_T = position_losses(checkpoint, replicas, progressing(found), context)
    if not stream.num_tokens > 1:
        raise UserError(
            f"--text {files[0]}: the text has {counted(stream.num_tokens, 'token')}; a loss needs at least 2"
        )
    return _text_loss(sums_T, counts_T, stream.num_tokens, stream.num_bytes, stream.num_words, stream.num_documents)


def dataset_loss(
    checkpoint: Pretrained,
    replicas: Replicas,
    dataset: Path,
    split: SplitName,
    *,
    context: int,
    max_sequences: int | None,
    batch_size: int,
    on_progress: OnProgress = lambda fraction: None,
) -> TextLoss:
    """The loss on a split of a dataset, in the windows that a stage's evaluations use.

    Raises UserError as `require_ids` does, DataError if the split is missing or shorter than one window, and Failure
    if the loss is not finite.
    """
    require_ids(checkpoint, dataset)
    windows = EvaluationWindows(dataset, split, context, max_sequences)
    parts = data_parts(dataset)

    def read(source: int) -> Iterator[Batch]:
        for number, start, stop in windows.batches(batch_size):
            if number == source:
                on_progress(start / len(windows))
                tokens_BT = windows.batch(start, stop)
                yield Batch(tokens_BT[:, :-1], tokens_BT[:, 1:])

    losses = []
    for number, (_, directory) in enumerate(parts):
        sums_T, counts_T = position_losses(checkpoint, replicas, read(number), context)
        described = read_dataset_manifest(directory).splits[split]
        losses.append(
            _text_loss(sums_T, counts_T, described.num_tokens, described.num_bytes, None, described.num_documents)
        )
    sources = [
        SourceText(source.name, source.weight, found)
        for source, found in zip(windows.sources, losses, strict=True)
        if source.name is not None
    ]
    return _mixed(sources) if sources else losses[0]


def _mixed(sources: Sequence[SourceText]) -> TextLoss:
    """The loss on a mixture."""
    found = [source.found for source in sources]
    return TextLoss(
        num_scored=sum(each.num_scored for each in found),
        loss=sum(source.weight * source.found.loss for source in sources),
        num_tokens=sum(each.num_tokens for each in found),
        num_bytes=sum(each.num_bytes for each in found),
        num_words=None,
        num_documents=sum(each.num_documents for each in found),
        position_sums_T=np.sum([each.position_sums_T for each in found], axis=0),
        position_counts_T=np.sum([each.position_counts_T for each in found], axis=0),
        by_source=tuple(sources),
    )


def require_ids(checkpoint: Pretrained, dataset: Path) -> None:
    """Raises UserError if the checkpoint's tokenizer, whose ids alone are in the softmax, lacks ids of `dataset`.

    Also raises it for a checkpoint that attends within documents, if its end of text does not tell apart those of
    `dataset`.
    """
    if (num_ids := read_dataset_manifest(dataset).vocab_size) > checkpoint.num_token_ids:
        raise UserError(
            f"{dataset} has {num_ids:,} token ids, but the tokenizer for {checkpoint.directory} has only "
            f"{checkpoint.num_token_ids:,}; give the dataset's own, --tokenizer {dataset / TOKENIZER_NAME}"
        )
    end_id = checkpoint.manifest.model.document_end_id
    if end_id is not None and (misplaced := misplaced_ends(weighted_datasets(dataset), end_id)):
        raise UserError(
            f"{checkpoint.directory} attends within documents (data.document_mask), but {misplaced}; the model tells "
            "documents apart by that token alone, so give a dataset whose documents each end in it and contain no other"
        )


def position_losses(
    checkpoint: Pretrained,
    replicas: Replicas,
    found: Iterable[Batch],
    context: int,
    rotary_scaling: RotaryScaling | None = None,
) -> tuple[Float64Array, Float64Array]:
    """The sum of the losses at each of `context` positions, and the number of predictions there.

    The softmax leaves out padding rows of the embedding.
    """
    num_ids = checkpoint.num_token_ids

    def losses(model: LanguageModel, batch: Batch) -> tuple[Float64Array, Float64Array]:
        device = device_of(model)
        input_ids_BT, targets_BT = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in batch)
        with torch.inference_mode():
            x_BTD = model.hidden_states(input_ids_BT, rotary_scaling=rotary_scaling)
            weight_VD = model.embedding.weight[:num_ids]
            scores = token_scores(x_BTD.flatten(0, 1), weight_VD, targets_BT.flatten())
            loss_BT = scores.loss_M.view_as(targets_BT).double()
        return loss_BT.sum(0).cpu().numpy(), (batch.targets_BT != IGNORED).sum(0).astype(np.float64)

    sums_T, counts_T = np.zeros(context), np.zeros(context)
    for batch_sums_T, batch_counts_T in replicas.map(losses, found):
        sums_T[: len(batch_sums_T)] += batch_sums_T
        counts_T[: len(batch_counts_T)] += batch_counts_T
    if not np.isfinite(sums_T).all():
        raise Failure(f"{checkpoint.directory} gives losses that are not finite on this text")
    return sums_T, counts_T


def _text_loss(
    sums_T: Float64Array,
    counts_T: Float64Array,
    num_tokens: int,
    num_bytes: int,
    num_words: int | None,
    num_documents: int,
) -> TextLoss:
    num_scored = int(counts_T.sum())
    loss = float(sums_T.sum() / max(1, num_scored))
    return TextLoss(num_scored, loss, num_tokens, num_bytes, num_words, num_documents, sums_T, counts_T)


def perplexity(loss: float) -> float:
    """exp(loss); infinity if that overflows."""
    return math.exp(loss) if loss < 700 else math.inf
