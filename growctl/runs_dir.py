"""Defines every file name in a runs directory, except those inside a stage (stages/stage_dir.py)."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from stages.stage_dir import MANIFEST_NAME, StagePaths, preparation_lock

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of runs. That of a control is longer."""

NAME_ALLOWED = "letters, digits, . _ - (a letter or digit first, 100 at most)"
"""The same in words."""

LOCK = ".lock"
"""Lock file in a directory that only one growctl at a time may change."""

CONTROL_INFIX = "-control-"
"""The text between the ladder's name and the control's kind in a control's name."""

IMPORTED = "its ledger was imported from elsewhere, so that it has no checkpoints here"
"""What status and report say of a run of which only the ledger is here."""

CONTROLS_LEFT_OUT = "controls were left out: --no-controls"
"""What status and report say of a run that leaves its controls out."""


class RunsPaths:
    """Paths in a runs directory: its runs, and the files that they share. No run's name starts with a dot."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bugs = directory / ".bugs"
        """The folder of the tracebacks of growctl's own errors."""
        self.datasets = directory / ".datasets"
        """Prepared datasets, shared by the runs."""
        self.datasets_log = self.datasets / "log.txt"
        """The log of dataset preparation."""

    def run(self, name: str) -> "RunPaths":
        """The paths of the run `name`."""
        return RunPaths(self.directory / name)

    def all_runs(self) -> list["RunPaths"]:
        """Everything here that is a run, by name."""
        found = map(RunPaths, sorted(self.directory.iterdir())) if self.directory.is_dir() else ()
        return [run for run in found if not run.directory.name.startswith(".") and run.exists()]

    def runs_with_ledgers(self) -> list["RunPaths"]:
        """The runs that have a ledger, by name."""
        return [RunPaths(path.parent) for path in sorted(self.directory.glob(f"*/{self.run('').ledger.name}"))]

    def tracker_store(self, tracker: str) -> Path:
        """Where the tracker of that name writes. The runs share it: a ladder and its controls are one experiment."""
        return self.directory / ".trackers" / tracker

    def report(self, name: str) -> "ReportPaths":
        """The files of a report on several ladders, which belongs to no run."""
        return ReportPaths(self.directory / ".reports" / name)

    def dataset_manifests(self) -> list[Path]:
        """The manifest files of the prepared datasets, by name."""
        return sorted(self.datasets.glob(f"*/{MANIFEST_NAME}"))

    def dataset_locks(self) -> dict[str, Path]:
        """Lock files of datasets, left by present and past preparations, by dataset name."""
        hidden, suffix = preparation_lock(Path("*")).name.split("*")
        locks = sorted(self.datasets.glob(f"{hidden}*{suffix}"))
        return {path.name.removeprefix(hidden).removesuffix(suffix): path for path in locks}


class RunPaths:
    """Paths in a run's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.schedule = directory / "schedule.yaml"
        """The resolved schedule, with every default written out."""
        self.ledger = directory / "ledger.db"
        """The cost ledger."""
        self.imported = directory / "imported.json"
        """Exists if `growctl ledger import` made the run: only its ledger is here. Says where it came from."""
        self.run_id = directory / ".run_id"
        """The file with the run's unique id."""
        self.no_controls = directory / ".no_controls"
        """Exists if the run leaves its controls out, as `--no-controls` said. It outlives the ledger."""
        self.run_set = directory / ".run_set.json"
        """The file that names the set of runs that a ladder belongs to; only if it belongs to one."""
        self.starts = directory / ".starts.jsonl"
        """A line for each start of a ladder: when, by what command, with what software."""
        self.lock = directory / LOCK
        """The lock file, held by the growctl that drives the run."""
        self.stages = directory / "stages"
        """The folder of the stages."""
        self.trackers_log = directory / "trackers" / "log.txt"
        """What the trackers print."""
        self.jobs_folder = directory / "slurm"
        """The folder with scripts, pickles and logs of the run's SLURM jobs."""
        self.jobs = self.jobs_folder / "jobs.json"
        """The file with the jobs last submitted: {name: id}."""

    def stage(self, index: int, name: str) -> StagePaths:
        """The paths of a stage."""
        return StagePaths(self.stages / f"{index}-{name}")

    def stages_found(self) -> Iterator[tuple[int, str, StagePaths]]:
        """Index, name and paths of every stage that has a directory, in order."""
        found = [(*path.name.partition("-")[::2], path) for path in self.stages.glob("*-*") if path.is_dir()]
        for index, name, path in sorted((int(index), name, path) for index, name, path in found if index.isdecimal()):
            yield index, name, StagePaths(path)

    @property
    def report(self) -> "ReportPaths":
        """The files of `growctl report`."""
        return ReportPaths(self.directory / "report")

    def tracker_memory(self, tracker: str) -> Path:
        """The file with the run's id in the tracker of that name, and what the tracker has of the run."""
        return self.trackers_log.with_name(f"{tracker}.json")

    def exists(self) -> bool:
        """Whether the directory holds a run, or parts of one."""
        return any(map(os.path.exists, (self.schedule, self.ledger, self.stages, self.lock)))

    def has_begun(self) -> bool:
        """Whether the run has started: it has a ledger or stages, not only a schedule."""
        return self.ledger.exists() or self.stages.exists()


class ReportPaths:
    """Paths of a report's files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.page = directory / "report.html"
        """The page, which needs no other file."""
        self.chart = directory / "compute-against-perplexity.png"
        """The chart of compute against perplexity, for slides and chats."""
        self.table = directory / "stages.csv"
        """The figures of every stage."""

    def figure(self, key: str, suffix: str) -> Path:
        """The chart of that key, as a file for papers."""
        return self.directory / "figures" / f"{key}.{suffix}"
