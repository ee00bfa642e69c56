"""The scores of a report's models: the paper's zero-shot table with its published rows, losses by position, others."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from growctl.ledger.entries import ScoreEntry, positions_of
from growctl.report.published import PublishedModel, load_overlay
from growctl.runs.runs import RunReport, StageReport
from growctl.text.formatting import short_count
from growctl.text.section import Cell, Column, Paragraph, Rows, Section, Table, figure

PUBLISHED_NOTE = (
    "Rows marked with † are published in the Tokenformer paper (arXiv 2410.23168). growctl did not measure them, and "
    "they were trained on other data: they are a scale, not a comparison. Left out: the paper's perplexity on the "
    "Pile, which growctl does not measure, and its OPT models, which were not trained on the Pile alone."
)
COLUMNS = {
    "LAMBADA ppl": ("lambada_perplexity", "lambada_openai", "perplexity"),
    "LAMBADA": ("lambada", "lambada_openai", "acc"),
    "HellaSwag": ("hellaswag", "hellaswag", "acc_norm"),
    "PIQA": ("piqa", "piqa", "acc"),
    "ARC-E": ("arc_easy", "arc_easy", "acc"),
    "ARC-C": ("arc_challenge", "arc_challenge", "acc_norm"),
    "WinoGrande": ("winogrande", "winogrande", "acc"),
}
"""The tasks of the paper's table: their names in the published figures, the task and the metric. The paper does not
name the metrics; these are those of Mamba's table of the same models: accuracy, normalised by the answers' length for
HellaSwag and ARC-Challenge."""


def section(runs: Sequence[RunReport]) -> Section | None:
    """The zero-shot table, with its published rows, and all other scores; None without scores."""
    parts: list[Paragraph | Table] = []
    measured = [_row(run, part) for run in runs for part in run.parts if _comparable(part.scores)]
    if measured:
        names = ("model", "size", *COLUMNS, "average")
        columns = tuple(Column(name, is_number=name != "model") for name in names)
        published = [_published_row(model) for model in load_overlay("paper-pile").rows if model.data == "the Pile"]
        groups = (Rows(tuple(measured)), Rows(tuple(published), "published"))
        parts += [Paragraph("Zero-shot scores", "heading"), Table("zero-shot", columns, groups, PUBLISHED_NOTE)]
    if others := other_scores(runs):
        texts = [Column(name, is_number=False) for name in ("model", "evaluated on", "scores")]
        parts.append(Paragraph("Other scores", "heading"))
        parts.append(Table.of("other-scores", texts, [list(map(Cell, row)) for row in others]))
    return Section("scores", "Scores", tuple(parts)) if parts else None


def _row(run: RunReport, part: StageReport) -> tuple[Cell, ...]:
    scores = _comparable(part.scores)
    values = [scores[name].value if name in scores else None for name in COLUMNS]
    perplexity, *accuracies = values
    shares = [value for value in accuracies if value is not None]
    return (
        Cell(f"{run.name}/{part.name}"),
        figure(part.num_parameters, short_count),
        figure(perplexity, "{:.2f}"),
        *(figure(None if value is None else 100 * value, "{:.1f}") for value in accuracies),
        figure(100 * statistics.fmean(shares) if len(shares) == len(accuracies) else None, "{:.1f}"),
    )


def _published_row(model: PublishedModel) -> tuple[Cell, ...]:
    perplexity, *accuracies = (model.scores.get(key) for key, _, _ in COLUMNS.values())
    cells = (figure(value, "{:.1f}") for value in (*accuracies, model.scores.get("average")))
    return (Cell(f"† {model.model}"), Cell(model.size or "-"), figure(perplexity, "{:.2f}"), *cells)


def _comparable(scores: Sequence[ScoreEntry]) -> dict[str, ScoreEntry]:
    """The newest score of each column that is of the harness's own task, on all examples, of the model as it is."""
    names = {(task, metric): name for name, (_, task, metric) in COLUMNS.items()}
    return {
        names[score.task, score.metric]: score
        for score in scores
        if (score.task, score.metric) in names and not score.num_shots and not _unusual(score.settings)
    }


