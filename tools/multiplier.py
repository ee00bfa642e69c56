"""Draws docs/multiplier.png: compute against the multiplier over training from scratch, published and measured here."""

import json
import math
from typing import Any

from tools.results import RESULTS
from tools.tables import REPOSITORY

PICTURE = REPOSITORY / "docs/multiplier.png"
PANELS = {"": "in FLOPs", "wall_": "in wall-clock"}
"""The title of each panel, by the prefix of the keys that it shows (`wall_multiplier`, `wall_low`, `wall_high`)."""
TICKS = (0.6, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
MARKERS = "osD^v<>Ph*"


def draw() -> None:
    """Draws PICTURE from published_multipliers.json and, if it is there, three_questions.json.

    What is null is not drawn. Markers are hollow where the opponent is a single size, not the best of several. An arrow
    marks an upper bound.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    points = [*_read("three_questions"), *_read("published_multipliers")]
    names = list(dict.fromkeys(_name(point) for point in points))
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(10, 4.2), sharex=True, sharey=True)
    for axis, (kind, title) in zip(axes, PANELS.items(), strict=True):
        for point in (point for point in points if point.get(f"{kind}multiplier")):
            number, value = names.index(_name(point)), point[f"{kind}multiplier"]
            low, high = point.get(f"{kind}low"), point.get(f"{kind}high")
            axis.errorbar(
                point["flops"],
                value,
                None if low is None else [[value - low], [(high or value) - value]],
                fmt=MARKERS[number % len(MARKERS)],
                color=f"C{number % 10}",
                markerfacecolor="white" if _is_one_size(point) else None,
                capsize=3,
                uplims=low is not None and point.get("is_bound", False),
                label=_name(point),
            )
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set(
            xscale="log", yscale="log", xlim=(5e11, 5e22), xlabel="training FLOPs; of a trained model, from then on"
        )
        axis.set_title(title, loc="left")
        axis.set_yticks(TICKS, [f"{tick:g}x" for tick in TICKS])
        axis.minorticks_off()
    axes[0].set_ylabel("multiplier over scratch at equal loss")
    legend = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(legend.values(), legend.keys(), loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.05 + 0.045 * (math.ceil(len(legend) / 3)), 1, 1))
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def _read(name: str) -> Any:
    path = RESULTS / f"{name}.json"
    points = json.loads(path.read_text())["rows"] if path.exists() else []
    return [point for point in points if point["flops"] and point.get("multiplier")]


def _is_one_size(point: Any) -> bool:
    return point["opponent"] == "fixed end" or point.get("question", "").startswith("trained")


def _name(point: Any) -> str:
    if "method" in point:
        return str(point["method"])
    tokens = point["question"].partition("-")[2]
    return f"ours, base of {tokens} tokens a parameter" if tokens else "ours, the quickstart"
