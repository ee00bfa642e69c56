"""What runs and datasets occupy on disk. A file with several names counts once."""

import os
import stat
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from growctl.ledger.ledger import Ledger, LedgerError
from growctl.runs.directory import own_schedule
from growctl.runs.status import RunStatus, find_status
from growctl.runs.status_sections import run_columns
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.sources import mixtures_in, prepared_data
from growctl.text.formatting import byte_count
from growctl.text.section import Cell, Column, Paragraph, Part, Section, Table, figure, rows_of
from model.errors import UserError
from stages.corpus.prepared import prepared_datasets
from stages.spec import TrainSpec
from stages.stage_dir import MIXTURE_PREFIX


class DiskUse(NamedTuple):
    """What some directories occupy."""

    bytes: int
    """The size of their files."""
    freed_bytes: int
    """What removing the directories would free: the size of the files that have no name elsewhere."""

    @classmethod
    def of(cls, *directories: Path) -> "DiskUse":
        """The use of `directories`, which must not contain each other. Skips links, and what cannot be read."""
        names: Counter[tuple[int, int, int, int]] = Counter()
        for path in (Path(folder, name) for top in directories for folder, _, found in os.walk(top) for name in found):
            with suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    names[status.st_dev, status.st_ino, status.st_size, status.st_nlink] += 1
        sizes = [(size, number >= links) for (_, _, size, links), number in names.items()]
        return cls(sum(size for size, _ in sizes), sum(size for size, is_freed in sizes if is_freed))


@dataclass(frozen=True)
class DatasetUse:
    """Which runs use which datasets."""

    runs: dict[str, list[str]]
    """The names of the runs that use a dataset, by the dataset's name."""
    unknown: list[str]
    """Runs that have started and whose files no longer say on which dataset."""

    @classmethod
    def of(cls, runs_dir: Path) -> "DatasetUse":
        """How the runs in `runs_dir` use datasets. A mixture uses those that it is made of."""
        sources = {
            path.name: {Path(entry.directory).name for entry in manifest.sources}
            for path, manifest in mixtures_in(RunsPaths(runs_dir).datasets)
        }
        use = cls(defaultdict(list), [])
        for run in RunsPaths(runs_dir).all_runs():
            names = _datasets_of(run)
            if names is None or any(name.startswith(MIXTURE_PREFIX) and name not in sources for name in names):
                use.unknown.append(run.directory.name)
            for name in set().union(names or (), *(sources.get(name, ()) for name in names or ())):
                use.runs[name].append(run.directory.name)
        return use


def _datasets_of(run: RunPaths) -> set[str] | None:
    """The names of the datasets that a run uses: as recorded, or else as its schedule asks. None if unknown."""
    names = set()
    try:
        with suppress(LedgerError), Ledger(run.ledger, read_only=True) as ledger:
            names.add(Path(ledger.run().dataset).name)
        for _, _, stage in run.stages_found():
            with suppress(FileNotFoundError, ValueError):
                names.add(Path(TrainSpec.model_validate_json(stage.spec.read_bytes()).dataset).name)
        if names:
            return names
        data, datasets_dir = own_schedule(run.schedule).data, RunsPaths(run.directory.parent).datasets
    except (UserError, OSError):
        return None
    prepared = [prepared_data(data, datasets_dir), *(prepared_datasets(spec, datasets_dir) for spec in data.specs)]
    names = {path.name for path, _ in chain.from_iterable(prepared)}  # of a mixture, perhaps only some sources
    return names if names or not run.has_begun() else None


@dataclass(frozen=True, kw_only=True)
class StoredRun(RunStatus):
    """A run: its state, and what it occupies on disk."""

    bytes: int
    """The size of its files. A file with several names counts once."""
    freed_bytes: int
    """What removing the run would free: the size of the files that nothing else shares."""


@dataclass(frozen=True)
class StoredDataset:
    """A prepared dataset."""

    name: str
    bytes: int
    used_by: list[str]
    """The runs that use it."""


@dataclass(frozen=True)
class Storage:
    """Runs and datasets of a runs directory."""

    runs_dir: Path
    runs: tuple[StoredRun, ...]
    datasets: tuple[StoredDataset, ...]
    bytes: int
    """The size of all of them together. A file that several share counts once."""


def existing_runs(runs_dir: Path, names: Sequence[str] = ()) -> list[RunStatus]:
    """The runs called `names`, each ladder followed by its controls, or all runs.

    Raises UserError for an unknown name, and if there is no `runs_dir`.
    """
    if not runs_dir.is_dir():
        raise UserError(f"{runs_dir} is not a directory; give the directory that holds the runs with --runs-dir")
    return [run for run in find_status(runs_dir, names) if Path(run.directory).exists()]


def measure_storage(runs_dir: Path, names: Sequence[str] = ()) -> Storage:
    """Measures the runs called `names`, with the controls of ladders, or all runs and datasets.

    Raises UserError for an unknown name, and if there is no `runs_dir`.
    """
    runs = existing_runs(runs_dir, names)
    datasets = [] if names else [manifest.parent for manifest in RunsPaths(runs_dir).dataset_manifests()]
    datasets = [path for path in datasets if not path.name.startswith(".")]
    users = DatasetUse.of(runs_dir).runs if datasets else {}
    return Storage(
        runs_dir,
        runs=tuple(StoredRun(**vars(run), **DiskUse.of(Path(run.directory))._asdict()) for run in runs),
        datasets=tuple(StoredDataset(p.name, DiskUse.of(p).bytes, users.get(p.name, [])) for p in datasets),
        bytes=DiskUse.of(*(Path(run.directory) for run in runs), *datasets).bytes,
    )


def section(storage: Storage) -> Section:
    """A line for each run, with controls below their ladder, and one for each dataset."""
    if not storage.runs and not storage.datasets:
        return Section("storage", "", (Paragraph(f"there are no runs in {storage.runs_dir} yet"),))
    columns = [
        *run_columns(storage.runs, {run.name for run in storage.runs}),
        Column("size", cell=lambda run: figure(run.bytes, byte_count)),
        Column("frees", cell=lambda run: figure(run.freed_bytes, byte_count)),
    ]
    caption = "frees: what removing the run would free"
    parts: list[Part] = [Table.of("runs", columns, rows_of(columns, storage.runs), caption)]
    parts += [Paragraph(f"{run.name}: {note}", "warning") for run in storage.runs for note in run.notes]
    if storage.datasets:
        columns = [
            Column("dataset", is_number=False, cell=lambda dataset: Cell(dataset.name)),
            Column("size", cell=lambda dataset: figure(dataset.bytes, byte_count)),
            Column("used by", is_number=False, cell=lambda dataset: Cell(", ".join(dataset.used_by) or "no run")),
        ]
        table = Table.of("datasets", columns, rows_of(columns, storage.datasets))
        parts += [Paragraph("prepared datasets", "heading"), table]
    parts.append(Paragraph(f"in all: {byte_count(storage.bytes)}; files that several share count once", "strong"))
    return Section("storage", "", tuple(parts))
