"""The report as values for scripts, as CSV, and as files: where they go, and how they get there whole."""

import csv
import fcntl
import glob
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from growctl.analysis.results import Results, results
from growctl.report.chart import FIGURE_FORMATS, Chart, FigureFormat, FigureStyle
from growctl.report.published import Published
from growctl.report.sections import validation_warning
from growctl.report.setup import Environment, Growth, environments, growths
from growctl.report.training import StageTraining, stages_trained
from growctl.runs.data_groups import DataDocument, data_document
from growctl.runs.runs import RunReport
from growctl.runs_dir import ReportPaths, RunPaths, RunsPaths
from growctl.text.documents import plain
from growctl.text.escaping import visible
from growctl.text.section import Section
from growctl.whole_file import TEMPORARY, replace_file
from model.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ReportedRun(RunReport):
    """A ladder or a control, as its ledger records it and as it trained."""

    training: tuple[StageTraining, ...]
    """How its stages trained, a stage's release after it; without the curves, which metrics.jsonl has."""
    growths: tuple[Growth, ...]
    environments: tuple[Environment, ...]
    """What the run itself was trained on, in the order of the work."""
    warnings: tuple[str, ...]
    """Such as a validation set that is too small, one sentence or two each."""


@dataclass(frozen=True)
class ReportDocument:
    """What runs cost and how good their models are. Unknown and non-finite values are null."""

    runs: tuple[ReportedRun, ...]
    """Each ladder is followed by its controls."""
    results: Results
    """What they show together: verdicts, families, sweeps, ladders compared."""
    data: DataDocument
    """The datasets of the runs."""
    published: tuple[Published, ...]
    """The figures of --overlay, which nothing else in this document uses."""


def report_document(
    runs: Sequence[RunReport], keys: Sequence[str] = (), overlays: Sequence[Published] = ()
) -> ReportDocument:
    """The report on `runs` for scripts. `overlays`: published figures to list apart."""
    reported = (
        ReportedRun(
            **{each.name: getattr(run, each.name) for each in fields(RunReport)},
            training=stages_trained(run),
            growths=growths(run),
            environments=environments(run),
            warnings=(warning,) if (warning := validation_warning(run)) else (),
        )
        for run in runs
    )
    return ReportDocument(tuple(reported), results(runs, keys), data_document(runs), tuple(overlays))


_NOT_IN_TABLE = ("samples", "scores", "model_cost")


def stages_csv(runs: Sequence[RunReport]) -> str:
    """A line for each stage of each run, in the units of `report_document`; unknown values are empty.

    `base_flops`, the cost of the run's start checkpoint, is part of `cumulative_flops`, and 0 without one.
    """
    rows = []
    for run in runs:
        for part in run.parts:
            row = {key: value for key, value in plain(part).items() if key not in _NOT_IN_TABLE}
            head = {"run": run.name, "schedule": run.schedule, "control": run.control, "stage": row.pop("name")}
            rows.append(head | row | {"base_flops": run.base.flops if run.base else 0.0})
    buffer = io.StringIO()
    if rows:
        writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: for_spreadsheet(value) for key, value in row.items()} for row in rows)
    return buffer.getvalue()


def for_spreadsheet(value: Any) -> Any:
    """A cell of a CSV file. Text that a spreadsheet would read as a formula gets an apostrophe; a block is JSON."""
    if isinstance(value, dict):
        value = json.dumps(value) if value else None
    text = " ".join(value) if isinstance(value, list) else value
    if not isinstance(text, str):
        return text
    text = visible(text)  # a bare carriage return would start a new line
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


ALL = "all"
"""The report on all runs of a runs directory, if they are not all of one set."""
_LONGEST_NAME, _MOST_TITLES = 100, 3


