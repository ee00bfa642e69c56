"""Compares two `parameters` checkpoints, OLD and NEW, as functions on real text or images.

One model is in memory at a time: OLD runs first, one sequence at a time, and its logits are kept; then NEW runs.
Shapes: T sequence, V vocabulary.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from model.errors import Failure, UserError
from model.language_model import LanguageModel
from model.precision import ComparisonDtype
from model.shapes import num_parameters
from stages.checkpoint.manifest import Manifest, manifest_hash, read_manifest
from stages.checkpoint.parameters import load_model, require_parameters
from stages.data.dataset import read_dataset_manifest
from stages.data.evaluation_windows import EvaluationWindows, longest_window
from stages.grow.comparison import TOLERANCE, ComparedModel, Comparison, Descent
from stages.images.either import require_classes

LONGEST_DEFAULT = 256


def compare(
    old: Path,
    new: Path,
    dataset: Path,
    *,
    num_sequences: int = 16,
    sequence_length: int | None = None,
    dtype: ComparisonDtype = "float64",
) -> Comparison:
    """Compares both checkpoints on the same validation text or images of `dataset`, on the CPU and in `dtype`.

    The text is at most `num_sequences` windows, spread over the split, of `sequence_length` tokens (None: 256, or the
    whole split if it is shorter), or as many images. OLD's logits stay in memory: num_sequences x sequence_length x
    vocabulary values.

    Raises CheckpointError if one is not a complete `parameters` checkpoint, DataError if the dataset cannot be read or
    is too short, UserError if vocabularies or tokenizers do not match, and Failure if logits are not finite.
    """
    parent, child = (require_parameters(path, read_manifest(path)) for path in (old, new))
    parent.reject_options_of_text({"--context": sequence_length})
    if not parent.classes and not child.classes and parent.model.vocab_size != child.model.vocab_size:
        raise UserError(
            f"{old} has a vocabulary of {parent.model.vocab_size} tokens, but {new} has {child.model.vocab_size}"
        )
    for directory, manifest in ((old, parent), (new, child)):
        require_readable(dataset, directory, manifest)
    samples = _images(dataset, parent, num_sequences) or _windows(dataset, sequence_length, num_sequences)
    old_logits: list[Tensor] = []
    before = _measured(load_model(old, dtype=getattr(torch, dtype)), old, samples, old_logits.append)

    differences: list[tuple[float, float]] = []

    def add_difference(logits: Tensor) -> None:
        difference = (logits - old_logits[len(differences)]).abs()
        differences.append((difference.max().item(), difference.mean().item()))

    after = _measured(load_model(new, dtype=getattr(torch, dtype)), new, samples, add_difference)
    largest_logit = max(logits.abs().max().item() for logits in old_logits)
    largest_difference = max(largest for largest, _ in differences)
    relative, lineage = largest_difference / (largest_logit or 1.0), _descent(old, parent, child)
    return Comparison(
        dtype=dtype,
        num_sequences=len(samples),
        context=None if parent.model.image else len(samples[0].targets),
        old=before,
        new=after,
        dataset=dataset,
        largest_logit=largest_logit,
        largest_difference=largest_difference,
        mean_difference=sum(mean for _, mean in differences) / len(differences),
        lineage=lineage,
        jump=after.loss - before.loss,
        relative_difference=relative,
        tolerance=TOLERANCE[dtype],
        verdict="preserved" if relative <= TOLERANCE[dtype] else "changed",
        breaks_promise=bool(lineage.growth and lineage.growth.preserves) and relative > TOLERANCE[dtype],
    )


class _Sample(NamedTuple):
    """What one forward pass reads, and its weight in the loss."""

    inputs: Tensor
    targets: Tensor
    weight: float


def _windows(dataset: Path, sequence_length: int | None, num_sequences: int) -> list[_Sample]:
    length = sequence_length or min(LONGEST_DEFAULT, longest_window(dataset, "validation"))
    windows = EvaluationWindows(dataset, "validation", length, num_sequences)
    sources = map(windows.source, range(len(windows)))
    tokens_NT = torch.from_numpy(windows.batch(0, len(windows)))
    return [
        _Sample(tokens_T[:-1], tokens_T[1:], source.weight / source.num_windows)
        for tokens_T, source in zip(tokens_NT, sources, strict=True)
    ]


def _images(dataset: Path, manifest: Manifest, num_images: int) -> list[_Sample]:
    """Images of the validation split, if the model reads images."""
    if manifest.model.image is None:
        return []
    from stages.images.samples import SplitImages  # needs the extra for images

    images = SplitImages(dataset, "validation", manifest.model.image, num_images)
    pixels_NCSS, class_N = map(torch.from_numpy, images.batch(0, len(images)))
    pairs = zip(pixels_NCSS, class_N, strict=True)
    return [_Sample(pixels_CSS, label, 1 / len(images)) for pixels_CSS, label in pairs]


def require_readable(dataset: Path, directory: Path, manifest: Manifest) -> None:
    """Raises UserError if the checkpoint cannot read what the dataset holds, and DataError if there is no dataset."""
    require_classes(dataset, manifest.classes, directory)
    if manifest.classes:
        return
    described = read_dataset_manifest(dataset)
    if described.vocab_size > manifest.model.vocab_size:
        raise UserError(
            f"{dataset} has a vocabulary of {described.vocab_size} tokens, but {directory} has only "
            f"{manifest.model.vocab_size}"
        )
    if manifest.tokenizer_sha256 not in (None, described.tokenizer_sha256):
        raise UserError(f"{dataset} was made with a different tokenizer than {directory} was trained with")


@torch.no_grad()
def _measured(
    model: LanguageModel, directory: Path, samples: list[_Sample], on_logits: Callable[[Tensor], None]
) -> ComparedModel:
    loss = 0.0
    for sample in samples:
        logits = model(sample.inputs[None])[0]
        if not logits.isfinite().all():
            raise Failure(f"{directory} gives logits that are not finite, so they cannot be compared")
        loss += sample.weight * F.cross_entropy(logits, sample.targets).item()
        on_logits(logits)
    return ComparedModel(path=directory, num_parameters=num_parameters(model.config), loss=loss)


def _descent(old: Path, parent: Manifest, child: Manifest) -> Descent:
    lineage = child.lineage
    hashes = {(name, entry.sha256) for name, entry in child.files.items()}
    shared_files = sum((name, entry.sha256) in hashes for name, entry in parent.files.items())
    if lineage.parent != manifest_hash(old):
        return Descent(None, None, len(parent.files), shared_files)
    return Descent(lineage.operation, lineage.growth, len(parent.files), shared_files)
