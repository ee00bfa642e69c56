"""The texts that the models of a report wrote, by prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from growctl.analysis.runs import RunReport
from growctl.text.section import Listing, Paragraph, Section


@dataclass(frozen=True)
class Texts:
    """What the finished stages of several runs wrote after the same prompt."""

    prompt: str
    by_writer: tuple[tuple[str, str], ...]
    """The run and stage that wrote each text, and the text with its prompt."""

    @property
    def heading(self) -> str:
        """What the texts have in common."""
        return f"Text after {self.prompt!r}" if self.prompt else "Text of a new document"


def texts_by_prompt(runs: Sequence[RunReport]) -> list[Texts]:
    """The texts of all runs: one entry for each prompt, in the order of the schedules."""
    found: dict[str, dict[str, str]] = {}
    for run in runs:
        for stage in run.parts:
            for sample in stage.samples:
                found.setdefault(sample.prompt, {})[f"{run.name}/{stage.name}"] = sample.whole
    return [Texts(prompt, tuple(writers.items())) for prompt, writers in found.items()]


def section(runs: Sequence[RunReport]) -> Section | None:
    """The texts of all runs; None if there are none."""
    parts: list[Paragraph | Listing] = []
    for texts in texts_by_prompt(runs):
        parts += [Paragraph(texts.heading, "heading"), *(Listing(*written) for written in texts.by_writer)]
    return (
        Section("samples", "Text after each stage", tuple(parts), in_terminal=False, is_detail=True) if parts else None
    )
