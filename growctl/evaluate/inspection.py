"""`growctl inspect`: measures checkpoints on the same text. Slow modules are imported on use."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from growctl.evaluate.pretrained import open_pretrained
from growctl.text.progress import progress_bar
from model.errors import Failure, UserError
from stages.checkpoint.manifest import Manifest, read_manifest
from stages.inspect.facts import DEAD_BELOW, THRESHOLDS, Inspected
from stages.stage_dir import TOKENIZER_NAME

if TYPE_CHECKING:
    from torch import Tensor

    from stages.checkpoint.pretrained import Pretrained

NOTES = (
    "Only compare like with like. Weights trained under one score function mean nothing under another, so no "
    "checkpoint is run under a score function that it was not trained with.",
    "Checkpoints may be compared with each other if they ran the same schedule but for the score function.",
)


@dataclass(frozen=True)
class InspectedText:
    """The text that was measured on."""

    source: str
    num_sequences: int
    context: int
    """Tokens per window."""
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class InspectedCheckpoint(Inspected):
    """One checkpoint on the text."""

    name: str
    """As the user named it."""


@dataclass(frozen=True, kw_only=True)
class InspectDocument:
    """What was measured in each checkpoint on the same text."""

    text: InspectedText
    thresholds: tuple[float, ...] = THRESHOLDS
    """The magnitudes that `below` in the scores of a layer counts with."""
    dead_below: float = DEAD_BELOW
    """A parameter token is dead if its largest contribution is below this share of its layer's output."""
    notes: tuple[str, ...] = NOTES
    """What the figures mean, one sentence each."""
    models: tuple[InspectedCheckpoint, ...]


def inspect_checkpoints(
    checkpoints: Sequence[tuple[str, Path]],
    texts: Sequence[Path],
    dataset: Path | None,
    *,
    num_sequences: int,
    context: int | None,
    batch_size: int,
    runs_dir: Path,
    tokenizer: Path | None,
    device: str,
) -> InspectDocument:
    """Measures the checkpoints (name, directory) on `texts`, files or folders of them, or else on windows of the
    validation split of `dataset`. One model is in memory at a time.

    Windows have `context` tokens (None: the shortest context of the checkpoints). Raises UserError for unusable
    choices, before anything is measured, and Failure for a loss that is not finite.
    """
    from stages.evaluate.documents import text_files
    from stages.inspect.measure import inspect_model
    from stages.inspect.text import describe_places

    manifests = [read_manifest(path) for _, path in checkpoints]
    _check_tokenizers(checkpoints, manifests)
    files = text_files(texts)
    size = (num_sequences, context or _shortest_context(checkpoints, manifests), batch_size)
    if dataset is not None and tokenizer is None:
        tokenizer = dataset / TOKENIZER_NAME  # the one that made the tokens: a checkpoint need not have its own
    models: list[InspectedCheckpoint] = []
    text: InspectedText | None = None
    batches = count(1)
    with progress_bar("reading") as on_progress:

        def on_batch() -> None:
            assert text is not None
            on_progress(next(batches), len(checkpoints) * text.num_sequences // text.batch_size, name)

        for name, path in checkpoints:
            with open_pretrained(str(path), runs_dir, tokenizer=tokenizer, device=device) as opened:
                if text is None:
                    tokens_ST, batch_size = _read(opened, files, dataset, *size)
                    source = f"the validation split of {dataset.name}" if dataset else ", ".join(map(str, texts))
                    text = InspectedText(source, len(tokens_ST), size[1], batch_size)
                    describe, num_ids = describe_places(tokens_ST, opened.tokenizer), opened.num_token_ids
                try:
                    inspected = inspect_model(
                        opened.model, tokens_ST, text.batch_size, describe, on_batch, num_token_ids=num_ids
                    )
                except Failure as error:
                    raise Failure(f"{name}: {error}") from error
            models.append(InspectedCheckpoint(name=name, **vars(inspected)))
    assert text is not None
    return InspectDocument(text=text, models=tuple(models))


def _read(opened: "Pretrained", files: Sequence[Path], dataset: Path | None, *size: int) -> "tuple[Tensor, int]":
    """The windows, of the dataset or of `files`, with the tokenizer of the first checkpoint, and the batch size."""
    from stages.evaluate.text import require_ids
    from stages.inspect.text import dataset_windows, text_windows

    if dataset is None:
        return text_windows(files, opened.tokenizer, opened.text.end_of_text_id, *size)
    require_ids(opened, dataset)
    return dataset_windows(dataset, *size)


def _check_tokenizers(checkpoints: Sequence[tuple[str, Path]], manifests: Sequence[Manifest]) -> None:
    """Raises UserError unless all checkpoints read the same ids: else losses are of different tokens."""
    hashes: dict[str, str] = {}
    for (name, _), manifest in zip(checkpoints, manifests, strict=True):
        if manifest.tokenizer_sha256 is not None:
            hashes.setdefault(manifest.tokenizer_sha256, name)
        if len(hashes) > 1:
            raise UserError(f"{name} has another tokenizer than {next(iter(hashes.values()))}; inspect them one by one")
        if (size := manifest.model.vocab_size) != (first := manifests[0].model.vocab_size):
            raise UserError(
                f"{name} has a vocabulary of {size}, but {checkpoints[0][0]} one of {first}; inspect them one by one"
            )


def _shortest_context(checkpoints: Sequence[tuple[str, Path]], manifests: Sequence[Manifest]) -> int:
    contexts = [manifest.text.context_length for manifest in manifests if manifest.text.context_length]
    if not contexts:
        raise UserError(f"{checkpoints[0][0]} does not say how long its training sequences were; give --context N")
    return min(contexts)
