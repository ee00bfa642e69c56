"""The texts that a finished stage's model writes from a schedule's prompts, in a file for screen and report.

Imports torch only to write them.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt, ValidationError

from model.strict import Strict
from stages.checkpoint.files import write_file
from stages.checkpoint.manifest import manifest_hash


class TextRequest(Strict):
    """What a model is to write."""

    prompts: tuple[str, ...] = ()
    max_new_tokens: PositiveInt = 60
    temperature: Annotated[float, Field(ge=0.0)] = 0.8


class TextSample(Strict):
    """One text."""

    prompt: str
    text: str
    """What the model wrote after the prompt."""

    finish_reason: str
    """stages/generate/generate.py has the reasons."""

    @property
    def whole(self) -> str:
        """The prompt and what the model wrote after it."""
        return self.prompt + self.text


class TextSamples(Strict):
    """The texts of one checkpoint, one for each prompt."""

    checkpoint: str
    """sha256 of its manifest."""

    request: TextRequest
    samples: tuple[TextSample, ...]


def read_samples(path: Path) -> TextSamples | None:
    """The texts in the file `path`; None if there is none, or if it cannot be read: they can be written again."""
    try:
        return TextSamples.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write_samples(final: Path, request: TextRequest, path: Path) -> TextSamples:
    """Lets the checkpoint `final` write the texts of `request`, on the CPU in float32, into the file `path`.

    Raises UserError if a prompt does not fit, Failure if the model cannot write, OSError if the disk cannot.
    """
    from stages.checkpoint.pretrained import load_pretrained
    from stages.generate.generate import GenerationSettings, generate
    from stages.generate.sampling import Sampling

    pretrained = load_pretrained(final)
    settings = GenerationSettings(
        max_new_tokens=request.max_new_tokens, sampling=Sampling(temperature=request.temperature)
    )
    samples = []
    for prompt in request.prompts:
        [sample] = generate(pretrained, prompt, settings).samples
        samples.append(TextSample(prompt=prompt, text=sample.text, finish_reason=sample.finish_reason))
    written = TextSamples(checkpoint=manifest_hash(final), request=request, samples=tuple(samples))
    write_file(path, written.model_dump_json(indent=1).encode())
    return written
