"""Checkpoint directories: whole or not there, described by a manifest. No torch here.

Two kinds share the manifest. `parameters`: one safetensors file a parameter, what passes between stages and what every
tool reads. `engine`: DeepSpeed's own sharded files, for going on within a stage.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt

from model.config import ModelConfig
from model.errors import UserError
from stages.checkpoint.sealed import DocumentError, PlainPath, Sealed, check_inside, read_sealed, seal
from stages.stage_dir import MANIFEST_NAME, StagePaths, broken_directory, converted_directory, staging_directory

FORMAT_VERSION = 1

READERS = 4
"""Files hashed at a time."""

OnBytes = Callable[[int], None]
"""Is told of every file's bytes once they are read."""


class CheckpointError(UserError):
    """A checkpoint that cannot be used, in one sentence for the user: missing, broken, or of the wrong kind."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(_Strict):
    """One file of a checkpoint."""

    bytes: NonNegativeInt
    sha256: str
    """Of the whole file, tensor data and header."""

    rms: FiniteFloat | None = None
    """Root mean square of a parameter's value, to six digits: what a growth matches new tokens to."""


class Lineage(_Strict):
    """Where a checkpoint comes from."""

    operation: Literal["train", "expand", "shrink", "import"]
    parent: str | None = None
    """sha256 of the parent's manifest.json; null for a model trained from its initialisation."""

    details: dict[str, Any] = {}
    """What was done to the parent: tokens added, seed, steps trained."""


class Manifest(Sealed):
    """Everything about a checkpoint but its tensors."""

    format_version: int = FORMAT_VERSION
    kind: Literal["parameters", "engine"]
    model: ModelConfig
    """Sizes, and tau and key ramp of every Pattention and generation."""

    step: NonNegativeInt
    """Optimizer steps done in the stage that wrote this; 0 for one that was just expanded or imported."""

    group_steps: dict[str, NonNegativeInt]
    """Adam's step for each parameter group (`generation-0-decay`, ...). A group that is not named starts anew: step 0,
    and moments of zero, whatever its files hold."""

    samples_seen: NonNegativeInt
    """Training sequences consumed since the run's start: the position in the data."""

    seed: int
    dataset_fingerprint: str | None
    tokenizer_sha256: str | None
    world_size: int | None = None
    """Ranks that wrote an engine checkpoint; only as many can read it, others once it is converted."""

    zero_stage: int | None = None
    offload: Literal["none", "optimizer"] | None = None
    """Where the optimizer's state was; an engine checkpoint is read at the same ZeRO stage and offload."""

    precision: Literal["bf16", "fp32"] | None = None
    """In which an engine trained, or trains: a checkpoint within a stage resumes in its own."""

    files: dict[PlainPath, FileEntry]
    """By path within the directory."""

    lineage: Lineage


def parameter_file(name: str) -> str:
    """Where a `parameters` checkpoint keeps parameter `name`, relative to its directory."""
    return f"parameters/{name}.safetensors"


def read_manifest(directory: Path) -> Manifest:
    """The manifest of `directory`; CheckpointError where there is none or it is damaged.

    OSError where it cannot be read for now: a file server that is away is no damage.
    """
    path = directory / MANIFEST_NAME
    if not path.is_file():
        what = "is not a checkpoint: it has no manifest.json" if directory.exists() else "does not exist"
        raise CheckpointError(f"{directory} {what}")
    try:
        return read_sealed(path, Manifest, FORMAT_VERSION)
    except DocumentError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def sealed_manifest(manifest: Manifest, sign: Callable[[str], str] | None = None) -> Manifest:
    """`manifest` with its seal and with what `sign` makes of that."""
    sealed = seal(manifest.model_copy(update={"format_version": FORMAT_VERSION}))
    if sign is None:
        return sealed
    assert sealed.seal is not None
    return sealed.model_copy(update={"signature": sign(sealed.seal)})


def manifest_hash(directory: Path) -> str:
    """sha256 of the manifest file: the checkpoint's identity in a child's lineage."""
    return hash_file(directory / MANIFEST_NAME)


