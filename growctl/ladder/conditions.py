"""The conditions under which a run trained: every key of its resolved schedule, except those known not to matter.

growctl/analysis/conditions.py says which of them two runs may differ in.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from model.config import TokenformerConfig

if TYPE_CHECKING:
    from growctl.schedule.blocks import Schedule
    from model.config import TransformerConfig
    from stages.data.dataset import DatasetManifest

READING = ("data.document_mask", "data.packing", "data.when_exhausted")
"""How training reads documents. The other keys of `data` say what the dataset is, whose fingerprint counts instead."""

_HARMLESS: dict[str, Any] = {
    **dict.fromkeys(("name", "controls", "samples", "checkpoint", "trackers", "releases"), True),
    **dict.fromkeys(("seed", "data", "start", "stages"), True),  # written out below
    "evaluation": {"every"},
    "training": {"log_every", "ladder_tokens", "ladder_flops", "batch_size", "sequence_length"},
    "model": {"num_layers", "hidden_size", "ffn_size"},
    "launch": {"environment", "grace", "hang_timeout", "max_restarts", "cluster", "hostfile", "slurm", "hardware"},
}
"""Keys that change neither an update nor a measurement, or that the resolved stages hold. Costs say how long a run
trained."""


def comparison_conditions(schedule: "Schedule") -> dict[str, Any]:
    """The conditions of `schedule`, by dotted path, as JSON values.

    A stage's shape, batch, context, ramp and mixture are written out, whether the schedule inherits them or not. The
    dataset is missing: see `data_conditions`.
    """
    values = dict(_leaves(schedule.model_dump(mode="json", exclude=_HARMLESS)))
    values |= {"seed": schedule.seed, "model.vocab_size": schedule.vocab_size}
    values |= {path: getattr(schedule.data, path.removeprefix("data.")) for path in READING}
    if schedule.base:
        values["start.manifest"] = schedule.base.manifest
    return dict(sorted((values | _stages(schedule)).items()))


def _stages(schedule: "Schedule") -> dict[str, Any]:
    from growctl.ladder.stage_plans import plan_stages, stage_weights
    from growctl.schedule.data_block import shares

    values: dict[str, Any] = {}
    for plan in plan_stages(schedule):
        stage = schedule.stages[plan.index]
        values |= {f"stages.{plan.index}.{key}": value for key, value in model_shape(plan.model).items()}
        values |= {
            f"stages.{plan.index}.batch_size": plan.batch.batch_size,
            f"stages.{plan.index}.sequence_length": plan.batch.sequence_length,
            f"stages.{plan.index}.ramp_steps": stage.ramp_steps,
            f"stages.{plan.index}.mixture": [
                {name: round(float(share), 9) for name, share in shares(weights).items()}
                for _, weights in stage_weights(schedule, plan.index)
            ],
        }
    return values


def model_shape(model: "TokenformerConfig | TransformerConfig") -> dict[str, Any]:
    """What a stage may change of a model: its layers, its width, and the parameter tokens of each layer."""
    if isinstance(model, TokenformerConfig):
        return {
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "attention_tokens": _same([block.query.num_tokens for block in model.blocks]),
            "ffn_tokens": _same([block.ffn.num_tokens for block in model.blocks]),
        }
    return model.model_dump(include={"num_layers", "hidden_size", "ffn_size"})


def _same(counts: list[int]) -> int | list[int] | None:
    """One number for layers that are alike, else one for each layer; None without layers."""
    return counts if len(set(counts)) > 1 else counts[0] if counts else None


def data_conditions(dataset: "DatasetManifest") -> dict[str, Any]:
    """What tells in which way two datasets of different fingerprints differ: hashes of the tokenizer and of each text.

    Of a mixture, the base weights too, which its texts' hashes include, and how often its sources may be read.

    The ledger stores the fingerprint itself in a separate column.
    """
    texts = {f"data.{name}_text": split.text_hash for name, split in dataset.splits.items()}
    values: dict[str, Any] = {"data.tokenizer": dataset.tokenizer_sha256, **texts}
    if not dataset.sources:
        return values
    weights = {source.name: source.weight for source in dataset.sources}
    if limits := {source.name: source.epochs_at_most for source in dataset.sources if source.epochs_at_most}:
        values["data.epochs_at_most"] = limits  # the fingerprint leaves them out
    return values | {name: _weighted(text, weights) for name, text in texts.items()} | {"data.mixture": weights}


def _weighted(text: str | None, weights: dict[str, float]) -> str | None:
    """A hash of a mixture's text and of the shares of its sources, because losses and samples depend on both."""
    total = sum(weights.values())
    shares = {name: f"{weight / total:.9f}" for name, weight in weights.items()}
    return text and hashlib.sha256(json.dumps([text, shares], sort_keys=True).encode()).hexdigest()


def _leaves(block: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
