"""Checkpoint directories on disk: whole or not there, set aside if broken, found, and removed. No torch here."""

import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.checkpoint.disk_full import existing_part, raise_when_full
from stages.checkpoint.files import link_or_copy, sync_path, write_file
from stages.checkpoint.manifest import CheckpointError, Manifest, read_manifest, verify_checkpoint
from stages.checkpoint.sealed import seal
from stages.checkpoint.staging import create_marked, discard, remove_abandoned, remove_unless_written, why_unfinished
from stages.process.watchdog import remove_empty_stacks
from stages.stage_dir import (
    MANIFEST_NAME,
    WRITING_MARK,
    StagePaths,
    broken_directory,
    converted_directory,
    removal_directory,
    staging_directory,
)


def begin_directory(directory: Path) -> Path:
    """Creates an empty staging directory for `directory`. Removes one that a killed process left behind.

    Raises CheckpointError if another process is writing there, or may be.
    """
    staging = staging_directory(directory)
    remove_unless_written(staging)
    with raise_when_full(directory):
        marked = create_marked(staging)
    try:
        os.rename(marked, staging)
    except OSError as error:
        discard(marked)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise CheckpointError(f"{directory} {why_unfinished(staging)}") from None
    return staging


def finish_directory(directory: Path, manifest: Manifest) -> Manifest:
    """Writes the sealed manifest into the staging directory, syncs the folders, and renames it to `directory`.

    The other files must be synced already; `write_file`, `list_files` and `link_or_copy` do that. Returns the
    manifest as written.
    """
    sealed = seal(manifest)
    write_file(staging_directory(directory) / MANIFEST_NAME, sealed.model_dump_json(indent=1).encode())
    publish_directory(directory)
    return sealed


def link_checkpoint(source: Path, target: Path) -> None:
    """Makes `target` the same checkpoint as `source`, manifest included, as hard links where the disk allows them.

    Raises CheckpointError if `source` is not a checkpoint or `target` exists. Partial output is deleted.
    """
    with whole_directory(target) as staging:
        for name in (*read_manifest(source).files, MANIFEST_NAME):
            link_or_copy(source / name, staging / name)
        publish_directory(target)


def publish_directory(directory: Path) -> None:
    """Syncs the folders of the staging directory of `directory`, which is complete, and renames it to `directory`.

    The files must be synced already.
    """
    staging = staging_directory(directory)
    for folder in [*(path for path in staging.rglob("*") if path.is_dir()), staging]:
        sync_path(folder)
    os.rename(staging, directory)
    (directory / WRITING_MARK).unlink(missing_ok=True)
    for folder in (directory, directory.parent):
        sync_path(folder)


@contextmanager
def whole_directory(directory: Path, num_bytes: int | None = None) -> Iterator[Path]:
    """Yields a staging directory to fill and complete with `finish_directory` or `publish_directory`. Creates missing
    parents. On an error, removes what it created; first of all, the staging directories beside it whose processes have
    died.

    Raises CheckpointError if `check_new` rejects `directory`, or if another process is writing there, or may be, and
    DiskFull if the disk is full, or lacks `num_bytes` from the beginning.
    """
    check_new(directory)
    remove_abandoned(directory.parent)
    missing = [folder for folder in directory.absolute().parents if not folder.exists()]
    with raise_when_full(directory, num_bytes):
        staging = begin_directory(directory)
        try:
            yield staging
        finally:
            discard(staging)
            with suppress(OSError):  # not empty, because `directory` is there
                for folder in missing:
                    folder.rmdir()


def check_new(directory: Path, option: str = "") -> None:
    """Checks that a checkpoint or export can become `directory`, which the user names with the command's `option`.

    Raises CheckpointError if it exists, even as a link to nothing, or if it would be in a file.
    """
    choose = f"choose another directory{option and f' with {option}'}"
    if os.path.lexists(directory):
        raise CheckpointError(f"{directory} already exists; {choose}: growctl never overwrites one")
    above = existing_part(directory)
    if not above.is_dir():
        raise CheckpointError(f"{directory} cannot be created, because {above} is not a directory; {choose}")


