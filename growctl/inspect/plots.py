"""Draws an inspection: gradients and activations by depth, gradient norms of training, and scores."""

import io
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from growctl.inspect.inspection import Inspection, Subject
from growctl.text.escaping import visible
from stages.inspect.facts import Layer

INK = "#30353d"
_COLORS = {"l2_norm_gelu": "#0072b2", "gelu_l2_norm": "#009e73", "softmax": "#d55e00", "linear": "#7f7f7f"}
_MARKERS = "osDvP*^X"

_PANELS: dict[str, Callable[[Layer], float | None]] = {
    "gradient norm of a layer": lambda layer: layer.gradient.mean,
    "gradient gain through a layer": lambda layer: layer.gradient_gain,
    "kurtosis of a layer's output": lambda layer: layer.output.kurtosis,
}


def draw(inspection: Inspection) -> Figure:
    """The picture as a figure of 1500 x 1200 pixels.

    Solid lines are checkpoints, dashed lines are untrained models. In three panels, every dot is a layer, in the order
    of the forward pass. The fourth shows gradient norms during training, if they are known.
    """
    figure = Figure(figsize=(10.0, 8.0), dpi=150, layout="constrained")
    grid = figure.subplots(2, 2)
    axes = list(grid.flat)
    for panel, (title, quantity) in zip(axes, _PANELS.items(), strict=False):
        for number, subject in enumerate(inspection.subjects, 1):
            _draw_layers(panel, number, subject, quantity)
        _frame(panel, title, "depth (share of the layers)")
    for number, subject in enumerate(inspection.subjects, 1):
        if subject.training:
            steps, norms = zip(*subject.training.norms, strict=True)
            axes[3].plot(steps, norms, color=_color(subject), linewidth=1.0, alpha=0.8, label=_label(number, subject))
    _frame(axes[3], "gradient norm during training", "steps")
    if not axes[3].lines:
        axes[3].text(0.5, 0.5, "not recorded", transform=axes[3].transAxes, ha="center", color=INK)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=2, fontsize=8, labelcolor=INK, frameon=False)
    return figure


def png(inspection: Inspection) -> bytes:
    """The picture as a PNG with a white background."""
    buffer = io.BytesIO()
    draw(inspection).savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_layers(axes: Axes, number: int, subject: Subject, quantity: Callable[[Layer], float | None]) -> None:
    count = len(subject.facts.layers)
    points = [
        ((place + 0.5) / count, value)
        for place, layer in enumerate(subject.facts.layers)
        if (value := quantity(layer)) is not None and value > 0
    ]
    trained = subject.kind == "checkpoint"
    axes.plot(
        *(zip(*points, strict=True) if points else ([], [])),
        _MARKERS[(number - 1) % len(_MARKERS)],
        linestyle="-" if trained else "--",
        color=_color(subject),
        markersize=4 if trained else 3,
        linewidth=1.4 if trained else 0.8,
        alpha=0.9 if trained else 0.6,
        label=_label(number, subject),
    )


def _frame(axes: Axes, title: str, x_label: str) -> None:
    axes.set_yscale("log")
    axes.set_title(title, color=INK, fontsize=10)
    axes.set_xlabel(x_label, color=INK, fontsize=9)
    axes.tick_params(which="both", color=INK, labelcolor=INK, labelsize=8)
    axes.grid(color=INK, alpha=0.12, linewidth=0.8)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(INK)


def _color(subject: Subject) -> str:
    return _COLORS.get(subject.scores, "#cc79a7")


def _label(number: int, subject: Subject) -> str:
    return visible(f"{number}: {subject.name}, {subject.scores}").replace("$", r"\$")
