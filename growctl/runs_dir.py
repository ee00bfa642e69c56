"""The only owner of every file name under a runs directory. What is inside a stage: stages/stage_dir.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stages.stage_dir import MANIFEST_NAME, StagePaths, preparation_lock

LOCK = ".lock"
"""In a directory that one growctl at a time may change."""

LOCK_STAND_IN = ".lock.held"
"""Beside it where the file system has no locks."""


@dataclass(frozen=True)
class RunsPaths:
    """A runs directory: its runs, and what they share. No run's name starts with a dot."""

    directory: Path

    def run(self, name: str) -> "RunPaths":
        """Where a run keeps everything."""
        return RunPaths(self.directory / name)

    def runs_with_ledgers(self) -> list["RunPaths"]:
        """The runs that have a ledger, by name."""
        return [RunPaths(path.parent) for path in sorted(self.directory.glob(f"*/{self.run('').ledger.name}"))]

    @property
    def keys(self) -> Path:
        """What signs engine checkpoints (stages/checkpoint/signatures.py)."""
        return self.directory / ".keys"

    @property
    def datasets(self) -> Path:
        """Prepared datasets, shared by the runs."""
        return self.directory / ".datasets"

    @property
    def datasets_log(self) -> Path:
        """What preparing datasets prints."""
        return self.datasets / "log.txt"

    def dataset_manifests(self) -> list[Path]:
        """The manifest files of the prepared datasets, by name."""
        return sorted(self.datasets.glob(f"*/{MANIFEST_NAME}"))

    def dataset_locks(self) -> dict[str, Path]:
        """The lock files of datasets that are or were being prepared, by the dataset's name."""
        hidden, suffix = preparation_lock(Path("*")).name.split("*")
        locks = sorted(self.datasets.glob(f"{hidden}*{suffix}"))
        return {path.name.removeprefix(hidden).removesuffix(suffix): path for path in locks}


@dataclass(frozen=True)
class RunPaths:
    """Where a run keeps everything."""

    directory: Path

    @property
    def schedule(self) -> Path:
        """The schedule as resolved, with every default written out."""
        return self.directory / "schedule.yaml"

    @property
    def ledger(self) -> Path:
        """The cost record."""
        return self.directory / "ledger.db"

    @property
    def run_id(self) -> Path:
        """What tells the run from every other."""
        return self.directory / ".run_id"

    @property
    def lock(self) -> Path:
        """Held by the growctl that is at the run."""
        return self.directory / LOCK

    @property
    def stages(self) -> Path:
        """The folder of the stages."""
        return self.directory / "stages"

    def stage(self, index: int, name: str) -> StagePaths:
        """Where a stage keeps everything."""
        return StagePaths(self.stages / f"{index}-{name}")

    def stages_found(self) -> Iterator[tuple[int, str, StagePaths]]:
        """Index, name and paths of every stage that has a directory, in order."""
        found = [(*path.name.partition("-")[::2], path) for path in self.stages.glob("*-*") if path.is_dir()]
        for index, name, path in sorted((int(index), name, path) for index, name, path in found if index.isdecimal()):
            yield index, name, StagePaths(path)

    @property
    def report(self) -> Path:
        """Where `growctl report` writes."""
        return self.directory / "report"

    @property
    def jobs_folder(self) -> Path:
        """Scripts, pickles and logs of the run's jobs in a cluster's queue."""
        return self.directory / "slurm"

    @property
    def jobs(self) -> Path:
        """The jobs that were last submitted: {name: id}."""
        return self.jobs_folder / "jobs.json"

    def has_begun(self) -> bool:
        """Whether a run has left more here than its schedule."""
        return self.ledger.exists() or self.stages.exists()
