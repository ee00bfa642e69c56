"""Prints an inspection in 80 columns. Only paths may be wider."""

from typing import TYPE_CHECKING

from growctl.inspect.inspection import Inspection
from growctl.inspect.rows import (
    NOTES,
    Grid,
    comparison_rows,
    dead_lines,
    generation_rows,
    layer_rows,
    model_rows,
    score_rows,
    use_lines,
)
from growctl.text.colours import FAINT
from growctl.text.first_use import FirstUse
from growctl.text.name_cell import NameCell
from stages.counted import counted

if TYPE_CHECKING:
    from rich.console import Console

MOST_USED_SHOWN = 5
BEFORE_SHOWN = 48
"""Characters of a context before the token."""

DEAD_SHOWN = 12
"""Lines of dead tokens; the JSON document has all."""


def print_inspection(inspection: Inspection, console: "Console") -> None:
    """Prints the comparison of the models, then every layer, the scores and the tokens of each checkpoint."""
    text = inspection.text
    console.print(f"text: {text.source}", soft_wrap=True)
    batches = text.num_sequences // text.batch_size
    console.print(
        f"{counted(text.num_sequences, 'window')} of {counted(text.context, 'token')}, in "
        f"{counted(batches, 'batch', 'batches')} of {text.batch_size}"
    )
    _print(model_rows(inspection), console)
    for grid in comparison_rows(inspection):
        _print(grid, console)
    for number, subject in enumerate(inspection.subjects, 1):
        _print(layer_rows(number, subject), console)
        scores, generations = score_rows(number, subject), generation_rows(number, subject)
        if scores is None or generations is None:
            continue
        _print(scores, console)
        _print(generations, console)
        lines = dead_lines(subject)
        console.print()
        for line in lines[: DEAD_SHOWN + 1]:
            console.print(line)
        if len(lines) > DEAD_SHOWN + 1:
            console.print(f"... and {len(lines) - DEAD_SHOWN - 1} lines more (--json has all)")
        console.print()
        for head, contexts in use_lines(subject, MOST_USED_SHOWN):
            console.print(head)
            for before, at, score in contexts:
                cut = "..." if len(before) > BEFORE_SHOWN else ""
                console.print(f"  {score:8.3g}  {cut}{before[-BEFORE_SHOWN:]}[{at[:12]}]", no_wrap=True, crop=True)
    console.print()
    words = FirstUse()
    for note in NOTES:
        console.print(words.explained(note), style=FAINT)


def _print(grid: Grid, console: "Console") -> None:
    from rich.table import Table
    from rich.text import Text

    console.print()
    console.print(Text(grid.title, FAINT))
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    texts = ("model", "scores", "layer")
    for heading in grid.headings:
        left = heading in texts
        table.add_column(
            heading, justify="left" if left else "right", no_wrap=heading != "model", vertical="bottom", overflow="fold"
        )
    place = grid.headings.index("model") if "model" in grid.headings else None
    for row in grid.rows:
        table.add_row(*(NameCell(cell) if i == place else cell for i, cell in enumerate(row)))
    console.print(table)
