"""Compares two `parameters` checkpoints, OLD and NEW, as functions on real text.

One model is in memory at a time: OLD runs first, one sequence at a time, and its logits are kept; then NEW runs.
Shapes: T sequence, V vocabulary.
"""

from collections.abc import Callable
from pathlib import Path

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
    """Compares both checkpoints on the same validation text of `dataset`, on the CPU and in `dtype`.

    The text is at most `num_sequences` windows, spread over the split, of `sequence_length` tokens (None: 256, or the
    whole split if it is shorter). OLD's logits stay in memory: num_sequences x sequence_length x vocabulary values.

    Raises CheckpointError if one is not a complete `parameters` checkpoint, DataError if the dataset cannot be read or
    is too short, UserError if vocabularies or tokenizers do not match, and Failure if logits are not finite.
    """
    parent, child = (require_parameters(path, read_manifest(path)) for path in (old, new))
    if parent.model.vocab_size != child.model.vocab_size:
        raise UserError(
            f"{old} has a vocabulary of {parent.model.vocab_size} tokens, but {new} has {child.model.vocab_size}"
        )
    for directory, manifest in ((old, parent), (new, child)):
        require_readable(dataset, directory, manifest)
    length = sequence_length or min(LONGEST_DEFAULT, longest_window(dataset, "validation"))
    windows = EvaluationWindows(dataset, "validation", length, num_sequences)
    old_logits: list[Tensor] = []
    before = _measured(load_model(old, dtype=getattr(torch, dtype)), old, windows, old_logits.append)

    differences: list[tuple[float, float]] = []

    def add_difference(logits_TV: Tensor) -> None:
        difference_TV = (logits_TV - old_logits[len(differences)]).abs()
        differences.append((difference_TV.max().item(), difference_TV.mean().item()))

    after = _measured(load_model(new, dtype=getattr(torch, dtype)), new, windows, add_difference)
    largest_logit = max(logits_TV.abs().max().item() for logits_TV in old_logits)
    largest_difference = max(largest for largest, _ in differences)
    relative, lineage = largest_difference / (largest_logit or 1.0), _descent(old, parent, child)
    return Comparison(
        dtype=dtype,
        num_sequences=len(windows),
        context=length,
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


def require_readable(dataset: Path, directory: Path, manifest: Manifest) -> None:
    """Raises UserError if the checkpoint cannot use the dataset's tokens, and DataError if there is no dataset."""
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
    model: LanguageModel, directory: Path, windows: EvaluationWindows, on_logits: Callable[[Tensor], None]
) -> ComparedModel:
    loss = 0.0
    for place, tokens_T in enumerate(torch.from_numpy(windows.batch(0, len(windows)))):
        logits_TV = model(tokens_T[None, :-1])[0]
        if not logits_TV.isfinite().all():
            raise Failure(f"{directory} gives logits that are not finite, so they cannot be compared")
        source = windows.source(place)
        loss += source.weight * (F.cross_entropy(logits_TV, tokens_T[1:]).item() / source.num_windows)
        on_logits(logits_TV)
    return ComparedModel(path=directory, num_parameters=num_parameters(model.config), loss=loss)


def _descent(old: Path, parent: Manifest, child: Manifest) -> Descent:
    lineage = child.lineage
    hashes = {(name, entry.sha256) for name, entry in child.files.items()}
    shared_files = sum((name, entry.sha256) in hashes for name, entry in parent.files.items())
    if lineage.parent != manifest_hash(old):
        return Descent(None, None, len(parent.files), shared_files)
    return Descent(lineage.operation, lineage.growth, len(parent.files), shared_files)