def _unusual(settings: dict[str, object]) -> dict[str, object]:
    """The settings that make a score incomparable with the paper's."""
    usual = {"dtype": "float32", "context": settings.get("trained_length", settings.get("context")), "limit": None,
             "include_path": None, "tokenizer": None}  # fmt: skip
    return {name: settings[name] for name, value in usual.items() if settings.get(name, value) != value}


def other_scores(runs: Sequence[RunReport]) -> list[tuple[str, str, str]]:
    """The model, what it was evaluated on, and all metrics, for every evaluation that no other table shows whole."""
    rows: list[tuple[str, str, str]] = []
    for run in runs:
        for part in run.parts:
            shown = list(_comparable(part.scores).values())
            evaluations: dict[str, list[ScoreEntry]] = {}
            for score in part.scores:
                if score not in shown and not positions_of(score.metric):
                    evaluations.setdefault(score.evaluation, []).append(score)
            firsts = [scores[0] for scores in evaluations.values()]
            for scores in evaluations.values():
                metrics = ", ".join(f"{score.metric} {_value(score)}" for score in scores)
                rows.append((f"{run.name}/{part.name}", _label(scores[0], firsts), metrics))
    return rows


def _value(score: ScoreEntry) -> str:
    if score.value is None:
        return "-"
    return f"{score.value:.4g}" + ("" if score.standard_error is None else f" ± {score.standard_error:.2g}")


def _label(score: ScoreEntry, others: Sequence[ScoreEntry]) -> str:
    """The task or text of a score with whatever is not as usual, and every setting in which `others` of it differ."""
    facts, alike = _facts(score), [_facts(other) for other in others if _subject(other) == _subject(score)]
    wanted = {name for name in facts if any(other.get(name) != facts[name] for other in alike)} | {"shots"}
    wanted |= set(_unusual(score.settings)) | (
        {"context", "max_tokens", "stride"} if "text" in facts or score.task == "text" else set()
    )
    wanted |= {"rope_scaling", "trained_length"} if score.settings.get("rope_scaling", "none") != "none" else set()
    words = [f"{name.replace('_', ' ')} {facts[name]}" for name in facts if name in wanted]
    return ", ".join([_subject(score), *words])


def _facts(score: ScoreEntry) -> dict[str, str]:
    named = score.settings | {"version": score.version, "shots": score.num_shots}
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in sorted(named.items())
        if value
    }


def _subject(score: ScoreEntry) -> str:
    """The task, or the text that was evaluated."""
    settings, task = score.settings, score.task if score.filter == "none" else f"{score.task}, {score.filter}"
    texts = settings.get("text")
    text = f"{Path(texts[0]).name}{f' and {len(texts) - 1} more' if len(texts) > 1 else ''}" if texts else None
    if score.task == "text":
        of_dataset = f" of {Path(settings['dataset']).name}" if settings.get("dataset") else ""
        return text or f"{settings.get('split')} split{of_dataset}"
    return f"{task} of {text}" if text else task


def position_section(runs: Sequence[RunReport]) -> Section | None:
    """The loss by position in the window, where `growctl eval --contexts` has measured it; None if it never was."""
    groups = []
    for run in runs:
        for part in run.parts:
            by_evaluation: dict[str, list[tuple[tuple[int, int], ScoreEntry]]] = {}
            for score in part.scores:
                if (positions := positions_of(score.metric)) and score.value is not None:
                    by_evaluation.setdefault(score.evaluation, []).append((positions, score))
            firsts = [members[0][1] for members in by_evaluation.values()]
            for members in by_evaluation.values():
                cells = tuple(
                    (Cell(f"{first:,} to {last:,}", first), figure(score.value), figure(score.num_samples, "{:,}"))
                    for (first, last), score in sorted(members, key=lambda member: member[0])
                )
                groups.append(Rows(cells, f"{run.name}/{part.name}", _label(members[0][1], firsts)))
    columns = (Column("positions", is_number=False), Column("loss"), Column("tokens scored"))
    caption = (
        "Nats per token at these positions of the windows that the text was cut into. A model that uses what came "
        "before has a lower loss at later positions. Compare models only where context and text are the same."
    )
    table = Table("loss-by-position", columns, tuple(groups), caption)
    return Section("position", "Loss by position", (table,), in_terminal=False) if groups else None