def hash_file(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(paths: Iterable[Path]) -> Iterator[str]:
    """sha256 of each file, in order, several files at a time; what reading one raises is raised in its place."""
    with ThreadPoolExecutor(READERS) as pool:  # hashlib lets other threads run
        yield from pool.map(hash_file, paths)


def verify_checkpoint(directory: Path, *, hashes: bool = True, on_bytes: OnBytes | None = None) -> Manifest:
    """The manifest, once every file it names is there with its size and (unless told otherwise) its sha256.

    Raises CheckpointError naming the first file that is missing or differs, or leads out of the directory by a link.
    """
    manifest = read_manifest(directory)
    for name, entry in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise CheckpointError(f"{directory} is broken: {name} is missing")
        try:
            check_inside(directory, name)
        except DocumentError as error:
            raise CheckpointError(f"{directory} is broken: {error}") from error
        if path.stat().st_size != entry.bytes:
            raise CheckpointError(f"{directory} is broken: {name} has {path.stat().st_size} bytes, not {entry.bytes}")
    if hashes:
        found = hash_files(directory / name for name in manifest.files)
        for name, entry in manifest.files.items():
            try:
                sha256 = next(found)
            except OSError as error:
                if error.errno != errno.EIO:  # others are not the file's fault
                    raise
                raise CheckpointError(f"{directory} is broken: {name} cannot be read: {error.strerror}") from error
            if sha256 != entry.sha256:
                raise CheckpointError(f"{directory} is broken: {name} does not have the hash in the manifest")
            if on_bytes:
                on_bytes(entry.bytes)
    return manifest


def begin_directory(directory: Path) -> Path:
    """Makes the empty staging directory of `directory`, clearing what an earlier death left in it."""
    staging = staging_directory(directory)
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(parents=True)
    return staging


def finish_directory(directory: Path, manifest: Manifest, sign: Callable[[str], str] | None = None) -> Manifest:
    """Writes the sealed manifest into the staging directory, forces the folders to disk, renames it to `directory`.

    The files are on the disk already: `write_file`, `list_files` and `link_or_copy` see to theirs. `sign` makes the
    signature of a seal. The manifest as it was written.
    """
    staging, sealed = staging_directory(directory), sealed_manifest(manifest, sign)
    write_file(staging / MANIFEST_NAME, sealed.model_dump_json(indent=1).encode())
    for folder in [*(path for path in staging.rglob("*") if path.is_dir()), staging]:
        sync_path(folder)
    os.rename(staging, directory)
    sync_path(directory.parent)
    return sealed


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A staging directory to fill and to end with `finish_directory`; on an error it is removed again.

    Raises CheckpointError when `directory` exists already.
    """
    if directory.exists():
        raise CheckpointError(f"{directory} exists already; choose another, growctl never overwrites a checkpoint")
    staging = begin_directory(directory)
    try:
        yield staging
    finally:
        if staging.exists():
            shutil.rmtree(staging)


def write_file(path: Path, data: bytes) -> FileEntry:
    """Writes `data` under a temporary name, forces it to disk and renames it: `path` is whole or as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def list_files(directory: Path) -> dict[str, FileEntry]:
    """Entries for every file below `directory`, by relative path, for those a library wrote; forces them to disk."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    for path in paths:
        sync_path(path)
    return {
        path.relative_to(directory).as_posix(): FileEntry(bytes=path.stat().st_size, sha256=hash_file(path))
        for path in paths
    }


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the file system allows one, else a copy, forced to disk. A link does not open the file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)
    sync_path(target)


def set_aside(directory: Path) -> Path:
    """Renames a broken directory to `broken-<name>` (numbered if need be); nothing is deleted. The new path."""
    for number in range(1, 1000):
        target = broken_directory(directory, number)
        if not target.exists():
            os.rename(directory, target)
            return target
    raise CheckpointError(f"{directory.parent} holds a thousand broken copies of {directory.name}; look at the disk")


def newest_checkpoint(
    stage_directory: Path, tell: Callable[[str], None], wanted: Callable[[Manifest], bool] = lambda _: True
) -> Path | None:
    """The newest whole `step_*` checkpoint of a stage that is `wanted`, or None.

    Broken ones are set aside, each with a message; so are those that went another way than the stage does now.
    """
    for directory in StagePaths(stage_directory).named_as_checkpoints():
        try:
            manifest = verify_checkpoint(directory)
        except CheckpointError as error:
            tell(f"{error}; moved to {set_aside(directory).name}, trying the one before it")
        else:
            if wanted(manifest):
                return directory
            tell(f"{directory} belongs to training that was rolled back; moved to {set_aside(directory).name}")
    return None


def remove_converted(stage_directory: Path, checkpoint: Path) -> None:
    """Removes what was converted of checkpoints before `checkpoint`, a whole `step_N`, and what was not finished.

    A death on the way leaves a conversion that is not whole, of a checkpoint that is not the newest: nobody reads it.
    """
    stage = StagePaths(stage_directory)
    old = [path for path in stage.conversions() if path < converted_directory(checkpoint)]
    for path in [*old, *stage.unfinished_conversions()]:
        shutil.rmtree(path)


def sync_path(path: Path) -> None:
    """Forces a file, or a folder's list of names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
