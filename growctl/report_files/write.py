"""Writes the files of a report: its page, its tables and its figures."""

import fcntl
import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from growctl.analysis.runs import RunReport
from growctl.report.chart import Chart
from growctl.report.charts import COMPUTE
from growctl.report.documents import stages_csv
from growctl.report.drawing import figure_file
from growctl.report.page import render_page
from growctl.report_files.extras import Extras
from growctl.report_files.folder import file_name, report_title
from growctl.runs_dir import ReportPaths
from growctl.text.section import Part, Section
from growctl.whole_file import TEMPORARY, replace_file


def write_report(
    runs: Sequence[RunReport], sections: Sequence[Section], paths: ReportPaths, extras: Extras | None = None
) -> Path:
    """Writes the page of `sections`, the table of `runs`, the chart of compute, and `extras`; returns the page's path.

    All files are made before the first is written, and one report at a time writes to a folder, so that what is there
    belongs together. Each file is replaced whole. Raises OSError if the folder cannot be written.
    """
    files = _files(runs, sections, paths, extras or Extras())
    for folder in {path.parent for path in files}:
        folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(paths.directory):
        for path, content in files.items():
            _remove_abandoned(path)
            replace_file(path, content)
    return paths.page


def _files(
    runs: Sequence[RunReport], sections: Sequence[Section], paths: ReportPaths, extras: Extras
) -> dict[Path, bytes]:
    """The content of each file, the page last."""
    files = {paths.table: stages_csv(runs).encode()}
    for part in _parts(sections):
        if isinstance(part, Chart):
            if part.key == COMPUTE:
                files[paths.chart] = figure_file(part, "png")
            for number, axis in enumerate(part.x_axes):
                key = f"{part.key}-by-{axis.key}" if number else part.key
                files |= {
                    paths.figure(key, kind): figure_file(part, kind, extras.style, axis) for kind in extras.figures
                }
    return files | {paths.page: render_page(report_title(runs), sections).encode()}


def _parts(sections: Sequence[Section]) -> Iterator[Part]:
    """The parts of all sections. Keys become file names, each its own: one that was there before gets a number."""
    seen: Counter[str] = Counter()
    for part in (part for section in sections for part in section.parts):
        if isinstance(part, Chart):
            key = file_name(part.key)
            seen[key] += 1
            number = seen[key]
            part = replace(part, key=key if number == 1 else f"{key}-{number}")
        yield part


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Waits until no other report writes to `folder`. A file system that cannot lock folders lets them all write."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    """Removes what killed reports left of `path`: only they write here, and this one is alone."""
    for left in path.parent.glob(TEMPORARY.format(name=glob.escape(path.name), pid="*")):
        left.unlink(missing_ok=True)
