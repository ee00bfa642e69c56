"""Writes the report as files: a self-contained HTML page, its chart as PNG, its table as CSV."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from growctl.report import plots
from growctl.report.anomalies import anomalies
from growctl.report.documents import stages_csv
from growctl.report.read import RunReport
from growctl.report.samples import texts_by_prompt
from growctl.report.savings import verdicts
from growctl.report.scores import (
    HEADERS,
    HEADING,
    OTHER_HEADERS,
    OTHER_HEADING,
    PUBLISHED_NOTE,
    other_scores,
    zero_shot_rows,
)
from growctl.report.stages import COLUMNS, describe, remarks, stage_cells
from growctl.report.validation import validation_warnings
from growctl.runs_dir import ReportPaths
from growctl.text.escaping import visible
from growctl.text.html import page, replace_file

_COUNTED = (
    "<b>FLOPs</b> count the matrix products of training, computed from the model's structure. A multiply-add counts as "
    "2, and the backward pass costs twice the forward pass. Attention counts as the full T x T, although the causal "
    "mask needs only half. Element-wise operations are not counted.",
    "<b>Cumulative</b> cost includes every stage so far: the first size is not free. It also includes the checkpoint "
    "that a run started from, if its cost is known. FLOPs that were spent again after "
    "an interruption are shown separately, for ladders and controls alike, because they do not depend on the training "
    "method. Evaluations are recorded, but are not part of the cost.",
    "<b>Device time</b> is wall time times devices, from the start of each attempt. It includes start-up, evaluation, "
    "replayed steps and failed attempts.",
    "<b>Perplexity</b> is measured at the end of a stage, on the validation data, in fp32 from the master weights. The "
    "jump is the change in loss that the growth itself causes, in nats per token (a nat is a unit of the natural "
    "logarithm): 0 if it preserves the function.",
    "<b>Equal loss</b> compares the FLOPs at which the controls reach the ladder's final loss. These are read off the "
    "controls' lower convex envelope: the loss is linear in the logarithm of the FLOPs between two measured points, "
    "without extrapolation. Only finished controls count, and only if they were trained like the ladder: same data, "
    "seed, model, context, batch, precision, optimizer, learning rate and validation windows, each with its own decay.",
    "<b>The best size from scratch</b> trains every size of the ladder alone for the same FLOPs and puts all of them "
    "under one envelope. A small model trained longer may beat both the ladder and the largest size.",
    "<b>A release</b> is a branch from a stage's end on which the learning rate decays, so that its size is a finished "
    "model too. Its cumulative cost is that of the stages up to its own, and of the branch. The price of a family is "
    "the cost of all stages and branches, against the sum of what the loss of each finished model costs from scratch.",
    "<b>In the chart</b>, large marks are the ends of stages and runs, and diamonds those of releases. Lines and small "
    "dots are evaluations during training, before the learning rate has decayed: a full run with that budget would "
    "reach a lower loss.",
    "<b>Differences</b> smaller than those between seeds are not significant, and one seed is weak evidence.",
)


def write_report(runs: Sequence[RunReport], paths: ReportPaths) -> Path:
    """Writes the page, its chart and its table; returns the page's path."""
    paths.directory.mkdir(parents=True, exist_ok=True)
    replace_file(paths.chart, plots.png(runs))
    replace_file(paths.table, stages_csv(runs).encode())
    replace_file(paths.page, render_page(runs).encode())
    return paths.page


def render_page(runs: Sequence[RunReport]) -> str:
    """The HTML page. It has no scripts, loads nothing, and escapes every name."""
    ladders = [run.name for run in runs if run.control is None] or [run.name for run in runs]
    title = f"The cost of growing: {', '.join(ladders)}"
    said = "".join(
        f'<section class="verdict"><h3>{escape(heading)}</h3>'
        + "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
        + "</section>"
        for heading, sentences in verdicts(runs)
    )
    beside = ReportPaths(Path())
    return page(
        title,
        f"""<h1>{escape(title)}</h1>
{_warnings(runs)}
{said}
<h2>Compute against perplexity</h2>
<div role="img" aria-label="Cumulative training FLOPs against validation perplexity">{plots.svg(runs)}</div>
<h2>Stages</h2>
<div class="wide">{_table(runs)}</div>
{_scores(runs)}
{_anomalies(runs)}
{_samples(runs)}
<h2>How the figures are computed</h2>
<ul>{"".join(f"<li>{sentence}</li>" for sentence in _COUNTED)}</ul>
<footer>Written by growctl report. The figures are in {beside.table}, the chart in {beside.chart}.</footer>
""",
    )


def _warnings(runs: Sequence[RunReport]) -> str:
    return "".join(f"<p><b>Warning.</b> {escape(warning)}</p>" for warning in validation_warnings(runs))


def _table(runs: Sequence[RunReport]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    def body(run: RunReport) -> str:
        span = f'colspan="{len(COLUMNS)}"'
        head = f"<tr><th {span}>{escape(run.name)} <span>{escape(describe(run))}</span></th></tr>"
        note = "".join(f'<tr><td {span} class="note">{escape(text)}</td></tr>' for text in remarks(run))
        rows = [row([cell.text for cell in stage_cells(stage)], "td") for stage in run.parts]
        return f"<tbody>{head}{''.join(rows)}{note}</tbody>"

    return (
        f"<table><thead>{row([column.heading for column in COLUMNS], 'th')}</thead>{''.join(map(body, runs))}</table>"
    )


def _scores(runs: Sequence[RunReport]) -> str:
    """The zero-shot table, with its published rows in grey below a line, and all other scores."""

    def row(cells: Sequence[str], tag: str, style: str = "") -> str:
        return f"<tr{style}>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    def table(headers: Sequence[str], rows: Sequence[str]) -> str:
        return (
            f'<div class="wide"><table><thead>{row(headers, "th")}</thead><tbody>{"".join(rows)}</tbody></table></div>'
        )

    page = ""
    if found := zero_shot_rows(runs):
        rows = [row(each.cells, "td", ' class="published"' if each.is_published else "") for each in found]
        page += f'<h2>{HEADING}</h2>{table(HEADERS, rows)}<p class="note">{escape(PUBLISHED_NOTE)}</p>'
    if others := other_scores(runs):
        page += f"<h2>{OTHER_HEADING}</h2>{table(OTHER_HEADERS, [row(cells, 'td') for cells in others])}"
    return page


def _anomalies(runs: Sequence[RunReport]) -> str:
    """A section for each run with anomalies."""
    return "".join(
        f"<section><h3>{escape(run.name)}: training anomalies</h3>"
        + "".join(f"<p>{escape(sentence)}</p>" for sentence in anomalies(run))
        + "</section>"
        for run in runs
        if run.anomalies
    )


def _samples(runs: Sequence[RunReport]) -> str:
    """The texts that the models wrote: a section for each prompt, the stages of all runs below each other."""
    sections = "".join(
        f"<h3>{escape(texts.heading)}</h3>"
        + "".join(
            f"<figure><figcaption>{escape(writer)}</figcaption><pre>{escape(visible(text))}</pre></figure>"
            for writer, text in texts.by_writer
        )
        for texts in texts_by_prompt(runs)
    )
    return f"<h2>Text after each stage</h2>{sections}" if sections else ""
