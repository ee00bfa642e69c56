"""What evaluations find: one record for each score. Imports no torch."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of one evaluation of a checkpoint."""

    task: str
    """A task of lm-evaluation-harness, `text`, `text NAME` for a source of a mixture, `context-4096`, or `images`."""
    metric: str
    """`loss` (mean cross-entropy, nats per token), `perplexity`, `word_perplexity`, `bits_per_byte`; of long contexts
    also `seconds_per_token`, `bytes_per_token` and `loss_at_64_to_127`; of a task what lm_eval names, such as `acc`; of
    images `loss` (nats per image), `top1` and `top5` (shares)."""
    filter: str = "none"
    """How lm_eval extracted the answers; `none` elsewhere."""
    value: float | None
    """None if it is not finite."""
    standard_error: float | None = None
    num_samples: int | None = None
    """Examples of a task, None for a group of tasks; predicted tokens of a text; images."""
    num_shots: int | None = None
    """Solved examples in the prompt."""
    version: str = ""
    """The version of the task in lm_eval."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The loss while each data token reads only some parameter tokens."""

    amount: int | float
    """How many tokens it reads in a Pattention: an int, or as a float, the share of those there."""
    kind: str | None
    """The Pattentions in which it does: `query`, `key`, `value`, `projection` or `ffn`; null: in all."""
    layer: int | None
    """The layer in which it does, counted from 0; null: in all."""
    share: float
    """The share of their tokens that it reads."""
    loss: float
    """Mean cross-entropy, nats per token, or per image."""
    flops_per_token: float
    """FLOPs of a forward pass per data token, with all keys, whose scores decide what is read, and the values read."""


def position_metric(first: int, last: int) -> str:
    """The metric of the loss at the positions `first` to `last` of windows, both included."""
    return f"loss_at_{first}_to_{last}"


def positions_of(metric: str) -> tuple[int, int] | None:
    """The first and last position of such a metric; None for any other."""
    match = re.fullmatch(r"loss_at_(\d+)_to_(\d+)", metric)
    return (int(match[1]), int(match[2])) if match else None