def set_aside(directory: Path) -> Path:
    """Renames a broken directory to `broken-<name>`, with a number if necessary. Returns its new path."""
    number = 1
    while (target := broken_directory(directory, number)).exists():
        number += 1
    os.rename(directory, target)
    return target


def whole_or_set_aside(
    directory: Path, tell: Callable[[str], None], wanted: Callable[[Manifest], bool] = lambda _: True
) -> Manifest | None:
    """The manifest of a checkpoint that is whole and `wanted`, else None.

    Sets a broken one aside with a message to `tell`, and so one that is not `wanted`, because it belongs to training
    that was rolled back.
    """
    if not directory.exists():
        return None
    try:
        manifest = verify_checkpoint(directory)
        if wanted(manifest):
            return manifest
        problem = f"{directory} belongs to training that was rolled back"
    except CheckpointError as error:
        problem = str(error)
    tell(f"{problem}; moved to {set_aside(directory).name}")
    return None


def newest_checkpoint(
    stage_directory: Path, tell: Callable[[str], None], wanted: Callable[[Manifest], bool] = lambda _: True
) -> Path | None:
    """The newest complete `step_*` checkpoint of a stage that is `wanted`, or None. Sets newer ones aside."""
    for directory in StagePaths(stage_directory).named_as_checkpoints():
        if whole_or_set_aside(directory, tell, wanted):
            return directory
    return None


def remove_converted(stage_directory: Path, checkpoint: Path) -> None:
    """Removes the conversions of all checkpoints older than `checkpoint`, a complete `step_N`.

    If the process dies meanwhile, a partly removed conversion remains. It belongs to an old checkpoint, so nothing
    reads it.
    """
    for path in StagePaths(stage_directory).conversions():
        if path < converted_directory(checkpoint):
            shutil.rmtree(path)


def outdated(
    steps: Iterable[int], keep: int, every: int | None = None, due: int = 1, also: Collection[int] = ()
) -> list[int]:
    """The steps whose checkpoints to remove, oldest first: all but the newest `keep`, multiples of `every`, and `also`.

    `keep` is 1 or more. The newest multiple of `due` is also kept, however many checkpoints were saved on request
    since, because a rollback returns to it.
    """
    ordered = sorted(step for step in steps if step not in also)
    back = max((step for step in ordered if step % due == 0), default=None)
    return [step for step in ordered[:-keep] if step != back and (every is None or step % every)]


def prune(stage_directory: Path, keep: int, every: int | None = None, due: int = 1, also: Collection[int] = ()) -> None:
    """Removes the `outdated` checkpoints, after checking that the newest is complete, by the sizes of its files.

    Each checkpoint is first hidden by a single rename, so no visible checkpoint is ever incomplete. Hidden checkpoints
    that a killed process left behind are removed too. Raises CheckpointError if the newest checkpoint is incomplete.
    """
    found = StagePaths(stage_directory).checkpoints()
    if found:
        verify_checkpoint(list(found.values())[-1], hashes=False)
    for step in outdated(found, keep, every, due, also):
        os.rename(found[step], removal_directory(found[step]))
    clear_leftovers(stage_directory)


def clear_leftovers(stage_directory: Path) -> None:
    """Removes directories that a process was writing or removing when it died. Errors are ignored until next time."""
    for leftover in StagePaths(stage_directory).leftovers():
        shutil.rmtree(leftover, ignore_errors=True)


def clear_stage(stage_directory: Path) -> None:
    """Removes everything that dead attempts may have left in a complete stage, except non-empty stack files."""
    clear_leftovers(stage_directory)
    remove_empty_stacks(StagePaths(stage_directory).stacks)
