"""Writes an inspection as files: a self-contained HTML page, and its picture as PNG."""

from collections.abc import Iterable
from html import escape
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
from growctl.text.html import page
from growctl.whole_file import replace_file
from stages.counted import counted

PAGE, PICTURE = "inspection.html", "inspection.png"


def write_page(inspection: Inspection, directory: Path) -> Path:
    """Writes the page and the picture into `directory`, replacing older ones; returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / PICTURE, plots.png(inspection))
    path = directory / PAGE
    replace_file(path, render_page(inspection).encode())
    return path


def render_page(inspection: Inspection) -> str:
    """The HTML page. It has no scripts, loads nothing, and escapes names and text."""
    text = inspection.text
    title = f"Inside {', '.join(subject.name for subject in inspection.checkpoints)}"
    windows = f"{counted(text.num_sequences, 'window')} of {counted(text.context, 'token')}"
    training = training_rows(inspection)
    comparisons = [model_rows(inspection), *([training] if training else []), *comparison_rows(inspection)]
    return page(
        title,
        f"""<h1>{escape(title)}</h1>
<p>{escape(text.source)}: {windows}, {text.batch_size} in a batch</p>
{"".join(f'<p class="note">{escape(note)}</p>' for note in NOTES)}
<div role="img" aria-label="Gradients, activations and scores by depth">{plots.svg(inspection)}</div>
{_grids(comparisons)}
{"".join(_checkpoint(number, subject) for number, subject in enumerate(inspection.checkpoints, 1))}
<footer>Written by growctl inspect. docs/inspection.md explains every number.</footer>
""",
    )


def _checkpoint(number: int, subject: Subject) -> str:
    grids = (layer_rows(number, subject), score_rows(number, subject), generation_rows(number, subject))
    found = _grids(grid for grid in grids if grid)
    if not any(layer.scores for layer in subject.facts.layers):
        return found
    dead = "".join(f"<p>{escape(line)}</p>" for line in dead_lines(subject))
    uses = "".join(
        f"<h3>{escape(head)}</h3><ul>"
        + "".join(
            f"<li>{score:.3g} <code>{escape(before)}<mark>{escape(at)}</mark></code></li>"
            for before, at, score in contexts
        )
        + "</ul>"
        for head, contexts in use_lines(subject)
    )
    return f"{found}<h2>{number}: parameter tokens</h2>{dead}{uses}"


def _grids(grids: Iterable[Grid]) -> str:
    return "".join(f'<h2>{escape(grid.title)}</h2><div class="wide">{_table(grid)}</div>' for grid in grids)


def _table(grid: Grid) -> str:
    def row(cells: Iterable[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    head = row((heading.replace("-\n", "").replace("\n", " ") for heading in grid.headings), "th")
    return f"<table><thead>{head}</thead><tbody>{''.join(row(cells, 'td') for cells in grid.rows)}</tbody></table>"
