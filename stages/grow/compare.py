"""Compares two `parameters` checkpoints, OLD and NEW, as functions on real text.

One model is in memory at a time: OLD runs first, one sequence at a time, and its logits are kept; then NEW runs.
Shapes: B sequences, T sequence, V vocabulary, N parameter tokens, D model width.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from model.config import PATTENTIONS, TokenformerConfig, num_parameters
from model.errors import Failure, UserError
from model.language_model import LanguageModel
from model.policy import ramp_config
from model.precision import ComparisonDtype
from model.tokenformer import Tokenformer
from stages.checkpoint.manifest import Manifest, manifest_hash, read_manifest
from stages.checkpoint.parameters import load_model, require_parameters
from stages.data.dataset import read_dataset_manifest
from stages.data.evaluation_windows import EvaluationWindows, longest_window
from stages.grow.comparison import TOLERANCE, ComparedModel, Comparison, Descent, GenerationGradients

GRADIENT_RAMP = 0.01
"""The key ramp for measuring gradients if a generation's ramp is 0, as it is right after a growth, when no new token
has a gradient. Training's first update uses a ramp above 0 too (`stages.spec.progress_at`): this value, if the
ramp takes 99 steps."""

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
    tokens_BT = torch.from_numpy(windows.batch(0, len(windows)))
    old_logits: list[Tensor] = []
    before = _measured(load_model(old, dtype=getattr(torch, dtype)), old, windows, old_logits.append)

    model = load_model(new, dtype=getattr(torch, dtype))
    differences: list[tuple[float, float]] = []

    def add_difference(logits_TV: Tensor) -> None:
        difference_TV = (logits_TV - old_logits[len(differences)]).abs()
        differences.append((difference_TV.max().item(), difference_TV.mean().item()))

    gradients = ramp = None
    after = _measured(model, new, windows, add_difference)
    if isinstance(model, Tokenformer) and isinstance(parent.model, TokenformerConfig):
        ramp = _raise_ramps(model)
        gradients = _gradients(model, tokens_BT)
    largest_logit = max(logits_TV.abs().max().item() for logits_TV in old_logits)
    largest_difference = max(largest for largest, _ in differences)
    relative, lineage = largest_difference / (largest_logit or 1.0), _descent(old, parent, child)
    return Comparison(
        dtype=dtype,
        num_sequences=len(tokens_BT),
        context=tokens_BT.shape[1] - 1,
        old=before,
        new=after,
        dataset=dataset,
        largest_logit=largest_logit,
        largest_difference=largest_difference,
        mean_difference=sum(mean for _, mean in differences) / len(differences),
        gradients=gradients,
        gradient_ramp=ramp,
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


def _raise_ramps(model: Tokenformer) -> float | None:
    """Raises key ramps of 0, so that the new tokens can have gradients; returns the new ramp, None if none was 0."""
    pattentions = [pattention for block in model.config.blocks for pattention in block.pattentions().values()]
    if all(generation.key_ramp for pattention in pattentions for generation in pattention.generations):
        return None
    model.set_scales(ramp_config(model.config, GRADIENT_RAMP))
    return GRADIENT_RAMP


def _gradients(model: Tokenformer, tokens_BT: Tensor) -> tuple[GenerationGradients, ...]:
    """Counts tokens with and without gradients of the summed loss of all sequences; the model keeps the gradients."""
    for tokens_T in tokens_BT:
        model(tokens_T[None, :-1], tokens_T[None, 1:]).backward()
    counts: dict[int, list[int]] = {}
    for block in model.blocks.values():
        pattentions = {name: getattr(block, name) for name in PATTENTIONS}
        writes_nothing = not any(value_NO.any() for value_NO in pattentions["projection"].value_tokens.values())
        for name, pattention in pattentions.items():
            for number, key_ND in pattention.key_tokens.items():
                moved_N = key_ND.grad.any(dim=-1) | pattention.value_tokens[number].grad.any(dim=-1)
                still = int((~moved_N).sum())
                waiting = still if writes_nothing and name in ("query", "key", "value") else 0
                so_far = counts.setdefault(int(number), [0, 0, 0])
                counts[int(number)] = [a + b for a, b in zip(so_far, (len(moved_N), still, waiting), strict=True)]
    return tuple(GenerationGradients(number, *counts[number]) for number in sorted(counts))


def _descent(old: Path, parent: Manifest, child: Manifest) -> Descent:
    lineage = child.lineage
    hashes = {(name, entry.sha256) for name, entry in child.files.items()}
    shared_files = sum((name, entry.sha256) in hashes for name, entry in parent.files.items())
    if lineage.parent != manifest_hash(old):
        return Descent(None, None, len(parent.files), shared_files)
    return Descent(lineage.operation, lineage.growth, len(parent.files), shared_files)
