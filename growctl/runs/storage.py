"""What runs and datasets occupy on disk, what runs cost, and what they share. A file with several names counts once."""

import json
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from growctl.ledger.ledger import Ledger, LedgerError, SplitCost
from growctl.runs.directory import own_schedule
from growctl.runs.status import RunState, RunStatus, find_status, run_directories
from growctl.runs.status_sections import run_columns
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.sources import mixtures_in, prepared_data
from growctl.text.formatting import byte_count, duration, scientific
from growctl.text.section import Cell, Column, Paragraph, Part, Section, Table, figure, rows_of
from model.errors import UserError
from stages.corpus.prepared import prepared_datasets
from stages.counted import counted
from stages.stage_dir import MIXTURE_PREFIX


class DiskFile(NamedTuple):
    """A file, whichever of its names it was found under."""

    device: int
    inode: int
    bytes: int
    links: int
    """How many names it has in the whole file system."""


class DiskUse(Counter[DiskFile]):
    """The files under some directories, with the number of their names there. Sizes are those of the contents."""

    @classmethod
    def of(cls, *paths: Path) -> "DiskUse":
        """The files at and below `paths`, which must not contain each other. Skips links, and what cannot be read."""
        use = cls()
        for top in paths:
            below = [Path(folder, name) for folder, _, names in os.walk(top) for name in names]
            for path in below if top.is_dir() else [top]:
                with suppress(OSError):
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode):
                        use[DiskFile(status.st_dev, status.st_ino, status.st_size, status.st_nlink)] += 1
        return use

    @classmethod
    def union(cls, uses: Iterable["DiskUse"]) -> "DiskUse":
        """The files of all `uses`, which must be of directories that do not contain each other."""
        joined = cls()
        for use in uses:
            joined.update(use)
        return joined

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self)

    @property
    def freed_bytes(self) -> int:
        """What removing the directories would free: the size of the files that have no name elsewhere."""
        return sum(file.bytes for file, names in self.items() if names >= file.links)


@dataclass(frozen=True)
class DatasetUse:
    """Which runs use which datasets."""

    runs: dict[str, tuple[str, ...]]
    """The names of the runs that use a dataset, by the dataset's name."""
    unknown: tuple[str, ...] = ()
    """Runs that have started and whose files no longer say on which dataset."""

    @classmethod
    def of(cls, runs_dir: Path) -> "DatasetUse":
        """How the runs in `runs_dir` use datasets. A mixture uses those that it is made of."""
        sources = {
            path.name: {Path(entry.directory).name for entry in manifest.sources}
            for path, manifest in mixtures_in(RunsPaths(runs_dir).datasets)
        }
        runs: dict[str, tuple[str, ...]] = {}
        unknown = []
        for directory in run_directories(runs_dir):
            names = _datasets_of(directory)
            if names is None or any(name.startswith(MIXTURE_PREFIX) and name not in sources for name in names):
                unknown.append(directory.name)
            for name in set().union(names or (), *(sources.get(name, ()) for name in names or ())):
                runs[name] = (*runs.get(name, ()), directory.name)
        return cls(runs, tuple(unknown))


def _datasets_of(directory: Path) -> set[str] | None:
    """The names of the datasets that a run uses: as recorded, or else as its schedule asks. None if unknown."""
    run = RunPaths(directory)
    names = set()
    try:
        with suppress(LedgerError), Ledger.open(run.ledger, read_only=True) as ledger:
            names.add(Path(ledger.run().dataset).name)
        for _, _, stage in run.stages_found():
            with suppress(FileNotFoundError, ValueError, LookupError, TypeError, RecursionError):
                names.add(Path(json.loads(stage.spec.read_bytes())["dataset"]).name)
        if names:
            return names
        data, datasets_dir = own_schedule(run.schedule).data, RunsPaths(directory.parent).datasets
    except (UserError, OSError):
        return None
    prepared = [prepared_data(data, datasets_dir), *(prepared_datasets(spec, datasets_dir) for spec in data.specs)]
    names = {path.name for path, _ in chain.from_iterable(prepared)}  # of a mixture, perhaps only some sources
    return names if names or not run.has_begun() else None


