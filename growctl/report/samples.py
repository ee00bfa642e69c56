"""The texts that the models of a report wrote, by prompt, and how the terminal shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from growctl.report.read import RunReport

if TYPE_CHECKING:
    from rich.console import Console


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


def print_samples(runs: Sequence[RunReport], console: "Console") -> None:
    """Prints the texts of all runs; nothing if there are none."""
    from rich.padding import Padding
    from rich.text import Text

    from growctl.text.colours import FAINT

    for texts in texts_by_prompt(runs):
        console.print()
        console.print(Text(texts.heading, "bold"))
        for writer, text in texts.by_writer:
            console.print(Padding(Text(writer, FAINT), (0, 0, 0, 2)))
            console.print(Padding(Text(text.rstrip()), (0, 0, 0, 4)))
