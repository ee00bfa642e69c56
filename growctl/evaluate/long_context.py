"""Formats losses at long contexts: tables for people, entries for the ledger, a picture."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from growctl.ledger.entries import position_metric

if TYPE_CHECKING:
    from rich.console import Console

    from stages.evaluate.long_context import ContextLoss

_METRICS = ("loss", "seconds_per_token", "bytes_per_token")


def contexts_scores(found: "Sequence[ContextLoss]") -> list[dict[str, Any]]:
    """The loss, time and memory at each context, and the loss by position, as the fields of ledger entries."""
    scores = []
    for each in found:
        figures = [(name, getattr(each, name), each.num_scored) for name in _METRICS]
        figures += [(position_metric(own.first, own.last), own.loss, own.num_scored) for own in each.buckets]
        scores += [
            {"task": f"context-{each.context}", "metric": name, "filter": "none", "value": value, "num_samples": count}
            for name, value, count in figures
        ]
    return scores


def print_contexts(found: "Sequence[ContextLoss]", trained_length: int, console: "Console") -> None:
    """Prints a row for each context, and then the loss by position, with a column for each context."""
    from rich.table import Table

    from growctl.text.formatting import byte_count

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("context", "scaling", "loss", "perplexity", "µs per token", "memory per token"):
        table.add_column(name, justify="left" if name == "scaling" else "right")
    for each in found:
        scaling = f"{each.scaling.kind} {each.scaling.factor:g}x" if each.scaling else "none"
        memory = "-" if each.bytes_per_token is None else byte_count(each.bytes_per_token)
        perplexity = f"{each.perplexity:.4g}"
        figures = (f"{each.loss:.4f}", perplexity, f"{each.seconds_per_token * 1e6:.4g}", memory)
        table.add_row(f"{each.context:,}", scaling, *figures)
    console.print(table)

    positions = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    positions.add_column("loss at\npositions", vertical="bottom")
    for each in found:
        positions.add_column(f"context\n{each.context:,}", justify="right", vertical="bottom", no_wrap=True)
    longest = max(found, key=lambda each: each.context)
    for bucket in longest.buckets:
        same = [next((own for own in each.buckets if own.first == bucket.first), None) for each in found]
        cells = [f"{own.loss:.3f}" if own else "" for own in same]
        beyond = " *" if bucket.last >= trained_length else ""
        positions.add_row(f"{bucket.first:,} to {bucket.last:,}{beyond}", *cells)
    console.print()
    console.print(positions)
    if longest.context > trained_length:
        console.print(f"* beyond the {trained_length:,} tokens of a training sequence")


def contexts_png(found: "Sequence[ContextLoss]", trained_length: int) -> bytes:
    """The loss by position as a picture: a line for each context, on a logarithmic axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(8.0, 5.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for each in found:
        scaling = f", {each.scaling.kind} {each.scaling.factor:g}x" if each.scaling else ""
        middles = [(bucket.first + bucket.last + 1) / 2 for bucket in each.buckets]
        losses = [bucket.loss for bucket in each.buckets]
        axes.plot(middles, losses, "o-", markersize=4, label=f"context {each.context:,}{scaling}")
    axes.axvline(trained_length, color="#30353d", linestyle=":", linewidth=1.0)
    axes.annotate(
        "training length",
        xy=(trained_length, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=8,
    )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("position in the window")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.15)
    for name in ("top", "right"):
        axes.spines[name].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
