"""What `growctl generate --json` prints."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stages.generate.settings import FinishReason, GenerationSettings

if TYPE_CHECKING:
    from stages.generate.generate import Generation


@dataclass(frozen=True)
class SampleEntry:
    """One continuation."""

    text: str
    """The text after the prompt."""

    tokens: tuple[int, ...]
    """Ids of all generated tokens, also of an end of text and of those of a stop string."""

    finish_reason: FinishReason
    """Why it ended: the model's end of text, a stop string, `max_new_tokens`, or the context length."""


@dataclass(frozen=True)
class GenerateDocument:
    """A prompt and its continuations."""

    checkpoint: Path
    prompt: str
    prompt_tokens: tuple[int, ...]
    """Ids of the prompt's tokens."""

    samples: tuple[SampleEntry, ...]
    num_tokens: int
    """Generated tokens, of all samples."""

    wall_seconds: float
    first_token_seconds: float
    """Seconds until every sample had its first token."""

    tokens_per_second: float
    """Generated tokens of all samples per second, reading the prompt included."""

    settings: GenerationSettings


def generate_document(checkpoint: Path, made: "Generation", settings: GenerationSettings) -> GenerateDocument:
    """What `checkpoint` generated, for scripts."""
    return GenerateDocument(
        checkpoint=checkpoint,
        prompt=made.prompt,
        prompt_tokens=made.prompt_tokens,
        samples=tuple(SampleEntry(sample.text, sample.tokens, sample.finish_reason) for sample in made.samples),
        num_tokens=made.num_tokens,
        wall_seconds=made.seconds,
        first_token_seconds=made.first_token_seconds,
        tokens_per_second=made.tokens_per_second,
        settings=settings,
    )
