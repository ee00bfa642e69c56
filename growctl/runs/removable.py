"""Finds what can be removed from a runs directory because growctl can make it again."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from growctl.ladder.stage_plans import plan_stages
from growctl.runs.directory import own_schedule, steps_done
from growctl.runs.disk_use import DiskUse
from growctl.runs.needed import DatasetUse, NeededCheckpoints, why_in_use
from growctl.runs.status import RunStatus, being_prepared, find_status, run_directories
from growctl.runs_dir import RunPaths, RunsPaths
from model.errors import UserError
from stages.checkpoint.manifest import CheckpointError, Manifest, manifest_hash, read_manifest
from stages.checkpoint.staging import is_being_written
from stages.checkpoint.verify import verify_checkpoint
from stages.data.dataset import DataError, read_dataset_manifest
from stages.data.remote_reading import CACHE_NAME
from stages.spec import TrainSpec
from stages.stage_dir import StagePaths, converted_directory, is_set_aside, is_unfinished

Kind = Literal["leftover", "conversion", "checkpoint", "trunk", "dataset"]

_LEFTOVER = re.compile(r"\.(.+)\.(?:incomplete(?:-\d+-[0-9a-f]+)?|removed)")
"""The name of a dataset's directory that is unfinished or being removed."""


@dataclass(frozen=True)
class Removable:
    """A directory that can be removed."""

    path: Path
    kind: Kind
    """`checkpoint`: inside a finished stage. `trunk`: the one right before the decay. `conversion`: of a checkpoint,
    for other ranks. `leftover`: what a dead process was writing or removing. `dataset`: one that no run uses."""

    run: str | None = None
    """The run's name; None for what runs share."""

    stage: str | None = None
    """The directory of the stage or release, below the run's `stages`."""

    relies_on: Path | None = None
    """The checkpoint that makes this one superfluous. It must be intact when this one is removed."""


@dataclass(frozen=True)
class Kept:
    """Something that may look removable and is kept."""

    path: Path
    why: str


@dataclass(frozen=True)
class Cleanup:
    """What can be removed from a runs directory, and what is kept."""

    runs_dir: Path
    remove: tuple[Removable, ...]
    kept: tuple[Kept, ...]
    trunks: tuple[Removable, ...] = ()
    """The trunk checkpoints that are kept because nobody asked to remove them."""


def disk_use(items: Iterable[Removable]) -> DiskUse:
    """What `items` occupy on disk."""
    return DiskUse.of(*(item.path for item in items))


def find_removable(runs_dir: Path, names: Sequence[str] = (), *, trunks: bool = False) -> Cleanup:
    """What can be removed from the runs called `names`, with the controls of those that are ladders.

    Without names: from all runs, and datasets that no run uses. `trunks`: trunk checkpoints too. Raises UserError for
    an unknown name, and if there is no `runs_dir`.
    """
    runs = existing_runs(runs_dir, names)
    needed = NeededCheckpoints.of(run_directories(runs_dir))
    found = [entry for run in runs for entry in in_run(Path(run.directory), needed)]
    if not names:
        found += in_datasets(runs_dir)
    removable = [entry for entry in found if isinstance(entry, Removable)]
    return Cleanup(
        runs_dir,
        remove=tuple(item for item in removable if trunks or item.kind != "trunk"),
        kept=tuple(entry for entry in found if isinstance(entry, Kept)),
        trunks=tuple(item for item in removable if not trunks and item.kind == "trunk"),
    )


def existing_runs(runs_dir: Path, names: Sequence[str] = ()) -> list[RunStatus]:
    """The runs called `names`, each ladder followed by its controls, or all runs.

    Raises UserError for an unknown name, and if there is no `runs_dir`.
    """
    if not runs_dir.is_dir():
        what = "is not a directory" if runs_dir.exists() else "does not exist"
        raise UserError(f"{runs_dir} {what}; give the directory that holds the runs with --runs-dir")
    return [run for run in find_status(runs_dir, names) if Path(run.directory).exists()]


def in_run(directory: Path, needed: NeededCheckpoints) -> Iterator[Removable | Kept]:
    """What can be removed from a run, and what is kept although it looks removable. A run in use is kept whole."""
    if why := why_in_use(directory):
        yield Kept(directory, why)
    else:
        yield from in_idle_run(directory, needed)


def in_idle_run(directory: Path, needed: NeededCheckpoints) -> Iterator[Removable | Kept]:
    """What can be removed from a run that no other growctl uses."""
    parts: list[tuple[StagePaths, int | None]] = [
        (stage, index) for index, _, stage in RunPaths(directory).stages_found()
    ]
    parts += [(stage.release, None) for stage, _ in parts if stage.release.directory.is_dir()]
    for stage, index in parts:
        if not stage.directory.resolve().is_relative_to(directory.resolve()):
            yield Kept(stage.directory, "it is a link out of the run, whose lock does not cover it")
            continue
        try:
            yield from _in_stage(directory, stage, index, needed)
        except OSError as error:
            yield Kept(Path(error.filename or stage.directory), f"it cannot be read: {error.strerror}")


