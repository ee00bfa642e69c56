"""What to generate, how each token is chosen, and what was generated. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from model.strict import Strict
from model.top_tokens import TopTokens

FinishReason = Literal["end_of_text", "stop", "length", "context"]
"""Why a sample ended: the model's end of text, a stop string, `max_new_tokens`, or the context length."""


class Sampling(Strict):
    """The distribution that tokens are drawn from. Filters apply in this order, after the temperature."""

    temperature: Annotated[float, Field(ge=0.0, le=1e6)] = 0.8
    """Divides the logits. Below 1e-6: always the most likely token (greedy), whatever the other fields say."""

    top_k: PositiveInt | None = None
    """Keep the k most likely tokens, and those as likely as the last of them; None: all."""

    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Keep the most likely tokens whose probabilities sum to at least this."""

    seed: NonNegativeInt = 0

    @property
    def is_greedy(self) -> bool:
        """Whether no token is drawn: divided by a smaller temperature, the logits of single tokens could overflow."""
        return self.temperature < 1e-6


GREEDY = Sampling(temperature=0.0)


class GenerationSettings(Strict):
    """What to generate."""

    max_new_tokens: PositiveInt = 100
    num_samples: PositiveInt = 1
    """Continuations of the same prompt, computed in one batch."""

    sampling: Sampling = Sampling()
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """A sample ends before the first of these strings."""

    context_length: PositiveInt | None = None
    """The most tokens of prompt and text together. None: the checkpoint's context length, which is that of its training
    sequences; a checkpoint that does not know it has no limit."""

    top_tokens: TopTokens | None = None
    """The parameter tokens that each data token reads, of the prompt too. None: all."""


@dataclass(frozen=True)
class Sample:
    """One continuation."""

    text: str
    """The text after the prompt."""
    tokens: tuple[int, ...]
    """Ids of all generated tokens, also of an end of text and of those of a stop string."""
    finish_reason: FinishReason


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """A prompt and its continuations."""

    checkpoint: Path
    prompt: str
    prompt_tokens: tuple[int, ...]
    """Ids of the prompt's tokens."""
    samples: tuple[Sample, ...]
    num_tokens: int
    """Generated tokens, of all samples."""
    wall_seconds: float
    tokens_per_second: float
    """Generated tokens of all samples per second, reading the prompt included."""
    settings: GenerationSettings
