"""The scores of a report's models: the paper's zero-shot table with its published rows, and all other scores."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from growctl.ledger.ledger import ScoreEntry
from growctl.report.read import RunReport, StageReport
from growctl.text.formatting import short_count

if TYPE_CHECKING:
    from rich.console import Console

HEADING = "Zero-shot scores"

PUBLISHED_NOTE = (
    "Rows marked with † are published in the Tokenformer paper (arXiv 2410.23168). growctl did not measure them, and "
    "they were trained on other data: they are a scale, not a comparison."
)

OTHER_HEADING = "Other scores"
OTHER_HEADERS = ("model", "evaluated on", "metric", "value")


class Column(NamedTuple):
    """One column of the zero-shot table."""

    name: str
    task: str
    metric: str
    percent: bool = True


COLUMNS = (
    Column("LAMBADA ppl", "lambada_openai", "perplexity", percent=False),
    Column("LAMBADA", "lambada_openai", "acc"),
    Column("HellaSwag", "hellaswag", "acc_norm"),
    Column("PIQA", "piqa", "acc"),
    Column("ARC-E", "arc_easy", "acc"),
    Column("ARC-C", "arc_challenge", "acc_norm"),
    Column("WinoGrande", "winogrande", "acc"),
)
"""The tasks of the paper's table. It does not name the metrics; these are those of Mamba's table of the same models:
accuracy, normalised by the answers' length for HellaSwag and ARC-Challenge."""

HEADERS = ("model", "parameters", *(column.name for column in COLUMNS), "average")


class ScoreRow(NamedTuple):
    """A row of the zero-shot table, as text for each of HEADERS."""

    cells: tuple[str, ...]
    is_published: bool


_PUBLISHED = (
    ("Pythia-160M", "160M", 37.25, 35.4, 30.3, 62.3, 43.6, 23.6, 51.3, 40.1),
    ("TokenFormer-150M", "150M", 16.38, 45.0, 35.5, 64.9, 47.3, 24.9, 50.4, 44.7),
    ("Pythia-410M", "410M", 10.84, 51.4, 40.6, 66.9, 52.1, 24.6, 53.8, 48.2),
    ("TokenFormer-450M", "450M", 7.69, 57.3, 47.5, 69.5, 56.2, 26.7, 54.6, 52.0),
    ("Pythia-1B", "1B", 7.92, 56.1, 47.2, 70.7, 57.0, 27.1, 53.5, 51.9),
    ("TokenFormer-900M", "900M", 5.46, 64.0, 55.3, 72.4, 59.9, 30.6, 56.4, 56.4),
    ("Pythia-1.3B", "1.3B", 6.08, 61.7, 52.1, 71.0, 60.5, 28.5, 57.2, 55.2),
    ("Pythia-2.8B", "2.8B", 5.04, 64.7, 59.3, 74.0, 64.1, 32.9, 59.7, 59.1),
    ("TokenFormer-1.5B", "1.5B", 5.24, 64.7, 60.0, 74.8, 64.8, 32.0, 59.7, 59.3),
)
"""Table of zero-shot evaluations of the paper: the models trained on the Pile. Percent, except LAMBADA's perplexity.
Copied as published: Pythia-160M's accuracies have the mean 41.1, not 40.1."""


def zero_shot_rows(runs: Sequence[RunReport]) -> list[ScoreRow]:
    """A row for each model with a score of the table's tasks on all examples, and then the published rows.

    Empty if no model has one.
    """
    own = [_row(run, part) for run in runs for part in run.parts if _found(part.scores)]
    if not own:
        return []
    published = [
        ScoreRow((f"† {name}", size, f"{ppl:.2f}", *(f"{value:.1f}" for value in values)), True)
        for name, size, ppl, *values in _PUBLISHED
    ]
    return own + published


def other_scores(runs: Sequence[RunReport]) -> list[tuple[str, str, str, str]]:
    """The model, what it was evaluated on, the metric and the value of every score that the table does not show."""
    rows = []
    for run in runs:
        for part in run.parts:
            shown = _found(part.scores).values()
            for score in part.scores:
                if score not in shown:
                    rows.append((f"{run.name}/{part.name}", _what(score), score.metric, _value(score)))
    return rows


def print_scores(runs: Sequence[RunReport], console: "Console") -> None:
    """Prints the zero-shot table, with its published rows, and all other scores."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from growctl.text.name_cell import NameCell

    def print_table(heading: str, headers: Sequence[str], rows: Sequence[Sequence[str]], note: str | None) -> None:
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column(headers[0], vertical="bottom")
        for header in headers[1:]:
            table.add_column(header.replace(" ", "\n", 1), justify="right", vertical="bottom")
        for name, *cells in rows:
            table.add_row(NameCell(name), *map(Text, cells))
        console.print()
        console.print(Text(heading, "bold"))
        console.print(Padding(table, (0, 0, 0, 2)))
        if note:
            console.print(Padding(Text(note, "dim"), (0, 0, 0, 2)))

    if found := zero_shot_rows(runs):
        print_table(HEADING, HEADERS, [row.cells for row in found], PUBLISHED_NOTE)
    if others := other_scores(runs):
        print_table(OTHER_HEADING, OTHER_HEADERS, others, None)


def _row(run: RunReport, part: StageReport) -> ScoreRow:
    found = _found(part.scores)
    values = [found.get(column) for column in COLUMNS]
    cells = [_cell(column, score) for column, score in zip(COLUMNS, values, strict=True)]
    accuracies = [score.value for score in values[1:] if score and score.value is not None]
    average = f"{100 * statistics.fmean(accuracies):.1f}" if len(accuracies) == len(COLUMNS) - 1 else "-"
    return ScoreRow((f"{run.name}/{part.name}", short_count(part.num_parameters), *cells, average), False)


def _found(scores: Sequence[ScoreEntry]) -> dict[Column, ScoreEntry]:
    """The newest score of each column, on all examples and without solved ones in the prompt."""
    whole = [score for score in scores if score.settings.get("limit") is None and not score.num_shots]
    return {
        column: score
        for score in whole
        for column in COLUMNS
        if (score.task, score.metric) == (column.task, column.metric)
    }


def _cell(column: Column, score: ScoreEntry | None) -> str:
    if score is None or score.value is None:
        return "-"
    return f"{100 * score.value:.1f}" if column.percent else f"{score.value:.2f}"


def _what(score: ScoreEntry) -> str:
    """The task or text of a score, with what sets it apart."""
    settings = score.settings
    parts = [score.task if score.filter == "none" else f"{score.task}, {score.filter}"]
    if score.task == "text":
        named = settings.get("text") or [f"{settings.get('split')} split"]
        parts = [f"{named[0]}{f' and {len(named) - 1} more' if len(named) > 1 else ''}"]
        parts.append(f"context {settings['context']}")
        if settings.get("stride") != settings.get("context"):
            parts.append(f"stride {settings['stride']}")
    if settings.get("rope_scaling", "none") != "none":
        parts.append(str(settings["rope_scaling"]))
    if settings.get("limit"):
        parts.append(f"first {settings['limit']}")
    if score.num_shots:
        parts.append(f"{score.num_shots} shots")
    return ", ".join(parts)


def _value(score: ScoreEntry) -> str:
    if score.value is None:
        return "-"
    return f"{score.value:.4g}" + ("" if score.standard_error is None else f" ± {score.standard_error:.2g}")