def _in_stage(
    directory: Path, stage: StagePaths, index: int | None, needed: NeededCheckpoints
) -> Iterator[Removable | Kept]:
    """`index`: the number of the stage; None for a release."""
    place = str(stage.directory.relative_to(RunPaths(directory).stages))

    def removable(path: Path, kind: Kind, relies_on: Path | None = None) -> Removable:
        return Removable(path, kind, directory.name, place, relies_on)

    leftovers = stage.leftovers()  # only the run's own processes write these, and the run is idle
    for path in sorted(stage.directory.iterdir()):
        if is_unfinished(path) and _is_folder(path):
            live = path not in leftovers and is_being_written(path)
            yield Kept(path, "a growctl is writing it") if live else removable(path, "leftover")
        elif is_set_aside(path):
            yield Kept(path, "it was set aside; look at it, and remove it yourself")
    final = _checked(stage.final) if stage.final.exists() else None
    if isinstance(final, Kept):
        yield final
    finished = isinstance(final, Manifest)
    for path in stage.conversions():
        conversion = _checked(path)
        source = stage.final if finished else _source(stage, path)
        if isinstance(conversion, Kept):
            yield conversion
        elif source is None:
            yield Kept(path, "there is no intact checkpoint to make it from again")
        elif run := needed.starts.get(path.resolve()):
            yield Kept(path, f"{run} starts from it")
        else:
            yield removable(path, "conversion", source)
    if not finished:
        return  # the stage resumes from its checkpoints
    trunks = _trunk_steps(directory, stage, index)
    for step, path in stage.checkpoints().items():
        checkpoint = _checked(path)
        if isinstance(checkpoint, Kept):
            yield checkpoint
        elif why := needed.why_needed(path, checkpoint):
            yield Kept(path, why)
        else:
            yield removable(path, "trunk" if step in trunks else "checkpoint", stage.final)


def _checked(path: Path) -> Manifest | Kept:
    """The manifest of a complete checkpoint; Kept if it is broken, by the sizes of its files, or only a link."""
    if not _is_folder(path):
        return Kept(path, "it is not a directory of this stage")
    try:
        return verify_checkpoint(path, hashes=False)
    except CheckpointError as error:
        return Kept(path, f"{error}; look at it, and remove it yourself")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _source(stage: StagePaths, conversion: Path) -> Path | None:
    """The complete engine checkpoint that `conversion` was made from; None if it is gone or broken."""
    for path in stage.checkpoints().values():
        if converted_directory(path) == conversion and isinstance(_checked(path), Manifest):
            return path if read_manifest(conversion).lineage.parent == manifest_hash(path) else None
    return None


def _trunk_steps(directory: Path, stage: StagePaths, index: int | None) -> set[int]:
    """The step of a stage right before its learning rate decays, if any; all its steps if that is unknown."""
    with suppress(OSError, ValueError):
        step = TrainSpec.model_validate_json(stage.spec.read_bytes()).trunk_step
        return set() if step is None else {step}
    with suppress(UserError, LookupError):
        if index is not None:
            schedule = own_schedule(RunPaths(directory).schedule)
            plan = plan_stages(schedule, steps_done(schedule, directory)[:index])[index]
            step = plan.learning_rate.undecayed_steps
            return set() if step is None else {step}
    return set(stage.checkpoints())


def in_datasets(runs_dir: Path) -> Iterator[Removable | Kept]:
    """The datasets that no run uses, and what dead processes left beside them."""
    folder = RunsPaths(runs_dir).datasets
    if folder.is_symlink():
        yield Kept(folder, "it is a link; other runs directories may use its datasets")
        return
    use, at_work = DatasetUse.of(run_directories(runs_dir)), being_prepared(runs_dir)
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        name = dataset_name(path)
        if not _is_folder(path) or (path.name == name and name in use.runs):
            continue
        if path.name == CACHE_NAME:
            yield Kept(path, "it holds tokens that runs have read from URLs; remove it yourself while no run needs it")
        elif name in at_work:
            yield Kept(path, "a growctl is preparing this dataset")
        elif is_set_aside(path):
            yield Kept(path, "it was set aside; look at it, and remove it yourself")
        elif is_unfinished(path):
            yield Removable(path, "leftover")
        elif use.unknown:
            yield Kept(path, f"{use.unknown[0]} may use it: the run's files no longer say which dataset it uses")
        else:
            try:
                read_dataset_manifest(path)
                yield Removable(path, "dataset")
            except DataError as error:
                yield Kept(path, f"{error}; look at it, and remove it yourself")


def dataset_name(path: Path) -> str:
    """The name of the dataset that `path` is or that a dead process left it of."""
    match = _LEFTOVER.fullmatch(path.name)
    return match[1] if match else path.name
