"""Finds and removes what growctl can make again: checkpoints inside finished stages, conversions, unused datasets.

What runs still need stays. Directories are removed under the locks that their users would take.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Literal

from growctl.runs.directory import RunError, own_schedule
from growctl.runs.lock import hold, why_in_use
from growctl.runs.status import being_prepared
from growctl.runs.storage import DatasetUse, DiskUse, existing_runs
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.text.formatting import byte_count
from growctl.text.section import Cell, Column, Paragraph, Part, Section, Table
from model.errors import UserError
from stages.checkpoint.files import sync_path
from stages.checkpoint.manifest import CheckpointError, Manifest, verify_checkpoint
from stages.checkpoint.staging import is_being_written
from stages.counted import counted
from stages.data.errors import DataError
from stages.data.remote import CACHE_NAME
from stages.images.either import read_any_manifest
from stages.spec import TrainSpec
from stages.stage_dir import StagePaths, is_set_aside, is_unfinished, preparation_lock, removal_directory

Kind = Literal["leftover", "conversion", "checkpoint", "trunk", "dataset"]

_NOUNS: dict[Kind, str] = {
    "leftover": "leftover",
    "conversion": "converted checkpoint",
    "checkpoint": "inner checkpoint",
    "trunk": "trunk checkpoint",
    "dataset": "unused dataset",
}

_START = re.compile(rb"^start:(?! *null *$)", re.MULTILINE)
"""A schedule's `start`, unless it is null."""

_WhyNeeded = Callable[[Path], str | None]

_SET_ASIDE = "it was set aside; look at it, and remove it yourself"


@dataclass(frozen=True)
class Removable:
    """A directory that can be removed."""

    path: Path
    kind: Kind
    """`checkpoint`: inside a finished stage. `trunk`: the one right before the decay. `conversion`: of a checkpoint,
    for other ranks. `leftover`: what a dead process was writing or removing. `dataset`: one that no run uses."""
    run: str | None
    """The run's name; null for what runs share."""
    stage: str | None
    """The directory of the stage or release, below the run's `stages`."""
    bytes: int


@dataclass(frozen=True)
class Kept:
    """Something that may look removable and is kept."""

    path: Path
    why: str


@dataclass
class Removed:
    """What was removed, and what was not although it was to be."""

    paths: list[Path] = field(default_factory=list)
    freed_bytes: int = 0
    skipped: list[Kept] = field(default_factory=list)

    def remove(self, directory: Path) -> None:
        """Removes a directory, hidden by one rename first."""
        self.freed_bytes += DiskUse.of(directory).freed_bytes
        hidden = directory
        if not is_unfinished(directory):
            hidden = removal_directory(directory)
            os.rename(directory, hidden)
            sync_path(directory.parent)
        shutil.rmtree(hidden)
        self.paths.append(directory)


@dataclass(frozen=True)
class Cleanup:
    """What can be removed from a runs directory, and what was removed."""

    runs_dir: Path
    remove: tuple[Removable, ...]
    """What can be removed, before anything was."""
    freed_bytes: int
    """What removing all of it frees: the size of the files that nothing else shares."""
    kept: tuple[Kept, ...]
    """What may look removable and is kept."""
    removed: Removed | None = None
    """What was removed; null if nothing was to be."""


def find_removable(runs_dir: Path, names: Sequence[str] = (), *, trunks: bool = False) -> Cleanup:
    """What can be removed from the runs called `names`, with the controls of those that are ladders.

    Without names: from all runs, and datasets that no run uses. `trunks`: trunk checkpoints too. Raises UserError for
    an unknown name, and if there is no `runs_dir`.
    """
    runs = [RunPaths(Path(run.directory)) for run in existing_runs(runs_dir, names)]
    why_needed = _why_needed(RunsPaths(runs_dir).all_runs())
    entries: list[Removable | Kept] = []
    for run in runs:
        why = why_in_use(run.directory)
        entries += [Kept(run.directory, why)] if why else _in_idle_run(run, why_needed, trunks)
    if not names:
        entries += _in_datasets(runs_dir)
    remove = tuple(entry for entry in entries if isinstance(entry, Removable))
    kept = tuple(entry for entry in entries if isinstance(entry, Kept))
    return Cleanup(runs_dir, remove, DiskUse.of(*(item.path for item in remove)).freed_bytes, kept)


