"""The report as values for scripts, as CSV, and as files: where they go, and how they get there whole."""

import csv
import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from growctl.analysis.data_groups import DataDocument, data_document
from growctl.analysis.results import Results, results
from growctl.report.chart import Chart, FigureFormat
from growctl.report.sections import validation_warning
from growctl.report.setup import GrowthEffect, growths, software
from growctl.runs.runs import RunReport
from growctl.runs_dir import ReportPaths, RunPaths, RunsPaths
from growctl.text.documents import plain
from growctl.text.escaping import visible
from growctl.text.section import Section
from growctl.whole_file import replace_file


@dataclass(frozen=True, kw_only=True)
class ReportedRun(RunReport):
    """A ladder or a control, as its ledger records it, and what its directory adds."""

    growths: tuple[GrowthEffect, ...]
    software: dict[str, tuple[str, ...]]
    """The versions of each package, and of Python, with which the ladder was started; empty if they are not known."""
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


def report_document(runs: Sequence[RunReport], keys: Sequence[str] = ()) -> ReportDocument:
    """The report on `runs` for scripts."""
    reported = (
        ReportedRun(
            **{each.name: getattr(run, each.name) for each in fields(RunReport)},
            growths=growths(run),
            software=software(run),
            warnings=(warning,) if (warning := validation_warning(run)) else (),
        )
        for run in runs
    )
    return ReportDocument(tuple(reported), results(runs, keys), data_document(runs))


_NOT_IN_TABLE = ("name", "samples", "scores", "model_cost")


def stages_csv(runs: Sequence[RunReport]) -> str:
    """A line for each stage of each run, in the units of `report_document`; unknown values are empty.

    `base_flops`, the cost of the run's start checkpoint, is no part of `cumulative_flops`; 0 without one.
    """
    rows = []
    for run in runs:
        for part in run.parts:
            row = {"run": run.name, "schedule": run.schedule, "control": run.control, "stage": part.name}
            cells = {key: value for key, value in plain(part).items() if key not in _NOT_IN_TABLE}
            for cost in ("spent", "replayed"):
                cells = {f"{cost}_{key}": value for key, value in cells.pop(cost).items()} | cells
            rows.append(row | cells | {"base_flops": run.base.flops if run.base else 0.0})
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _for_spreadsheet(value) for key, value in row.items()} for row in rows)
    return buffer.getvalue()


def _for_spreadsheet(value: Any) -> Any:
    """Text that a spreadsheet would read as a formula gets an apostrophe; a block is JSON."""
    if isinstance(value, dict):
        return json.dumps(value) if value else None
    text = visible(" ".join(value) if isinstance(value, list) else value) if isinstance(value, list | str) else ""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text or value


_LONGEST_NAME = 100


def report_folder(runs: Sequence[RunReport], runs_dir: Path, are_all: bool) -> ReportPaths:
    """Where the report on `runs` goes: that on one ladder into its directory, that on several into a folder named for
    them. `are_all`: nobody named runs; the report on a set then keeps its folder when the set grows."""
    ladders = {run.name for run in runs if run.control is None}
    subjects = [run for run in runs if run.control is None or run.control_of not in ladders]
    if len(subjects) == 1:
        return RunPaths(subjects[0].directory).report
    [first, *others] = {run.group for run in subjects}
    name = "all" if others or not first else first
    name = name if are_all else "+".join(run.name for run in subjects)
    name = re.sub(r"[^\w.+=-]", "_", name).lstrip(".")
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return RunsPaths(runs_dir).report(name)


def report_title(runs: Sequence[RunReport]) -> str:
    """The title of the report on `runs`."""
    ladders = [run for run in runs if run.control is None] or runs
    names = list(dict.fromkeys(run.group or run.name for run in ladders))
    return f"The cost of growing: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


def write_report(
    runs: Sequence[RunReport], sections: Sequence[Section], paths: ReportPaths, figures: FigureFormat | None = None
) -> None:
    """Writes the page of `sections`, the table of `runs` and the chart of compute, each file whole.

    `figures`: the kind of files to write every chart as. All files are made before the first is written. Raises OSError
    if the folder cannot be written.
    """
    from growctl.report.compute import COMPUTE
    from growctl.report.drawing import figure_file
    from growctl.report.page import render_page

    charts = {part.key: part for each in sections for part in each.parts if isinstance(part, Chart)}
    files = {paths.table: stages_csv(runs).encode()}
    files |= {paths.chart: figure_file(charts[COMPUTE], "png")} if COMPUTE in charts else {}
    for key, chart in charts.items():
        if figures:
            files[paths.figure(key, figures)] = figure_file(chart, figures)
    files[paths.page] = render_page(report_title(runs), sections).encode()
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
