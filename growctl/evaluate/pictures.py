"""The pictures of `growctl eval --contexts` and of `growctl inspect`, as PNG with a white background."""

import io
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from growctl.evaluate.evaluation import EvalDocument, scores_by_context
from growctl.evaluate.inspection import QUANTITIES, InspectDocument, InspectedCheckpoint
from growctl.text.escaping import visible
from stages.evaluate.results import positions_of
from stages.inspect.facts import Layer

INK = "#30353d"
_COLORS = {"l2_norm_gelu": "#0072b2", "gelu_l2_norm": "#009e73", "softmax": "#d55e00", "linear": "#7f7f7f"}
_MARKERS = "osDvP*^X"


def contexts_png(document: EvalDocument) -> bytes:
    """The loss by position: a line for each context, on a logarithmic axis."""
    figure = Figure(figsize=(8.0, 5.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for context, scores in scores_by_context(document.scores).items():
        parts = [
            ((positions[0] + positions[1] + 1) / 2, score.value)
            for metric, score in scores.items()
            if (positions := positions_of(metric)) and score.value is not None
        ]
        axes.plot(*zip(*parts, strict=True), "o-", markersize=4, label=f"context {context:,}")
    axes.axvline(document.settings["trained_length"], color=INK, linestyle=":", linewidth=1.0, label="training length")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("loss (nats per token)", color=INK, fontsize=9)
    _frame(axes, "loss by position", "position in the window")
    axes.legend(frameon=False, fontsize=8)
    return _png(figure)


def inspection_png(document: InspectDocument) -> bytes:
    """Gradients and activations by depth. Every dot is a layer, in the order of the forward pass."""
    figure = Figure(figsize=(15.0, 5.0), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(QUANTITIES))
    for axes, (title, quantity) in zip(panels, QUANTITIES.items(), strict=True):
        for number, model in enumerate(document.models, 1):
            _draw_layers(axes, number, model, quantity)
        axes.set_yscale("log")
        _frame(axes, title, "depth (share of the layers)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=2, fontsize=8, labelcolor=INK, frameon=False)
    return _png(figure)


def _draw_layers(
    axes: Axes, number: int, model: InspectedCheckpoint, quantity: Callable[[Layer], float | None]
) -> None:
    points = [
        ((place + 0.5) / len(model.layers), value)
        for place, layer in enumerate(model.layers)
        if (value := quantity(layer)) is not None and value > 0
    ]
    scores = model.score_function or "linear"
    axes.plot(
        *(zip(*points, strict=True) if points else ([], [])),
        _MARKERS[(number - 1) % len(_MARKERS)],
        linestyle="-",
        color=_COLORS[scores],
        markersize=4,
        linewidth=1.4,
        label=visible(f"{number}: {model.name}, {scores}").replace("$", r"\$"),
    )


def _frame(axes: Axes, title: str, x_label: str) -> None:
    axes.set_title(title, color=INK, fontsize=10)
    axes.set_xlabel(x_label, color=INK, fontsize=9)
    axes.tick_params(which="both", color=INK, labelcolor=INK, labelsize=8)
    axes.grid(color=INK, alpha=0.12, linewidth=0.8)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(INK)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
