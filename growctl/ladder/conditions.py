"""The conditions that two runs must share before growctl compares their losses."""

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from model.policy import GrowthPolicy

if TYPE_CHECKING:
    from growctl.schema.blocks import Schedule
    from stages.data.dataset import DatasetManifest

_BLOCKS = ("seed", "model", "training", "optimizer", "learning_rate", "growth", "evaluation")
_IRRELEVANT = (
    *("training.log_every", "training.batch_tokens", "training.ladder_tokens", "training.ladder_flops"),
    "evaluation.every",
)
"""Keys of those blocks that change neither an update nor the measurements. Costs say how long a run trained."""


DOCUMENT_KEYS = ("data.document_mask", "data.packing")
"""How training reads documents. Other conditions on data describe a dataset."""

_WHEN = frozenset({"when", "slope", "slope_window"})
_POLICY = frozenset({"preset", *GrowthPolicy.model_fields})
_SHAPE = frozenset({"family", "num_layers", "hidden_size", "num_heads", "ffn_size"})


def comparison_conditions(schedule: "Schedule") -> dict[str, Any]:
    """Values by dotted path: seed, model, context, batch, precision, optimizer, learning rate, growth, evaluation, and
    how documents are read.

    The dataset is missing: see `data_conditions`.
    """
    blocks = schedule.model_dump(mode="json", include=set(_BLOCKS))
    values = dict(_leaves(blocks)) | {"model.vocab_size": schedule.vocab_size}
    values |= _batch_and_context(schedule)
    values |= {"data.document_mask": schedule.data.document_mask, "data.packing": schedule.data.packing}
    if schedule.model.family == "tokenformer":
        del values["model.num_layers"]  # a size, like parameter tokens: stages may change it
    if schedule.base:
        values["start.manifest"] = schedule.base.manifest
    return {path: value for path, value in sorted(values.items()) if path not in _IRRELEVANT}


def _batch_and_context(schedule: "Schedule") -> dict[str, Any]:
    """The batch and the context of the last stage, at which losses are measured; where stages differ, of all.

    Also the factor that the last stage's batch puts on its learning rate, if there is one.
    """
    from growctl.ladder.budgets import batch_scale, stage_batch

    batches = [stage_batch(schedule, index) for index in range(len(schedule.stages))]
    found: dict[str, Any] = {}
    for key in ("batch_size", "sequence_length"):
        by_stage = [getattr(batch, key) for batch in batches]
        found[f"training.{key}"] = by_stage[-1]
        if len(set(by_stage)) > 1:
            found[f"stages.{key}"] = by_stage
    scale = batch_scale(schedule, len(batches) - 1)
    return found | ({"learning_rate.batch_scale": scale} if scale != 1 else {})


def data_conditions(dataset: "DatasetManifest") -> dict[str, Any]:
    """What tells in which way two datasets of different fingerprints differ: hashes of the tokenizer and of each text.

    Of a mixture, the base weights too, which its texts' hashes include.

    The ledger stores the fingerprint itself in a separate column.
    """
    texts = {f"data.{name}_text": split.text_hash for name, split in dataset.splits.items()}
    found: dict[str, Any] = {"data.tokenizer": dataset.tokenizer_sha256, **texts}
    if not dataset.sources:
        return found
    weights = {source.name: source.weight for source in dataset.sources}
    return found | {name: _weighted(text, weights) for name, text in texts.items()} | {"data.mixture": weights}


def _weighted(text: str | None, weights: dict[str, float]) -> str | None:
    """A hash of a mixture's text and of the shares of its sources, because losses and samples depend on both."""
    total = sum(weights.values())
    shares = {name: f"{weight / total:.9f}" for name, weight in weights.items()}
    return text and hashlib.sha256(json.dumps([text, shares], sort_keys=True).encode()).hexdigest()


def meant_to_differ(path: str, control: str, family: str | None) -> bool:
    """Whether a control of kind `control` and model `family` differs from its ladder in `path` by design."""
    block, _, key = path.partition(".")
    if block == "start":
        return control.endswith("-scratch")
    if block == "stages":
        return "scratch" in control or control == "single-jump"
    if block == "growth":
        return "scratch" in control or key in (_WHEN | _POLICY if control == "official-growth" else _WHEN)
    return block == "model" and key in _SHAPE and family == "transformer"


def _leaves(block: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