def _why_needed(runs: Iterable[RunPaths]) -> _WhyNeeded:
    """Says for which of `runs`, if any, a checkpoint inside a finished stage must stay.

    A run that is at work may reuse any, and one whose schedule cannot be read may start from any.
    """
    starts, why_all = dict[Path, str](), None
    for run in runs:
        name = run.directory.name
        try:
            if why_in_use(run.directory):
                why_all = f"{name} is running and may reuse it"
            # Loading every schedule would take a while, and few have a start.
            has_start = run.schedule.is_file() and _START.search(run.schedule.read_bytes())
            if has_start and (base := own_schedule(run.schedule).base):
                starts[Path(base.path).resolve()] = f"{name} starts from it"
        except (UserError, OSError) as error:
            why_all = f"{name} may need it: {error}"
    return lambda path: starts.get(path.resolve(), why_all)


def _in_idle_run(run: RunPaths, why_needed: _WhyNeeded, trunks: bool) -> Iterator[Removable | Kept]:
    """What can be removed from a run that no other growctl uses."""
    for _, _, stage in run.stages_found():
        for part in (stage, stage.release):
            if part.directory.is_dir():
                yield from _in_stage(run, part, why_needed, trunks)


def _in_stage(run: RunPaths, stage: StagePaths, why_needed: _WhyNeeded, trunks: bool) -> Iterator[Removable | Kept]:
    def removable(path: Path, kind: Kind) -> Removable:
        place = str(stage.directory.relative_to(run.stages))
        return Removable(path, kind, run.directory.name, place, DiskUse.of(path).bytes)

    leftovers = stage.leftovers()  # only the run's own processes write these, and the run is idle
    for path in sorted(stage.directory.iterdir()):
        if is_unfinished(path):
            live = path not in leftovers and is_being_written(path)
            yield Kept(path, "a growctl is writing it") if live else removable(path, "leftover")
        elif is_set_aside(path):
            yield Kept(path, _SET_ASIDE)
    final = _checked(stage.final) if stage.final.exists() else None
    if isinstance(final, Kept):
        yield final
    if not isinstance(final, Manifest):
        return  # the stage resumes from its checkpoints
    trunk_steps, conversions = _trunk_steps(stage), stage.conversions()
    for path in [*conversions, *stage.checkpoints().values()]:
        checkpoint = _checked(path)
        if isinstance(checkpoint, Kept):
            yield checkpoint
        elif why := why_needed(path):
            yield Kept(path, why)
        elif path in conversions:
            yield removable(path, "conversion")
        elif trunks or checkpoint.step not in trunk_steps:
            yield removable(path, "trunk" if checkpoint.step in trunk_steps else "checkpoint")
        else:
            yield Kept(path, "a finished ladder is extended from it; --trunks removes it too")


def _checked(path: Path) -> Manifest | Kept:
    """The manifest of a complete checkpoint; Kept if it is broken, by the sizes of its files, or only a link."""
    if path.is_symlink():
        return Kept(path, "it is a link")
    try:
        return verify_checkpoint(path, hashes=False)
    except CheckpointError as error:
        return Kept(path, f"{error}; look at it, and remove it yourself")


def _trunk_steps(stage: StagePaths) -> set[int | None]:
    """The step of a stage right before its learning rate decays, if any; all its steps if that is unknown."""
    try:
        return {TrainSpec.model_validate_json(stage.spec.read_bytes()).trunk_step}
    except (OSError, ValueError):
        return {*stage.checkpoints()}


def _in_datasets(runs_dir: Path) -> Iterator[Removable | Kept]:
    """The datasets that no run uses, and what dead processes left beside them."""
    folder = RunsPaths(runs_dir).datasets
    if folder.is_symlink():
        yield Kept(folder, "it is a link; other runs directories may use its datasets")
        return
    use, at_work = DatasetUse.of(runs_dir), being_prepared(runs_dir)
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.is_dir() or path.is_symlink() or path.name == CACHE_NAME or path.name in use.runs:
            continue
        if _dataset_name(path) in at_work:
            yield Kept(path, "a growctl is preparing this dataset")
        elif is_set_aside(path):
            yield Kept(path, _SET_ASIDE)
        elif is_unfinished(path):
            yield Removable(path, "leftover", None, None, DiskUse.of(path).bytes)
        elif use.unknown:
            yield Kept(path, f"{use.unknown[0]} may use it: the run's files no longer say which dataset it uses")
        else:
            try:
                read_any_manifest(path)
                yield Removable(path, "dataset", None, None, DiskUse.of(path).bytes)
            except DataError as error:
                yield Kept(path, f"{error}; look at it, and remove it yourself")