@dataclass(frozen=True)
class StoredRun:
    """A run: its place on disk, and its cost."""

    name: str
    state: RunState
    control_of: str | None
    """The ladder that a control belongs to; null for a ladder."""
    directory: str
    bytes: int
    """The size of its files. A file with several names counts once."""
    freed_bytes: int
    """What removing the run would free: the size of the files that nothing else shares."""
    flops: float | None
    """Training FLOPs spent, including repeated ones; None if there is no readable ledger."""
    reused_flops: float | None
    """Training FLOPs taken over from other runs, which paid for them."""
    device_seconds: float | None
    """Wall seconds x devices spent, including repeated steps."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Share:
    """Files that the same runs share as hard links."""

    runs: tuple[str, ...]
    elsewhere: bool
    """Whether the files also have names outside these runs."""
    num_files: int
    bytes: int
    """The size of these files together."""


@dataclass(frozen=True)
class StoredDataset:
    """A prepared dataset."""

    name: str
    bytes: int
    used_by: tuple[str, ...]
    """The runs that use it."""


@dataclass(frozen=True)
class Storage:
    """Runs and datasets of a runs directory."""

    runs_dir: Path
    runs: tuple[StoredRun, ...]
    shares: tuple[Share, ...]
    datasets: tuple[StoredDataset, ...]
    bytes: int
    """The size of all of them together. A file that several share counts once."""


def existing_runs(runs_dir: Path, names: Sequence[str] = ()) -> list[RunStatus]:
    """The runs called `names`, each ladder followed by its controls, or all runs.

    Raises UserError for an unknown name, and if there is no `runs_dir`.
    """
    if not runs_dir.is_dir():
        what = "is not a directory" if runs_dir.exists() else "does not exist"
        raise UserError(f"{runs_dir} {what}; give the directory that holds the runs with --runs-dir")
    return [run for run in find_status(runs_dir, names) if Path(run.directory).exists()]


def measure_storage(runs_dir: Path, names: Sequence[str] = ()) -> Storage:
    """Measures the runs called `names`, with the controls of ladders, or all runs and datasets.

    Raises UserError for an unknown name, and if there is no `runs_dir`.
    """
    wanted, directories = existing_runs(runs_dir, names), run_directories(runs_dir)
    uses = {path.name: DiskUse.of(path) for path in directories}
    folders = [] if names else [manifest.parent for manifest in RunsPaths(runs_dir).dataset_manifests()]
    folders = [path for path in folders if not path.name.startswith(".")]
    used_by = DatasetUse.of(runs_dir).runs if folders else {}
    return Storage(
        runs_dir,
        runs=tuple(_stored(run, uses[run.name]) for run in wanted),
        shares=tuple(_shares(uses, {run.name for run in wanted})),
        datasets=tuple(StoredDataset(p.name, DiskUse.of(p).bytes, used_by.get(p.name, ())) for p in folders),
        bytes=DiskUse.union([*(uses[run.name] for run in wanted), DiskUse.of(*folders)]).bytes,
    )


def _stored(run: RunStatus, use: DiskUse) -> StoredRun:
    cost: SplitCost | None = None
    with suppress(LedgerError, OSError), Ledger.open(RunPaths(Path(run.directory)).ledger, read_only=True) as ledger:
        cost = sum((ledger.stage_cost(stage.name) for stage in ledger.stages()), SplitCost())
    return StoredRun(
        name=run.name,
        state=run.state,
        control_of=run.control_of,
        directory=run.directory,
        bytes=use.bytes,
        freed_bytes=use.freed_bytes,
        flops=cost.spent.flops.total if cost else None,
        reused_flops=cost.reused.flops.total if cost else None,
        device_seconds=cost.spent.device_seconds if cost else None,
        notes=run.notes,
    )


def _shares(uses: dict[str, DiskUse], wanted: set[str]) -> list[Share]:
    """The files of `wanted` runs that have names in other runs or elsewhere, the largest share first."""
    everything = DiskUse.union(uses.values())
    runs_of: dict[DiskFile, list[str]] = defaultdict(list)
    for name, use in uses.items():
        for file in use:
            runs_of[file].append(name)
    sizes: dict[tuple[tuple[str, ...], bool], list[int]] = defaultdict(list)
    for file, names in runs_of.items():
        elsewhere = everything[file] < file.links
        if (len(names) > 1 or elsewhere) and wanted.intersection(names):
            sizes[tuple(names), elsewhere].append(file.bytes)
    shares = [Share(names, elsewhere, len(shared), sum(shared)) for (names, elsewhere), shared in sizes.items()]
    return sorted(shares, key=lambda share: (-share.bytes, share.runs))


def section(storage: Storage) -> Section:
    """A line for each run, with controls below their ladder, then what they share, then the datasets."""
    if not storage.runs and not storage.datasets:
        return Section("storage", "", (Paragraph(f"there are no runs in {storage.runs_dir} yet"),))
    columns = [
        *run_columns(storage.runs, {run.name for run in storage.runs}),
        Column("size", cell=lambda run: figure(run.bytes, byte_count)),
        Column("frees", cell=lambda run: figure(run.freed_bytes, byte_count)),
        Column("FLOPs", cell=lambda run: figure(run.flops, scientific)),
        Column("reused", cell=lambda run: figure(run.reused_flops, scientific)),
        Column("device time", cell=lambda run: figure(run.device_seconds, duration)),
    ]
    reuses = any(run.reused_flops for run in storage.runs)
    columns = [column for column in columns if reuses or column.heading != "reused"]
    caption = "frees: what removing the run would free" + (
        "; reused: FLOPs taken over from other runs, which paid for them" if reuses else ""
    )
    parts: list[Part] = [Table.of("runs", columns, rows_of(columns, storage.runs), caption)]
    parts += [Paragraph(f"{run.name}: {note}", "warning") for run in storage.runs for note in run.notes]
    parts += [Paragraph(_share_words(share)) for share in storage.shares]
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


def _share_words(share: Share) -> str:
    """Such as `a and b share 3 files, 12 MB`."""
    *others, last = [*share.runs, *(["places outside these runs"] if share.elsewhere else [])]
    return f"{', '.join(others)} and {last} share {counted(share.num_files, 'file')}, {byte_count(share.bytes)}"
