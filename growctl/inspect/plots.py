"""Draws an inspection: gradients and activations by depth."""

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
    """The picture as a figure of 2250 x 750 pixels. Every dot is a layer, in the order of the forward pass."""
    figure = Figure(figsize=(15.0, 5.0), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(_PANELS))
    for panel, (title, quantity) in zip(panels, _PANELS.items(), strict=True):
        for number, subject in enumerate(inspection.subjects, 1):
            _draw_layers(panel, number, subject, quantity)
        _frame(panel, title, "depth (share of the layers)")
    handles, labels = panels[0].get_legend_handles_labels()
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
    axes.plot(
        *(zip(*points, strict=True) if points else ([], [])),
        _MARKERS[(number - 1) % len(_MARKERS)],
        linestyle="-",
        color=_color(subject),
        markersize=4,
        linewidth=1.4,
        alpha=0.9,
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
