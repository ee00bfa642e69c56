"""The loss of a checkpoint on text, over windows of its context length.

Shapes: B batch, T sequence, D model width.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from model.config import RotaryScaling
from model.errors import Failure, UserError
from model.loss import IGNORED, token_scores
from stages.checkpoint.pretrained import Pretrained
from stages.counted import counted
from stages.data.dataset import dataset_parts, read_dataset_manifest
from stages.data.documents import misplaced_ends
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.spec import SplitName
from stages.evaluate.documents import TokenStream
from stages.evaluate.results import Score
from stages.evaluate.windows import Batch, batches, sliding_windows
from stages.stage_dir import TOKENIZER_NAME

OnProgress = Callable[[float], None]
"""Receives the fraction done."""

Float64Array = npt.NDArray[np.float64]


def text_loss(
    checkpoint: Pretrained,
    files: Sequence[Path],
    *,
    context: int,
    stride: int | None = None,
    batch_size: int = 8,
    on_progress: OnProgress = lambda fraction: None,
) -> Iterator[Score]:
    """Yields the scores on all text of `files`, in windows of `context` tokens that are `stride` tokens apart.

    By default, windows do not overlap.

    Raises UserError if the text is shorter than two tokens, DataError if a file cannot be read, and Failure if the loss
    is not finite.
    """
    stream = TokenStream(files, checkpoint.tokenizer, checkpoint.text)

    def windows() -> Iterator[Batch]:
        num_scored = 0
        for batch in batches(sliding_windows(stream, context, stride or context), batch_size):
            on_progress(stream.fraction * num_scored / stream.num_tokens)
            yield batch
            num_scored += int((batch.targets_BT != IGNORED).sum())

    sums_T, counts_T = position_losses(checkpoint, windows(), context)
    if stream.num_tokens < 2:
        raise UserError(
            f"--text {files[0]}: the text has {counted(stream.num_tokens, 'token')}; a loss needs at least 2"
        )
    num_tokens, loss = mean_loss(sums_T, counts_T)
    yield from _scores(
        "text",
        num_tokens,
        loss=loss,
        perplexity=_perplexity(loss),
        word_perplexity=_perplexity(loss * stream.num_tokens / stream.num_words),
        bits_per_byte=_bits_per_byte(loss, stream.num_tokens, stream.num_bytes),
    )


def dataset_loss(
    checkpoint: Pretrained,
    dataset: Path,
    split: SplitName,
    *,
    context: int,
    max_sequences: int | None,
    batch_size: int,
    on_progress: OnProgress = lambda fraction: None,
) -> Iterator[Score]:
    """Yields the scores on a split of a dataset, in the windows that a stage's evaluations use; of a mixture also those
    of each source. The scores of a mixture are the means of its sources' by base weights, as in training.

    Raises UserError as `require_ids` does, DataError if the split is missing or shorter than one window, and Failure
    if the loss is not finite.
    """
    require_ids(checkpoint, dataset)
    windows = EvaluationWindows(dataset, split, context, max_sequences)

    def read(source: int) -> Iterator[Batch]:
        for number, start, stop in windows.batches(batch_size):
            if number == source:
                on_progress(start / len(windows))
                tokens_BT = windows.batch(start, stop)
                yield Batch(tokens_BT[:, :-1], tokens_BT[:, 1:])

    total_tokens, total_loss, total_bits = 0, 0.0, 0.0
    of_sources: list[Score] = []
    splits = [part.manifest.splits[split] for part in dataset_parts(dataset)]
    for number, (source, described) in enumerate(zip(windows.sources, splits, strict=True)):
        num_tokens, loss = mean_loss(*position_losses(checkpoint, read(number), context))
        bits = _bits_per_byte(loss, described.num_tokens, described.num_bytes)
        total_tokens += num_tokens
        total_loss += source.weight * loss
        total_bits += source.weight * bits
        if source.name:
            of_sources += _scores(f"text {source.name}", num_tokens, loss=loss, bits_per_byte=bits)
    figures = {"loss": total_loss, "perplexity": _perplexity(total_loss), "bits_per_byte": total_bits}
    yield from _scores("text", total_tokens, **figures)
    yield from of_sources


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
    if end_id is not None and (misplaced := misplaced_ends(dataset_parts(dataset), end_id)):
        raise UserError(
            f"{checkpoint.directory} attends within documents (data.document_mask), but {misplaced}; the model tells "
            "documents apart by that token alone, so give a dataset whose documents each end in it and contain no other"
        )


def position_losses(
    checkpoint: Pretrained, windows: Iterable[Batch], context: int, rotary_scaling: RotaryScaling | None = None
) -> tuple[Float64Array, Float64Array]:
    """The sum of the losses at each of `context` positions in nats, and the number of predictions there.

    The softmax leaves out padding rows of the embedding. Raises Failure if a loss is not finite.
    """

    model = checkpoint.model
    sums_T, counts_T = np.zeros(context), np.zeros(context)
    for batch in windows:
        device = model.embedding.weight.device
        input_ids_BT, targets_BT = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in batch)
        with torch.inference_mode():
            x_BTD = model.hidden_states(input_ids_BT, rotary_scaling=rotary_scaling)
            weight_VD = model.head_weight[: checkpoint.num_token_ids]
            scores = token_scores(x_BTD.flatten(0, 1), weight_VD, targets_BT.flatten())
            loss_BT = scores.loss_M.view_as(targets_BT).double()
        length = loss_BT.shape[1]
        sums_T[:length] += loss_BT.sum(0).cpu().numpy()
        counts_T[:length] += (batch.targets_BT != IGNORED).sum(0)
    if not np.isfinite(sums_T).all():
        raise Failure(f"{checkpoint.directory} gives losses that are not finite on this text")
    return sums_T, counts_T


def mean_loss(sums_T: Float64Array, counts_T: Float64Array) -> tuple[int, float]:
    """The number of predictions, and their mean loss."""
    count = int(counts_T.sum())
    return count, float(sums_T.sum() / max(1, count))


def _scores(task: str, num_samples: int, **figures: float | None) -> Iterator[Score]:
    for metric, value in figures.items():
        if value is not None:
            yield Score(task=task, metric=metric, value=value, num_samples=num_samples)


def _bits_per_byte(loss: float, num_tokens: int, num_bytes: int) -> float:
    return loss / math.log(2) * num_tokens / max(1, num_bytes)


def _perplexity(loss: float) -> float | None:
    """exp(loss); None if that overflows."""
    return math.exp(loss) if loss < 700 else None
