"""Measures runs: what each occupies on disk, what it cost, and which files it shares with others."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from growctl.ledger.entries import SplitCost
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs.disk_use import DiskUse, FileId
from growctl.runs.needed import DatasetUse
from growctl.runs.removable import existing_runs
from growctl.runs.status import RunState, RunStatus, run_directories
from growctl.runs_dir import RunPaths, RunsPaths


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
    """A prepared dataset, and the runs that use it."""

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


def measure_storage(runs_dir: Path, names: Sequence[str] = ()) -> Storage:
    """Measures the runs called `names`, with the controls of ladders, or all runs and datasets.

    Raises UserError for an unknown name, and if there is no `runs_dir`.
    """
    found, directories = existing_runs(runs_dir, names), run_directories(runs_dir)
    uses = {path.name: DiskUse.of(path) for path in directories}
    runs = tuple(_stored(run, uses[run.name]) for run in found)
    datasets = [] if names else _datasets(runs_dir, directories)
    folders = [RunsPaths(runs_dir).datasets / dataset.name for dataset in datasets]
    together = DiskUse.union([*(uses[run.name] for run in runs), DiskUse.of(*folders)])
    return Storage(runs_dir, runs, tuple(_shares(uses, {run.name for run in runs})), tuple(datasets), together.bytes)


def _stored(run: RunStatus, use: DiskUse) -> StoredRun:
    cost = _cost(Path(run.directory))
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


def _cost(directory: Path) -> SplitCost | None:
    """What a run has cost; None if it has no readable ledger."""
    with suppress(LedgerError, OSError), Ledger.open(RunPaths(directory).ledger, read_only=True) as ledger:
        return sum((ledger.stage_cost(stage.name) for stage in ledger.stages()), SplitCost())
    return None


def _shares(uses: dict[str, DiskUse], wanted: set[str]) -> list[Share]:
    """The files of `wanted` runs that have names in other runs or elsewhere, the largest share first."""
    runs_of: dict[FileId, list[str]] = defaultdict(list)
    for name, use in uses.items():
        for identity in use.files:
            runs_of[identity].append(name)
    everything = DiskUse.union(uses.values())
    sizes: dict[tuple[tuple[str, ...], bool], list[int]] = defaultdict(list)
    for identity, names in runs_of.items():
        file = everything.files[identity]
        elsewhere = file.found < file.links
        if (len(names) > 1 or elsewhere) and wanted.intersection(names):
            sizes[tuple(names), elsewhere].append(file.bytes)
    shares = [Share(names, elsewhere, len(found), sum(found)) for (names, elsewhere), found in sizes.items()]
    return sorted(shares, key=lambda share: (-share.bytes, share.runs))


def _datasets(runs_dir: Path, directories: Sequence[Path]) -> list[StoredDataset]:
    use = DatasetUse.of(directories)
    prepared = [manifest.parent for manifest in RunsPaths(runs_dir).dataset_manifests()]
    visible = [path for path in prepared if not path.name.startswith(".")]
    return [StoredDataset(path.name, DiskUse.of(path).bytes, use.runs.get(path.name, ())) for path in visible]