def _dataset_name(path: Path) -> str:
    """The name of the dataset that `path` is or that a dead process left it of."""
    return path.name.removeprefix(".").partition(".incomplete")[0].removesuffix(".removed")


def remove(cleanup: Cleanup) -> Removed:
    """Removes what `cleanup` lists, as far as it is still removable.

    Takes the lock of each run, looks again, and reads every checkpoint that makes another superfluous against its
    hashes first. Each directory is hidden by one rename before its files go, so what a kill leaves is a leftover, never
    an incomplete checkpoint.
    """
    removed = Removed()
    for run, items in groupby(cleanup.remove, key=lambda item: item.run):
        if run is None:
            _remove_datasets(cleanup.runs_dir, items, removed)
        else:
            _remove_from_run(RunsPaths(cleanup.runs_dir), run, list(items), removed)
    return removed


def _remove_from_run(runs: RunsPaths, name: str, items: list[Removable], removed: Removed) -> None:
    run, others = runs.run(name), [other for other in runs.all_runs() if other.directory.name != name]
    try:
        if why := why_in_use(run.directory):
            raise RunError(why)
        with hold(run.directory):
            still, problem_of = set(_in_idle_run(run, _why_needed(others), trunks=True)), cache(_problem)
            for item in items:
                problem = None if item in still else "it has changed since it was listed"
                if item.kind != "leftover":
                    problem = problem or problem_of(StagePaths(item.path.parent).final)
                if problem:
                    removed.skipped.append(Kept(item.path, problem))
                else:
                    removed.remove(item.path)
    except RunError as error:
        removed.skipped += [Kept(item.path, str(error)) for item in items]


def _problem(final: Path) -> str | None:
    try:
        verify_checkpoint(final)
    except CheckpointError as error:
        return f"it may still be needed: {error}"
    return None


def _remove_datasets(runs_dir: Path, items: Iterable[Removable], removed: Removed) -> None:
    for item in items:
        with preparation_lock(item.path.with_name(_dataset_name(item.path))).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                removed.skipped.append(Kept(item.path, "a growctl may be preparing this dataset: its lock is not free"))
                continue
            use = DatasetUse.of(runs_dir)
            if item.kind == "dataset" and (item.path.name in use.runs or use.unknown):
                removed.skipped.append(Kept(item.path, "a run has started to use it since it was listed"))
            else:
                removed.remove(item.path)


def section(cleanup: Cleanup) -> Section:
    """What would be removed and how much that frees, then what is kept and why."""
    parts: list[Part] = [Paragraph(f"there is nothing to remove in {cleanup.runs_dir}")]
    if cleanup.remove:
        rows = []
        for (run, stage, kind), group in groupby(cleanup.remove, key=lambda item: (item.run, item.stage, item.kind)):
            items = list(group)
            what = counted(len(items), _NOUNS[kind])
            rows.append(
                [*map(Cell, (run or "all runs", stage or "", what, byte_count(sum(item.bytes for item in items))))]
            )
        columns = [Column(text, is_number=text == "size") for text in ("run", "stage", "to remove", "size")]
        freed = Paragraph(f"this would free {byte_count(cleanup.freed_bytes)}", "strong")
        parts = [Table.of("remove", columns, rows), freed]
    return Section("clean", "", (*parts, *_kept_parts(cleanup.kept)))


def removed_section(removed: Removed) -> Section:
    """What was removed and what was not."""
    number = counted(len(removed.paths), "directory", "directories")
    done = Paragraph(f"removed {number}, which freed {byte_count(removed.freed_bytes)}", "strong")
    return Section("removed", "", (done, *_kept_parts(removed.skipped)))


def _kept_parts(kept: Iterable[Kept]) -> Iterator[Paragraph]:
    for (_, why), group in groupby(kept, key=lambda item: (item.path.parent, item.why)):
        first, *others = [item.path for item in group]
        more = f" and {len(others)} more" if others else ""
        yield Paragraph(f"kept: {first}{more}: {why.removeprefix(f'{first} ')}")
