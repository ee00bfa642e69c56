"""Formats losses and scores: tables for people, entries for the ledger."""

import math
from typing import TYPE_CHECKING, Any

from growctl.text.first_use import FirstUse

if TYPE_CHECKING:
    from rich.console import Console

    from stages.evaluate.tasks import TaskResults
    from stages.evaluate.text import TextLoss


def text_scores(found: "TextLoss") -> list[dict[str, Any]]:
    """The figures of a text as the fields of ledger entries."""
    values = {name: finite(getattr(found, name)) for name in ("loss", "perplexity", "word_perplexity", "bits_per_byte")}
    return [
        {"task": "text", "metric": name, "filter": "none", "value": value, "num_samples": found.num_scored}
        for name, value in values.items()
        if value is not None
    ]


def finite(value: float | None) -> float | None:
    """`value`; None if it is infinite or not a number, which JSON cannot say."""
    return value if value is not None and math.isfinite(value) else None


def print_text(found: "TextLoss", console: "Console") -> None:
    """Prints the loss as a table."""
    from rich.table import Table

    rows = [
        ("tokens predicted", f"{found.num_scored:,}"),
        ("loss", FirstUse().explained(f"{found.loss:.5f} nats per token")),
        ("perplexity", f"{found.perplexity:.4f} per token"),
        ("word perplexity", f"{found.word_perplexity:.4f}" if found.word_perplexity else "-"),
        ("bits per byte", f"{found.bits_per_byte:.5f}"),
        *((f"loss on {source.name}", f"{source.found.loss:.5f}") for source in found.by_source),
    ]
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def task_scores(results: "TaskResults") -> list[dict[str, Any]]:
    """The scores of all tasks as the fields of ledger entries. Infinite values are None."""
    scores = [score._asdict() for score in results.scores]
    for score in scores:
        score |= {name: finite(score[name]) for name in ("value", "standard_error")}
    return scores


def print_scores(results: "TaskResults", console: "Console") -> None:
    """Prints a row for each metric of each task."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("task", "metric"):
        table.add_column(name, overflow="fold")
    for name in ("value", "standard error", "examples", "shots"):
        table.add_column(name, justify="right", no_wrap=True)
    for score in results.scores:
        metric = score.metric if score.filter == "none" else f"{score.metric}, {score.filter}"
        counts = ("-" if count is None else f"{count:,}" for count in (score.num_samples, score.num_shots))
        error = "-" if score.standard_error is None else f"{score.standard_error:.4f}"
        table.add_row(score.task, metric, f"{score.value:.4f}", error, *counts)
    console.print(table)
