"""The scores of a report's models: in the columns of the paper's zero-shot table, and all others."""

import statistics
from collections.abc import Mapping, Sequence

from growctl.ledger.entries import ScoreEntry
from growctl.runs.runs import RunReport, StageReport
from growctl.text.formatting import short_count
from growctl.text.section import Cell, Column, Paragraph, Section, Table, figure
from stages.evaluate.results import positions_of

COLUMNS = {
    "LAMBADA ppl": ("lambada_openai", "perplexity"),
    "LAMBADA": ("lambada_openai", "acc"),
    "HellaSwag": ("hellaswag", "acc_norm"),
    "PIQA": ("piqa", "acc"),
    "ARC-E": ("arc_easy", "acc"),
    "ARC-C": ("arc_challenge", "acc_norm"),
    "WinoGrande": ("winogrande", "acc"),
}
"""The tasks and metrics of the table "Zero-shot Evaluations" in the Tokenformer paper (arXiv 2410.23168). The paper
does not name the metrics; these are those of Mamba's table of the same models: accuracy, normalised by the answers'
length for HellaSwag and ARC-Challenge."""


def section(runs: Sequence[RunReport]) -> Section | None:
    """The zero-shot table and all other scores; None without scores."""
    parts: list[Paragraph | Table] = []
    measured = [_row(run, part) for run in runs for part in run.parts if _comparable(part.scores)]
    if measured:
        columns = (Column("model", is_number=False), *map(Column, ("size", *COLUMNS, "average")))
        parts += [Paragraph("Zero-shot scores", "heading"), Table.of("zero-shot", columns, measured)]
    if others := other_scores(runs):
        texts = [Column(name, is_number=False) for name in ("model", "evaluated on", "scores")]
        parts.append(Paragraph("Other scores", "heading"))
        parts.append(Table.of("other-scores", texts, [list(map(Cell, row)) for row in others]))
    return Section("scores", "Scores", tuple(parts)) if parts else None


def _row(run: RunReport, part: StageReport) -> tuple[Cell, ...]:
    scores = _comparable(part.scores)
    perplexity, *shares = (scores[name].value if name in scores else None for name in COLUMNS)
    accuracies = [None if share is None else 100 * share for share in shares]
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    average = statistics.fmean(known) if len(known) == len(accuracies) else None
    model, size = Cell(f"{run.name}/{part.name}"), Cell(short_count(part.num_parameters))
    return model, size, figure(perplexity, "{:.2f}"), *(figure(each, "{:.1f}") for each in (*accuracies, average))


_USUAL = {"dtype": "float32", "limit": None, "include_path": None, "tokenizer": None, "rope_scaling": "none"}
"""The settings of scores that compare with the paper's; the context is the one that the model trained at."""


def _comparable(scores: Sequence[ScoreEntry]) -> dict[str, ScoreEntry]:
    """The newest score of each column that is of the harness's own task, on all examples, of the model as it is."""
    names = {task_and_metric: name for name, task_and_metric in COLUMNS.items()}
    return {
        names[score.task, score.metric]: score
        for score in scores
        if (score.task, score.metric) in names and not score.num_shots and not _unusual(score.settings)
    }


def _unusual(settings: Mapping[str, object]) -> dict[str, object]:
    usual = _USUAL | {"context": settings.get("trained_length", settings.get("context"))}
    return {name: settings[name] for name, value in usual.items() if settings.get(name, value) != value}


def other_scores(runs: Sequence[RunReport]) -> list[tuple[str, str, str]]:
    """The model, what it was evaluated on, and all metrics, for every evaluation that the zero-shot table lacks.

    Losses by position are left out: `growctl eval` shows them, and the JSON report has them.
    """
    rows = []
    for run in runs:
        for part in run.parts:
            shown = list(_comparable(part.scores).values())
            by_evaluation: dict[str, list[ScoreEntry]] = {}
            for score in part.scores:
                if score not in shown and not positions_of(score.metric):
                    by_evaluation.setdefault(score.evaluation, []).append(score)
            for scores in by_evaluation.values():
                metrics = ", ".join(f"{score.metric} {_value(score)}" for score in scores)
                rows.append((f"{run.name}/{part.name}", _label(scores[0]), metrics))
    return rows


def _value(score: ScoreEntry) -> str:
    if score.value is None:
        return "-"
    return f"{score.value:.4g}" + ("" if score.standard_error is None else f" ± {score.standard_error:.2g}")


def _label(score: ScoreEntry) -> str:
    """The task or text of a score, and every setting that is not as usual."""
    settings = {name: value for name, value in score.settings.items() if value and value != _USUAL.get(name)}
    settings.pop("lm_eval", None)
    if settings.get("context") == settings.get("trained_length"):
        settings = {name: value for name, value in settings.items() if name not in ("context", "trained_length")}
    task = [] if score.task == "text" else [score.task]
    task += [] if score.filter == "none" else [score.filter]
    texts = settings.pop("text", [])
    words = [*task, *map(str, texts if isinstance(texts, list) else [texts])]
    words += [f"{score.num_shots} shots"] if score.num_shots else []
    return ", ".join([*words, *(f"{name.replace('_', ' ')} {value}" for name, value in sorted(settings.items()))])
