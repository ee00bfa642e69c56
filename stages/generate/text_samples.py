"""The texts that a finished stage's model writes from a schedule's prompts, in a file for screen and report.

As a program, it writes them: `python -m stages.generate.text_samples FINAL REQUEST PATH`. Imports torch only for that.
"""

import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt, ValidationError

from model.errors import Failure, UserError
from model.strict import Strict
from stages.checkpoint.files import write_file
from stages.checkpoint.manifest import manifest_hash
from stages.process.lifeline import end_with_runner


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
    """As `stages.generate.settings.FinishReason` says."""

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

    A prompt that cannot be continued is left out, and the reason printed. Raises CheckpointError if the checkpoint
    cannot be loaded, OSError if the file cannot be written.
    """
    from stages.checkpoint.pretrained import load_pretrained
    from stages.generate.generate import generate
    from stages.generate.settings import GenerationSettings, Sampling

    pretrained = load_pretrained(final)
    settings = GenerationSettings(
        max_new_tokens=request.max_new_tokens, sampling=Sampling(temperature=request.temperature)
    )
    samples: list[TextSample] = []
    for prompt in request.prompts:
        try:
            [sample] = generate(pretrained, prompt, settings).samples
            samples.append(TextSample(prompt=prompt, text=sample.text, finish_reason=sample.finish_reason))
        except (UserError, Failure) as error:
            print(f"no text after {prompt[:40]!r}: {error}")
    written = TextSamples(checkpoint=manifest_hash(final), request=request, samples=tuple(samples))
    write_file(path, written.model_dump_json(indent=1).encode())
    return written


def main() -> None:
    """Writes the texts that the command line asks for; on failure, logs the reason in one line and exits with 1."""
    end_with_runner()
    final, request, path = sys.argv[1:]
    try:
        write_samples(Path(final), TextRequest.model_validate_json(request), Path(path))
    except (UserError, Failure, OSError) as error:
        raise SystemExit(f"growctl: {error}") from error


if __name__ == "__main__":
    main()
