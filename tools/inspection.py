"""Makes the tables of docs/inspection.md from benchmarks/results/."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from model.config import PATTENTIONS
from tools.pages import REPOSITORY, filled
from tools.performance import RESULTS, Results, read_results
from tools.tables import NOT_MEASURED, table

PAGE = REPOSITORY / "docs/inspection.md"


class TrainingRow(BaseModel):
    """The gradient norms that a run recorded."""

    median: float
    largest_over_median: float
    step_to_step: float
    num_rejected: int


class ModelRow(BaseModel):
    """One model of one seed."""

    seed: int
    kind: str
    scores: str
    loss: float
    gradient_norm: float
    spread: float
    depth_ratio: float | None
    largest_kurtosis: float
    gradient_norms: dict[str, float]
    gains: dict[str, float]
    num_tokens: int
    num_dead: int
    effective_share: float | None
    training: TrainingRow | None


class ScoreFunctions(Results):
    """The results file of benchmarks/score_functions.py."""

    rows: list[ModelRow]


def trained_table(results: Path = RESULTS) -> str:
    """The models at the end of their training."""
    columns: dict[str, Callable[[ModelRow], str]] = {
        "loss": lambda row: f"{row.loss:.2f}",
        "gradient norm": lambda row: _number(row.gradient_norm),
        "spread over batches": lambda row: f"{row.spread:.0%}",
        "largest / smallest layer": lambda row: _number(row.depth_ratio),
        "training: largest / median norm": lambda row: _number(
            row.training.largest_over_median if row.training else None
        ),
        "training: step to step": lambda row: _number(row.training.step_to_step if row.training else None),
        "largest kurtosis": lambda row: _number(row.largest_kurtosis),
        "dead tokens": lambda row: f"{row.num_dead / row.num_tokens:.0%}" if row.num_tokens else "-",
        "effective tokens": lambda row: "-" if row.effective_share is None else f"{row.effective_share:.0%}",
    }
    return _by_scores(results, "checkpoint", columns)


def untrained_table(results: Path = RESULTS) -> str:
    """Gradient norms by layer at initialisation."""
    columns: dict[str, Callable[[ModelRow], str]] = {"all": lambda row: _number(row.gradient_norm)}
    columns |= {name: lambda row, name=name: _number(row.gradient_norms.get(name)) for name in PATTENTIONS}  # type: ignore[misc]
    columns["largest / smallest layer"] = lambda row: _number(row.depth_ratio)
    columns["gain of the FFN"] = lambda row: _number(row.gains.get("ffn"))
    return _by_scores(results, "untrained", columns)


def _by_scores(results: Path, kind: str, columns: dict[str, Callable[[ModelRow], str]]) -> str:
    """A row for each score function, a cell for each figure with the values of all seeds."""
    found = read_results(results / "score_functions.json", ScoreFunctions)
    if found is None:
        return NOT_MEASURED
    rows = [row for row in found.rows if row.kind == kind]
    lines = [
        (f"`{scores}`", *(" / ".join(show(row) for row in rows if row.scores == scores) for show in columns.values()))
        for scores in dict.fromkeys(row.scores for row in rows)
    ]
    return f"{found.where()}\n{table(('', *columns), lines)}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if 100 <= abs(value) < 1e5:
        return f"{value:,.0f}"
    return f"{value:.2g}".replace("e+0", "e").replace("e-0", "e-")


TABLES: dict[str, Callable[[Path], str]] = {"untrained": untrained_table, "trained": trained_table}


def with_tables(page: str, results: Path = RESULTS) -> str:
    """`page` with every table between its marks made from the results file."""
    return filled(page, {name: partial(make, results) for name, make in TABLES.items()})
