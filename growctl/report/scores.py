"""The scores of a report's models: the paper's zero-shot table with its published rows, and all other scores."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from growctl.analysis.runs import RunReport, StageReport
from growctl.ledger.ledger import ScoreEntry
from growctl.ledger.scores import positions_of
from growctl.published.overlays import Row, shipped
from growctl.text.formatting import short_count
from growctl.text.section import Cell, Column, Paragraph, Rows, Section, Table
from stages.counted import counted

HEADING = "Zero-shot scores"

PUBLISHED_NOTE = (
    "Rows marked with † are published in the Tokenformer paper (arXiv 2410.23168). growctl did not measure them, and "
    "they were trained on other data: they are a scale, not a comparison. Left out: the paper's perplexity on the "
    "Pile, which growctl does not measure, and its OPT models, which were not trained on the Pile alone."
)

PUBLISHED = "paper-pile"
"""The name of the published figures (growctl/published/tables)."""

_DTYPE = "float32"
"""The precision that needs no mention."""

OTHER_HEADING = "Other scores"
OTHER_HEADERS = ("model", "evaluated on", "scores")


class TaskColumn(NamedTuple):
    """One column of the zero-shot table."""

    name: str
    published: str
    """Its name in the published figures."""
    task: str
    metric: str
    percent: bool = True


COLUMNS = (
    TaskColumn("LAMBADA ppl", "lambada_perplexity", "lambada_openai", "perplexity", percent=False),
    TaskColumn("LAMBADA", "lambada", "lambada_openai", "acc"),
    TaskColumn("HellaSwag", "hellaswag", "hellaswag", "acc_norm"),
    TaskColumn("PIQA", "piqa", "piqa", "acc"),
    TaskColumn("ARC-E", "arc_easy", "arc_easy", "acc"),
    TaskColumn("ARC-C", "arc_challenge", "arc_challenge", "acc_norm"),
    TaskColumn("WinoGrande", "winogrande", "winogrande", "acc"),
)
"""The tasks of the paper's table. It does not name the metrics; these are those of Mamba's table of the same models:
accuracy, normalised by the answers' length for HellaSwag and ARC-Challenge."""

HEADERS = ("model", "size", *(column.name for column in COLUMNS), "average")


class ScoreRow(NamedTuple):
    """A row of the zero-shot table, as text for each of HEADERS."""

    cells: tuple[str, ...]
    is_published: bool


def zero_shot_rows(runs: Sequence[RunReport]) -> list[ScoreRow]:
    """A row for each model with a comparable score of the table's tasks, and then the published rows.

    Empty if no model has one.
    """
    own = [_row(run, part) for run in runs for part in run.parts if _found(part.scores)]
    if not own:
        return []
    return [*own, *(_published_row(row) for row in shipped(PUBLISHED).rows if row.data is None)]


def other_scores(runs: Sequence[RunReport]) -> list[tuple[str, str, str]]:
    """The model, what it was evaluated on, and all metrics, for every evaluation that the table does not show whole.

    Without losses by position, which growctl/report_training/by_position.py shows.
    """
    rows: list[tuple[str, str, str]] = []
    for run in runs:
        for part in run.parts:
            shown = _found(part.scores).values()
            evaluations: dict[str, list[ScoreEntry]] = {}
            for score in part.scores:
                if score not in shown and not positions_of(score.metric):
                    evaluations.setdefault(score.evaluation, []).append(score)
            labels = _labels([scores[0] for scores in evaluations.values()])
            for label, scores in zip(labels, evaluations.values(), strict=True):
                metrics = ", ".join(f"{score.metric} {_value(score)}" for score in scores)
                rows.append((f"{run.name}/{part.name}", label, metrics))
    return rows


def section(runs: Sequence[RunReport]) -> Section | None:
    """The zero-shot table, with its published rows, and all other scores; None without scores."""
    parts: list[Paragraph | Table] = []
    if found := zero_shot_rows(runs):
        columns = [Column(header, is_number=header not in HEADERS[:1]) for header in HEADERS]
        own, published = (
            tuple(tuple(map(_number, row.cells)) for row in found if row.is_published is wanted)
            for wanted in (False, True)
        )
        groups = (Rows(own), Rows(published, "published"))
        parts += [Paragraph(HEADING, "heading"), Table("zero-shot", tuple(columns), groups, PUBLISHED_NOTE)]
    if others := other_scores(runs):
        texts = [Column(header, is_number=False) for header in OTHER_HEADERS]
        parts += [Paragraph(OTHER_HEADING, "heading")]
        parts += [Table.of("other-scores", texts, [list(map(Cell, row)) for row in others])]
    return Section("scores", "Scores", tuple(parts)) if parts else None


def _number(text: str) -> Cell:
    """A cell with the figure that it shows, if it shows one."""
    try:
        return Cell(text, float(text))
    except ValueError:
        return Cell(text)


