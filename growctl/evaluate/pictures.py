"""The picture of `growctl inspect`, as PNG with a white background."""

import io

from matplotlib.figure import Figure

from growctl.evaluate.inspection import QUANTITIES, InspectDocument
from growctl.text.escaping import visible


def inspection_png(document: InspectDocument) -> bytes:
    """Gradients and activations by depth. Every dot is a layer, in the order of the forward pass."""
    figure = Figure(figsize=(15.0, 5.0), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(QUANTITIES))
    for axes, (title, quantity) in zip(panels, QUANTITIES.items(), strict=True):
        for number, model in enumerate(document.models, 1):
            label = visible(f"{number}: {model.name}, {model.scores_word}").replace("$", r"\$")
            values = [quantity(layer) for layer in model.layers]
            places = [(place + 0.5) / len(values) for place in range(len(values))]
            shown = [(place, value) for place, value in zip(places, values, strict=True) if value and value > 0]
            axes.plot([place for place, _ in shown], [value for _, value in shown], "o-", markersize=4, label=label)
        axes.set(title=title, xlabel="depth (share of the layers)", yscale="log")
        axes.grid(alpha=0.12)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", ncols=2, fontsize=8, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