def report_folder(runs: Sequence[RunReport], runs_dir: Path, are_all: bool) -> ReportPaths:
    """Where the report on `runs` goes: that on one ladder into its directory, that on several into a folder named for
    them. `are_all`: nobody named runs; the report on a set then keeps its folder when the set grows."""
    ladders = {run.name for run in runs if run.control is None}
    subjects = [run for run in runs if run.control is None or run.control_of not in ladders]
    if len(subjects) == 1:
        return RunPaths(subjects[0].directory).report
    sets = {run.group for run in subjects}
    name = (sets.pop() or ALL if len(sets) == 1 else ALL) if are_all else "+".join(run.name for run in subjects)
    return RunsPaths(runs_dir).report(file_name(name))


def report_title(runs: Sequence[RunReport]) -> str:
    """The title of the report on `runs`."""
    ladders = [run.group or run.name for run in runs if run.control is None] or [run.name for run in runs]
    names = list(dict.fromkeys(ladders))
    left_out = len(names) - _MOST_TITLES
    return "The cost of growing: " + ", ".join(names[:_MOST_TITLES]) + (f" and {left_out} more" if left_out > 0 else "")


def file_name(name: str) -> str:
    """`name` without characters that a folder should not have; a long one, or one that changes, ends in a hash."""
    simple = re.sub(r"[^\w.+=-]", "_", name, flags=re.ASCII).lstrip(".") or "_"
    if simple == name and len(simple) <= _LONGEST_NAME:
        return simple
    return f"{simple[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:8]}"


def read_figure_formats(text: str | None, is_styled: bool) -> tuple[FigureFormat, ...]:
    """The kinds of files that `--figures` asks for; png if only a style is given. Raises UserError for others."""
    names = [name.strip().lower() for name in (text or "").split(",") if name.strip()]
    allowed = f"allowed are {', '.join(FIGURE_FORMATS)}, separated by commas"
    if text is not None and not names:
        raise UserError(f"--figures {text!r}: the list is empty; {allowed}")
    for name in names:
        if name not in FIGURE_FORMATS:
            raise UserError(f"--figures {name!r}: {allowed}")
    return tuple(kind for kind in FIGURE_FORMATS if kind in names) or (("png",) if is_styled else ())


def write_report(
    runs: Sequence[RunReport],
    sections: Sequence[Section],
    paths: ReportPaths,
    figures: Sequence[FigureFormat] = (),
    style: FigureStyle = "screen",
    *,
    interactive: bool = False,
) -> None:
    """Writes the page of `sections`, the table of `runs` and the chart of compute.

    `figures`: the kinds of files to write every chart as, on each of its x axes. `interactive`: also a page of all
    charts by plotly.

    All files are made before the first is written, and one report at a time writes to a folder, so that what is there
    belongs together. Each file is replaced whole. Raises OSError if the folder cannot be written.
    """
    from growctl.report.compute import COMPUTE
    from growctl.report.drawing import figure_file, interactive_page
    from growctl.report.page import render_page

    title = report_title(runs)
    charts = {file_name(part.key): part for each in sections for part in each.parts if isinstance(part, Chart)}
    files = {paths.table: stages_csv(runs).encode()}
    files |= {paths.chart: figure_file(charts[COMPUTE], "png")} if COMPUTE in charts else {}
    for kind in figures:
        for key, chart in charts.items():
            for number, axis in enumerate(chart.x_axes):
                path = paths.figure(f"{key}-by-{axis.key}" if number else key, kind)
                files[path] = figure_file(chart, kind, style, axis)
    files |= {paths.interactive: interactive_page(title, list(charts.values())).encode()} if interactive else {}
    files[paths.page] = render_page(title, sections).encode()
    for folder in {path.parent for path in files}:
        folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(paths):
        for path, content in files.items():
            for left in path.parent.glob(TEMPORARY.format(name=glob.escape(path.name), pid="*")):
                left.unlink(missing_ok=True)  # of a killed report: only they write here, and this one is alone
            replace_file(path, content)


@contextmanager
def _alone_in(paths: ReportPaths) -> Iterator[None]:
    """Waits until no other report writes to a folder. A file system that cannot lock folders lets them all write."""
    descriptor = os.open(paths.directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