def _row(run: RunReport, part: StageReport) -> ScoreRow:
    found = _found(part.scores)
    values = [found.get(column) for column in COLUMNS]
    cells = [_cell(column, score) for column, score in zip(COLUMNS, values, strict=True)]
    accuracies = [score.value for score in values[1:] if score and score.value is not None]
    average = f"{100 * statistics.fmean(accuracies):.1f}" if len(accuracies) == len(COLUMNS) - 1 else "-"
    return ScoreRow((f"{run.name}/{part.name}", short_count(part.num_parameters), *cells, average), False)


def _published_row(row: Row) -> ScoreRow:
    values = [getattr(row, column.published) for column in COLUMNS]
    cells = [
        "-" if value is None else f"{value:.{1 if column.percent else 2}f}"
        for column, value in zip(COLUMNS, values, strict=True)
    ]
    return ScoreRow((f"† {row.model}", row.size or "-", *cells, f"{row.average:.1f}" if row.average else "-"), True)


def _found(scores: Sequence[ScoreEntry]) -> dict[TaskColumn, ScoreEntry]:
    """The newest comparable score of each column."""
    return {
        column: score
        for score in scores
        if _is_comparable(score)
        for column in COLUMNS
        if (score.task, score.metric) == (column.task, column.metric)
    }


def _is_comparable(score: ScoreEntry) -> bool:
    """Whether a score is of the harness's own task, on all examples without solved ones, and of the model as it is."""
    settings = score.settings
    changed = any(settings.get(name) is not None for name in ("limit", "include_path", "tokenizer"))
    context_as_trained = settings.get("context") == settings.get("trained_length", settings.get("context"))
    return not changed and not score.num_shots and context_as_trained and settings.get("dtype", _DTYPE) == _DTYPE


def _cell(column: TaskColumn, score: ScoreEntry | None) -> str:
    if score is None or score.value is None:
        return "-"
    return f"{100 * score.value:.1f}" if column.percent else f"{score.value:.2f}"


def _labels(evaluations: Sequence[ScoreEntry]) -> list[str]:
    """What each of the evaluations was done on. Where that is the same in words, also every setting that differs."""
    said = [_what(score) for score in evaluations]
    labels = []
    for score, what in zip(evaluations, said, strict=True):
        alike = [_facts(other) for other, words in zip(evaluations, said, strict=True) if words == what]
        own = _facts(score)
        differing = [name for name in sorted(own) if any(other.get(name) != own[name] for other in alike)]
        labels.append(", ".join([what, *(f"{name} {own[name]}" for name in differing)]))
    return labels


def _facts(score: ScoreEntry) -> dict[str, str]:
    """Everything that sets an evaluation apart, as text."""
    named = score.settings | {"version": score.version, "shots": score.num_shots}
    return {
        name.replace("_", " "): ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in named.items()
    }


def _what(score: ScoreEntry) -> str:
    """The task or text of a score, with whatever is not as usual."""
    settings = score.settings
    task = score.task if score.filter == "none" else f"{score.task}, {score.filter}"
    texts = settings.get("text")
    text = f"{Path(texts[0]).name}{f' and {len(texts) - 1} more' if len(texts) > 1 else ''}" if texts else None
    if score.task == "text":
        dataset = f" of {Path(settings['dataset']).name}" if settings.get("dataset") else ""
        parts = [text or f"{settings.get('split')} split{dataset}"]
        parts += [f"{settings['sequences']} windows"] if settings.get("sequences") else []
        parts.append(f"context {settings['context']}")
        if settings.get("stride") != settings.get("context"):
            parts.append(f"stride {settings['stride']}")
    elif text:
        parts = [f"{task} of {text}"]
        parts += [f"first {counted(settings['max_tokens'], 'token')}"] if settings.get("max_tokens") else []
        if settings.get("rope_scaling", "none") != "none":
            parts.append(f"{settings['rope_scaling']} from {settings['trained_length']}")
    else:
        parts = [task]
        if settings.get("context") != settings.get("trained_length", settings.get("context")):
            parts.append(f"context {settings['context']}")
    parts += [f"tasks of {Path(settings['include_path']).name}"] if settings.get("include_path") else []
    parts += [f"first {settings['limit']}"] if settings.get("limit") else []
    parts += [counted(score.num_shots, "shot")] if score.num_shots else []
    parts += [str(settings["dtype"])] if settings.get("dtype", _DTYPE) != _DTYPE else []
    parts += [f"tokenizer {settings['tokenizer'][:8]}"] if settings.get("tokenizer") else []
    return ", ".join(parts)


def _value(score: ScoreEntry) -> str:
    if score.value is None:
        return "-"
    return f"{score.value:.4g}" + ("" if score.standard_error is None else f" ± {score.standard_error:.2g}")
