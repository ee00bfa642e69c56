"""Writes an inspection as files: a self-contained HTML page, and its picture as PNG."""

from collections.abc import Iterator
from pathlib import Path

from growctl.inspect import plots
from growctl.inspect.inspection import Inspection, Subject
from growctl.inspect.rows import (
    NOTES,
    Grid,
    comparison_rows,
    dead_lines,
    generation_rows,
    layer_rows,
    model_rows,
    score_rows,
    training_rows,
    use_lines,
)
from growctl.report.drawing import Picture
from growctl.report.page import render_page
from growctl.text.section import Cell, Column, Listing, Paragraph, Part, Section, Table
from growctl.whole_file import replace_file
from stages.counted import counted

PAGE, PICTURE = "inspection.html", "inspection.png"
_TEXT_COLUMNS = ("model", "scores", "layer")


def write_page(inspection: Inspection, directory: Path) -> Path:
    """Writes the page and the picture into `directory`, replacing older ones; returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / PICTURE, plots.png(inspection))
    path = directory / PAGE
    title = f"Inside {', '.join(subject.name for subject in inspection.checkpoints)}"
    replace_file(path, render_page(title, _sections(inspection)).encode())
    return path


def _sections(inspection: Inspection) -> list[Section]:
    text = inspection.text
    windows = f"{counted(text.num_sequences, 'window')} of {counted(text.context, 'token')}"
    parts = [Paragraph(f"{text.source}: {windows}, {text.batch_size} in a batch")]
    parts += [Paragraph(note, "note") for note in NOTES]
    title = "Gradients, activations and scores by depth"
    drawing = Picture("depth", title, title, plots.svg(inspection))
    training = training_rows(inspection)
    grids = [model_rows(inspection), *([training] if training else []), *comparison_rows(inspection)]
    return [
        Section("models", "Models on this text", (*parts, drawing, *_tables(grids))),
        *(_checkpoint(number, subject) for number, subject in enumerate(inspection.checkpoints, 1)),
    ]


def _checkpoint(number: int, subject: Subject) -> Section:
    grids = (layer_rows(number, subject), score_rows(number, subject), generation_rows(number, subject))
    parts: list[Part] = list(_tables([grid for grid in grids if grid]))
    if any(layer.scores for layer in subject.facts.layers):
        parts += [Paragraph("Parameter tokens", "heading"), *map(Paragraph, dead_lines(subject))]
        for head, contexts in use_lines(subject):
            lines = (f"{score:8.3g}  {before}[{at}]" for before, at, score in contexts)
            parts.append(Listing(head, "\n".join(lines)))
    return Section(f"checkpoint-{number}", f"{number}: {subject.name}", tuple(parts))


def _tables(grids: list[Grid]) -> Iterator[Table]:
    for number, grid in enumerate(grids):
        headings = [heading.replace("-\n", "").replace("\n", " ") for heading in grid.headings]
        columns = [Column(heading, is_number=heading not in _TEXT_COLUMNS) for heading in headings]
        yield Table.of(f"table-{number}", columns, [list(map(Cell, row)) for row in grid.rows], grid.title)
