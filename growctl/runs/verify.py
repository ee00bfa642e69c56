"""`growctl verify --integrity`: rereads everything under a path and checks it against its hashes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs.directory import RunError, own_schedule
from growctl.runs_dir import RunPaths, RunsPaths
from model.errors import UserError
from stages.checkpoint.files import OnBytes
from stages.checkpoint.manifest import CheckpointError
from stages.checkpoint.verify import verify_checkpoint
from stages.counted import counted
from stages.data.corpus import SPLITS, DataError
from stages.data.dataset import MixtureEntry, files_here, read_dataset_manifest, verify_dataset
from stages.data.remote_reading import CACHE_NAME
from stages.stage_dir import MANIFEST_NAME, is_checkpoint_name, is_set_aside, is_unfinished

Kind = Literal["checkpoint", "dataset", "ledger", "schedule", "set aside", "unfinished"]

LEDGER = RunPaths(Path()).ledger.name
DATASETS = RunsPaths(Path()).datasets.name


@dataclass(frozen=True)
class Target:
    """A file or directory to check, or to list without a check if it is set aside or unfinished."""

    path: Path
    kind: Kind


@dataclass(frozen=True)
class Found:
    """The result of checking a target."""

    path: Path
    kind: Kind
    whole: bool | None
    """None: not checked, because files that are set aside or unfinished may be damaged."""

    problem: str | None = None
    """What is damaged; None if nothing is."""

    num_files: int = 1
    bytes: int = 0
    """The size of its files."""

    num_sources: int = 0
    """The datasets that a mixture is made of, each of which is checked by itself."""

    def line(self) -> str:
        """The result as a line for the screen."""
        if self.whole is None:
            why = "broken, and moved here" if self.kind == "set aside" else "never finished"
            return f"{self.path}: {self.kind} ({why}), not checked"
        if not self.whole:
            return self.problem or f"{self.path} is broken"
        whole = f"{counted(self.num_files, 'file')}, {counted(self.bytes, 'byte')}"
        if self.num_sources:
            whole = f"a mixture of {counted(self.num_sources, 'dataset')}"
        return f"{self.path}: OK, {whole if self.kind in ('checkpoint', 'dataset') else self.kind}"


def find_targets(path: Path) -> list[Target]:
    """The targets at `path`: a checkpoint, a dataset, a ledger, or everything below a run or runs directory.

    Raises UserError if there are none.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if path.is_file():
        if path.suffix != ".db":
            raise UserError(f"{path} is not a checkpoint, dataset, {LEDGER}, run or runs directory")
        return [Target(path, "ledger")]
    # A path that the user gives is always checked, even if its name marks it as set aside or unfinished.
    if (path / MANIFEST_NAME).is_file():
        return [Target(path, "checkpoint")] if not _is_dataset(path) else [Target(path, "dataset"), *_sources(path)]
    if found := list(_below(path)):
        return found
    raise UserError(
        f"{path} holds no checkpoint, dataset, ledger or run: there is no {MANIFEST_NAME} or {LEDGER} in or below it"
    )


def check(target: Target, on_bytes: OnBytes | None = None) -> Found:
    """Reads all of `target` and checks its hashes; calls `on_bytes` with the bytes as they are read."""
    path, kind = target.path, target.kind
    try:
        if kind == "checkpoint":
            checkpoint = verify_checkpoint(path, on_bytes=on_bytes)
            return _whole(target, [file.bytes for file in checkpoint.files.values()])
        if kind == "dataset":
            manifest = read_dataset_manifest(path)
            verify_dataset(path, hashes=not manifest.sources, on_bytes=on_bytes)  # sources are targets of their own
            return _whole(target, [file.bytes for file in files_here(path, manifest)], len(manifest.sources))
        if kind == "ledger":
            with Ledger.open(path, read_only=True) as ledger:
                ledger.stages()
            return _whole(target, [path.stat().st_size])
        if kind == "schedule":
            own_schedule(path)
            return _whole(target, [path.stat().st_size])
    except (CheckpointError, DataError, LedgerError, RunError) as error:
        return Found(path, kind, whole=False, problem=_with_path(path, str(error)))
    except OSError as error:
        return Found(path, kind, whole=False, problem=f"{error.filename or path} cannot be read: {error.strerror}")
    return Found(path, kind, whole=None)


def _whole(target: Target, sizes: list[int], num_sources: int = 0) -> Found:
    return Found(target.path, target.kind, whole=True, num_files=len(sizes), bytes=sum(sizes), num_sources=num_sources)


def _with_path(path: Path, message: str) -> str:
    return message if str(path) in message else f"{path}: {message}"


def _below(folder: Path) -> Iterator[Target]:
    """All targets below `folder`, by name; does not follow links."""
    run = RunPaths(folder)
    if run.schedule.is_file():
        yield Target(run.schedule, "schedule")
    if run.ledger.is_file() or _has_trained(run):
        yield Target(run.ledger, "ledger")
    for child in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if is_set_aside(child):
            yield Target(child, "set aside")
        elif is_unfinished(child):
            yield Target(child, "unfinished")
        elif folder.name == DATASETS and child.name != CACHE_NAME:
            yield Target(child, "dataset")
            yield from (source for source in _sources(child) if source.path.parent.resolve() != folder.resolve())
        elif is_checkpoint_name(child.name):
            yield Target(child, "checkpoint")
        elif (child / MANIFEST_NAME).is_file():
            yield Target(child, "dataset" if _is_dataset(child) else "checkpoint")
        else:
            yield from _below(child)


def _has_trained(run: RunPaths) -> bool:
    """Whether a run has trained. Such a run must have a ledger."""
    return any(stage.metrics.exists() for _, _, stage in run.stages_found())


def _is_dataset(directory: Path) -> bool:
    has_tokens = any((directory / split).is_dir() for split in SPLITS)
    return directory.parent.name == DATASETS or has_tokens or bool(_entries(directory))


def _sources(dataset: Path) -> list[Target]:
    """The datasets of a mixture that are there. Checking the mixture reports the others."""
    paths = (entry.dataset(dataset) for entry in _entries(dataset))
    return [Target(path, "dataset") for path in paths if (path / MANIFEST_NAME).is_file()]


def _entries(directory: Path) -> tuple[MixtureEntry, ...]:
    """The sources of the mixture in `directory`; empty if it is none."""
    try:
        return read_dataset_manifest(directory).sources
    except DataError:
        return ()
