"""The loss by position in the window, where `growctl eval --contexts` has measured it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from growctl.analysis.runs import RunReport
from growctl.ledger.ledger import ScoreEntry
from growctl.ledger.scores import positions_of
from growctl.report.chart import Axis, Chart, Mark, Series
from growctl.text.section import Cell, Column, Rows, Section, Table
from stages.counted import counted

_COLUMNS = (Column("positions", is_number=False), Column("loss"), Column("tokens scored"))
_CAPTION = (
    "Nats per token at these positions of the windows that the text was cut into. A model that uses what came before "
    "has a lower loss at later positions. Compare models only where context and text are the same."
)


@dataclass(frozen=True)
class PositionLosses:
    """One evaluation of one model."""

    model: str
    """RUN/STAGE."""
    evaluation: str
    """The context, and the text."""
    losses: tuple[tuple[int, int, float, int | None], ...]
    """(first position, last position, loss, tokens scored), ascending."""


def position_losses(runs: Sequence[RunReport]) -> list[PositionLosses]:
    """What was measured of the final models of all runs."""
    found = []
    for run in runs:
        for part in run.parts:
            evaluations: dict[str, list[tuple[int, int, float, int | None]]] = {}
            labels: dict[str, str] = {}
            for score in part.scores:
                if (positions := positions_of(score.metric)) and score.value is not None:
                    line = (*positions, score.value, score.num_samples)
                    evaluations.setdefault(score.evaluation, []).append(line)
                    labels[score.evaluation] = _label(score)
            for evaluation, losses in evaluations.items():
                found.append(PositionLosses(f"{run.name}/{part.name}", labels[evaluation], tuple(sorted(losses))))
    return found


def _label(score: ScoreEntry) -> str:
    """The context, the text, and whatever is not as usual."""
    texts, context = score.settings.get("text") or [], score.task.removeprefix("context-")
    said = [f"context {context}"]
    if texts:
        said.append(f"{Path(texts[0]).name}{f' and {len(texts) - 1} more' if len(texts) > 1 else ''}")
    if score.settings.get("max_tokens"):
        said.append(f"first {counted(score.settings['max_tokens'], 'token')}")
    if score.settings.get("rope_scaling", "none") != "none":
        said.append(str(score.settings["rope_scaling"]))
    return ", ".join(said)


def section(runs: Sequence[RunReport]) -> Section | None:
    """The loss by position of all models where it was measured; None if it never was."""
    found = position_losses(runs)
    if not found:
        return None
    groups = tuple(
        Rows(
            tuple(
                (Cell(f"{first:,} to {last:,}", first), Cell(f"{loss:.4f}", loss), Cell(f"{count or 0:,}", count))
                for first, last, loss, count in each.losses
            ),
            each.model,
            each.evaluation,
        )
        for each in found
    )
    table = Table("loss-by-position", _COLUMNS, groups, _CAPTION)
    return Section("position", "Loss by position", (_chart(found), table), in_terminal=False)


def _chart(found: Sequence[PositionLosses]) -> Chart:
    series = tuple(
        Series(
            f"{each.model}, {each.evaluation}",
            tuple(
                Mark(
                    {"position": (first + last + 1) / 2},
                    loss,
                    (("positions", f"{first:,} to {last:,}"), ("loss", f"{loss:.4f}")),
                )
                for first, last, loss, _ in each.losses
            ),
            group=each.model,
        )
        for each in found
    )
    losses = [mark.y for one in series for mark in one.marks]
    return Chart(
        key="loss-by-position",
        title="Loss by position",
        summary=f"Loss by position: {counted(len(series), 'curve')}, from {min(losses):.4f} to {max(losses):.4f} nats.",
        x_axes=(Axis("position", "position in the window", is_log=True),),
        y_axis=Axis("loss", "loss (nats per token)"),
        series=series,
    )
