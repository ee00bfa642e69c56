"""What evaluations find, as plain values. Imports no torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TextSourceLoss:
    """The loss on one source of a mixture."""

    num_tokens: int
    """Tokens predicted."""
    loss: float
    """Mean cross-entropy, nats per token."""
    bits_per_byte: float
    weight: float
    """Its share of the loss of the mixture; the shares add up to 1."""


@dataclass(frozen=True, kw_only=True)
class TextLoss:
    """The loss on a text."""

    num_tokens: int
    """Tokens predicted: all but the first of the text, with the end of text after each document."""
    loss: float
    """Mean cross-entropy, nats per token."""
    perplexity: float | None
    """exp(loss); None if that overflows."""
    word_perplexity: float | None
    """exp(loss x tokens / words); None if that overflows, and for a split, whose words are not counted."""
    bits_per_byte: float
    """loss / ln 2 x tokens / bytes, as in training."""
    num_documents: int
    num_words: int | None
    """Words of the whole text, between white space; None for a split."""
    num_bytes: int
    """UTF-8 bytes of the whole text."""
    by_source: dict[str, TextSourceLoss] | None = None
    """The sources of a mixture by name; None for any other text. `loss` and `bits_per_byte` of a mixture are the means
    of its sources' by base weights, as in training."""


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """One metric of one task."""

    task: str
    metric: str
    """As lm_eval names it: `acc`, `acc_norm`, `perplexity`, `word_perplexity`, ..."""
    filter: str
    """How answers were extracted; `none` for tasks that compare probabilities."""
    value: float | None
    """None if it is not finite."""
    standard_error: float | None
    num_samples: int | None
    """Examples evaluated; None for a group of tasks."""
    num_shots: int | None
    """Solved examples in the prompt."""
    version: str
    """The version of the task in lm_eval."""


@dataclass(frozen=True)
class PositionsLoss:
    """The loss at consecutive positions of windows."""

    first: int
    last: int
    """The last position, included."""
    loss: float
    """Mean cross-entropy, nats per token."""
    num_tokens: int
    """Tokens predicted."""


@dataclass(frozen=True, kw_only=True)
class ContextLoss:
    """The loss in windows of one length."""

    context: int
    """Tokens per window."""
    rope_scaling: Literal["none", "linear", "ntk", "yarn"]
    factor: float
    """How many times longer the window is than a training sequence; 1 without scaling."""
    num_tokens: int
    """Tokens predicted."""
    loss: float
    """Mean cross-entropy, nats per token."""
    perplexity: float | None
    """exp(loss); None if that overflows."""
    wall_seconds: float
    seconds_per_token: float
    """Wall seconds of the forward pass and the loss, per token."""
    bytes_per_token: float | None
    """Memory that a batch needed beside the model, at its peak, per token; None on a CPU."""
    positions: tuple[PositionsLoss, ...]
