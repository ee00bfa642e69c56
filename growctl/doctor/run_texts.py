"""The parts of a bug report about runs: tracebacks, schedules, manifests, ledgers, and ends of metrics and logs."""

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import yaml

from growctl.doctor.bundle import ALLOWED_VARIABLES, as_json
from growctl.ledger.file import TABLES
from growctl.redaction import REMOVED, is_harmless
from growctl.run.screen import WRITES
from growctl.runs.status import run_directories
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.text.formatting import INDENT
from growctl.text.suggestion import did_you_mean
from model.errors import UserError
from stages.stage_dir import StagePaths

TAIL_BYTES = 64 * 2**10
"""How much of a file's end a bundle holds: the last few hundred lines."""
MANIFEST_BYTES = 4 * 2**20
NUM_BUGS = 5
"""The newest tracebacks that a bundle holds."""
LAST_ROWS = 500
"""Rows of every table of the ledger."""


def texts_of_runs(runs_dir: Path, names: Sequence[str]) -> dict[str, str]:
    """The newest tracebacks in `runs_dir`, and the texts on the runs called `names`, by their names in the bundle.

    Raises UserError for an unknown run.
    """
    runs = named_runs(runs_dir, names)
    texts = bug_texts(runs_dir)
    for run in runs:
        texts |= run_texts(run)
    return texts


def bug_texts(runs_dir: Path) -> dict[str, str]:
    """The newest tracebacks of growctl's own errors."""
    found = sorted(RunsPaths(runs_dir).bugs.glob("*.txt"))  # by time, which their names start with
    return {f"bugs/{path.name}": tail(path) for path in found[-NUM_BUGS:]}


def named_runs(runs_dir: Path, names: Sequence[str]) -> list[RunPaths]:
    """The runs called `names`, also broken ones. Raises UserError for a name without a directory."""
    known = [path.name for path in run_directories(runs_dir)]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or (
                f"; it holds {', '.join(known[:5])}" if known else "; it holds no runs"
            )
            raise UserError(f"--run {name!r}: no such run in {runs_dir}{hint}")
    return [RunsPaths(runs_dir).run(name) for name in dict.fromkeys(names)]


def run_texts(run: RunPaths) -> dict[str, str]:
    """The texts on `run`, by their names in the bundle. A file that cannot be read becomes a text that says why."""
    return {f"runs/{run.directory.name}/{name}": text for name, text in _texts(run)}


def tail(path: Path, num_bytes: int = TAIL_BYTES) -> str:
    """The end of a text file, in whole lines if it was cut; the reason if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - num_bytes))
            data = file.read(num_bytes)
    except OSError as error:
        return f"could not be read: {error.strerror}\n"
    text = data.decode(errors="backslashreplace")
    return text if size <= num_bytes else f"[the last {num_bytes} of {size} bytes]\n{text.partition(chr(10))[2]}"


def without_samples(log: str) -> str:
    """What a run printed, without the texts that its models wrote and without its prompts.

    The lines of such a text are indented or empty. The end of a log may begin within one.
    """
    lines, hidden = [], log.startswith("[the last ")
    for number, line in enumerate(log.split("\n")):
        if hidden and (not line or line.startswith(INDENT)):
            continue
        hidden = line.endswith(WRITES) or (hidden and number == 0)
        lines.append(_PROMPT.sub(rf"\1{REMOVED}", line) + (f" {REMOVED}" if line.endswith(WRITES) else ""))
    return "\n".join(lines)


def environment_values(runs_dir: Path) -> set[str]:
    """What the runs in `runs_dir` set in the environment of their workers, but harmless values."""
    values: set[str] = set()
    for directory in run_directories(runs_dir):
        with suppress(OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError):
            environment = yaml.safe_load(RunPaths(directory).schedule.read_text())["launch"]["environment"]
            values |= {str(value) for name, value in environment.items() if name not in ALLOWED_VARIABLES}
    return {value for value in values if not is_harmless(value)}


def _texts(run: RunPaths) -> Iterator[tuple[str, str]]:
    if run.schedule.is_file():
        yield run.schedule.name, _schedule(run.schedule)
    if run.ledger.is_file():
        yield "ledger.json", as_json(_ledger(run.ledger))
    for log in sorted(run.jobs_folder.glob("*log.*")):
        yield f"{run.jobs_folder.name}/{log.name}", without_samples(tail(log))
    for _, _, stage in run.stages_found():
        yield from _stage_texts(stage, str(stage.directory.relative_to(run.directory)))


def _stage_texts(stage: StagePaths, name: str) -> Iterator[tuple[str, str]]:
    for path in (stage.metrics, stage.log):
        if path.is_file():
            yield f"{name}/{path.name}", tail(path)
    for path in stage.manifests():
        yield f"{name}/{path.relative_to(stage.directory)}", tail(path, MANIFEST_BYTES)
    if stage.release.directory.is_dir():
        yield from _stage_texts(stage.release, f"{name}/{stage.release.directory.name}")


def _schedule(path: Path) -> str:
    """A run's schedule without the values of its environment variables, and without its prompts."""
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        return f"left out, because it could not be read: {type(error).__name__}\n"
    return yaml.safe_dump(_without_private(data), sort_keys=False, allow_unicode=True)


def _without_private(data: Any) -> Any:
    """A schedule's data with the values of `environment` and the entries of `prompts` removed at any depth."""
    if isinstance(data, list):
        return [_without_private(entry) for entry in data]
    if not isinstance(data, dict):
        return data
    private = {
        key: dict.fromkeys(value, REMOVED) if isinstance(value, dict) else REMOVED
        for key, value in data.items()
        if key in ("environment", "prompts") and value
    }
    return {key: _without_private(value) for key, value in data.items()} | private


def _ledger(path: Path) -> dict[str, Any]:
    """The last rows of every table, oldest first, whether or not the ledger is intact."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)) as ledger:
            ledger.row_factory = sqlite3.Row
            return {
                table: [dict(row) for row in ledger.execute(_LAST.format(table=table), (LAST_ROWS,))][::-1]
                for table in TABLES
            }
    except sqlite3.Error as error:
        return {"could not be read": str(error)}


_PROMPT = re.compile(r"""(no text after )(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")

_LAST = "SELECT * FROM {table} ORDER BY entry DESC LIMIT ?"
