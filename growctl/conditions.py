"""What two runs must share before their losses may be compared."""

from collections.abc import Iterator
from typing import Any

from growctl.schema import Schedule

_BLOCKS = ("seed", "training", "optimizer", "learning_rate", "evaluation")
_IRRELEVANT = ("training.log_every", "training.batch_tokens", "evaluation.every")
"""Keys of those blocks that change neither the weights nor what is measured."""


def comparison_conditions(schedule: Schedule) -> dict[str, Any]:
    """Values by dotted path: seed, context, batch, precision, optimizer, learning rate, evaluation windows, vocabulary.

    The dataset is not among them: its fingerprint stands in the ledger by itself.
    """
    blocks = schedule.model_dump(mode="json", include=set(_BLOCKS))
    values = dict(_leaves(blocks)) | {"model.vocab_size": schedule.vocab_size}
    return {path: value for path, value in sorted(values.items()) if path not in _IRRELEVANT}


def _leaves(block: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
