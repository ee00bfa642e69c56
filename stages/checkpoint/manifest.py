"""Checkpoint directories: whole or not there, described by a manifest. No torch here.

There are two kinds, with the same form of manifest. A `parameters` checkpoint has one safetensors file per parameter;
stages pass it on, and every tool reads it. An `engine` checkpoint has DeepSpeed's own sharded files, to resume within a
stage.
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

from pydantic import FiniteFloat, NonNegativeInt

from model.config import ModelConfig
from model.errors import UserError
from model.precision import Precision
from model.strict import Strict
from stages.checkpoint.sealed import DocumentError, PlainPath, Sealed, check_inside, read_sealed, seal
from stages.spec import Offload
from stages.stage_dir import MANIFEST_NAME, StagePaths, broken_directory, converted_directory, staging_directory

FORMAT_VERSION = 1

READERS = 4
"""Files hashed at a time."""

Operation = Literal["train", "expand", "shrink", "import"]
"""What made a checkpoint."""

OnBytes = Callable[[int], None]
"""Called with the size of each file once it has been read."""


class CheckpointError(UserError):
    """A checkpoint is missing, broken, or of the wrong kind. The message is one line for the user."""


class FileEntry(Strict):
    """One file of a checkpoint."""

    bytes: NonNegativeInt
    sha256: str
    """Hash of the whole file, header included."""

    rms: FiniteFloat | None = None
    """Root mean square of a parameter's value, to six digits. Init `matched` scales new tokens to it."""


class Lineage(Strict):
    """Where a checkpoint comes from."""

    operation: Operation
    parent: str | None = None
    """sha256 of the parent's manifest.json; null for a model trained from scratch."""

    details: dict[str, Any] = {}
    """Arguments of the operation: tokens added, seed, steps trained."""


class Manifest(Sealed):
    """Everything about a checkpoint except its tensors."""

    format_version: int = FORMAT_VERSION
    kind: Literal["parameters", "engine"]
    model: ModelConfig
    """The model's configuration: sizes, and the tau and key ramp of every Pattention and generation."""

    step: NonNegativeInt
    """Optimizer steps done in the stage that wrote the checkpoint; 0 if it was just expanded or imported."""

    group_steps: dict[str, NonNegativeInt]
    """Adam's step for each parameter group (`generation-0-decay`, ...). Parameter groups missing from `group_steps`
    start at step 0 with moments of zero, whatever their files hold."""

    samples_seen: NonNegativeInt
    """Training sequences consumed since the start of the run: the position in the data."""

    seed: int
    dataset_fingerprint: str | None
    tokenizer_sha256: str | None
    world_size: int | None = None
    """The number of ranks that wrote an engine checkpoint. Another number of ranks must convert it first."""

    zero_stage: int | None = None
    offload: Offload | None = None
    """Where the optimizer state was. An engine checkpoint can only be read with the same ZeRO stage and offload."""

    precision: Precision | None = None
    """The precision that the stage trains in. A checkpoint within a stage resumes in the same precision."""

    files: dict[PlainPath, FileEntry]
    """The checkpoint's files, by path within the directory."""

    lineage: Lineage


def parameter_file(name: str) -> str:
    """The file of parameter `name` in a `parameters` checkpoint, relative to its directory."""
    return f"parameters/{name}.safetensors"


def read_manifest(directory: Path) -> Manifest:
    """The manifest of `directory`. Raises CheckpointError if there is none or it is damaged.

    Raises OSError if it cannot be read at the moment: an unavailable file server is not damage.
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
    """`manifest` with its seal and, given `sign`, the signature that it returns for the seal."""
    sealed = seal(manifest.model_copy(update={"format_version": FORMAT_VERSION}))
    if sign is None:
        return sealed
    assert sealed.seal is not None
    return sealed.model_copy(update={"signature": sign(sealed.seal)})


def manifest_hash(directory: Path) -> str:
    """sha256 of the manifest file, which identifies the checkpoint in the lineage of its children."""
    return hash_file(directory / MANIFEST_NAME)


def hash_file(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(paths: Iterable[Path]) -> Iterator[str]:
    """Yields the sha256 of each file, in order. Hashes several at a time; an error is raised at the file's position."""
    with ThreadPoolExecutor(READERS) as pool:  # hashlib releases the GIL
        yield from pool.map(hash_file, paths)


def verify_checkpoint(directory: Path, *, hashes: bool = True, on_bytes: OnBytes | None = None) -> Manifest:
    """Checks that every file in the manifest exists with its size and, with `hashes`, its sha256. Returns the manifest.

    Raises CheckpointError that names the first file that is missing, differs, or is a link out of the directory.
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
                if error.errno != errno.EIO:  # any other error does not mean that the file is damaged
                    raise
                raise CheckpointError(f"{directory} is broken: {name} cannot be read: {error.strerror}") from error
            if sha256 != entry.sha256:
                raise CheckpointError(f"{directory} is broken: {name} does not have the hash in the manifest")
            if on_bytes:
                on_bytes(entry.bytes)
    return manifest


def begin_directory(directory: Path) -> Path:
    """Creates an empty staging directory for `directory`. Removes one that a killed process left behind."""
    staging = staging_directory(directory)
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir(parents=True)
    return staging


def finish_directory(directory: Path, manifest: Manifest, sign: Callable[[str], str] | None = None) -> Manifest:
    """Writes the sealed manifest into the staging directory, syncs the folders, and renames it to `directory`.

    The other files must be synced already; `write_file`, `list_files` and `link_or_copy` do that. `sign` returns the
    signature of a seal. Returns the manifest as written.
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
    """Yields a staging directory to fill and complete with `finish_directory`. Removes it on an error.

    Raises CheckpointError if `directory` already exists.
    """
    if directory.exists():
        raise CheckpointError(f"{directory} already exists; choose another: growctl never overwrites a checkpoint")
    staging = begin_directory(directory)
    try:
        yield staging
    finally:
        if staging.exists():
            shutil.rmtree(staging)


def write_file(path: Path, data: bytes) -> FileEntry:
    """Writes `data` to a temporary file, syncs it and renames it to `path`, which is never incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def list_files(directory: Path) -> dict[str, FileEntry]:
    """Syncs all files below `directory`, which a library wrote. Returns their manifest entries by relative path."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    for path in paths:
        sync_path(path)
    return {
        path.relative_to(directory).as_posix(): FileEntry(bytes=path.stat().st_size, sha256=hash_file(path))
        for path in paths
    }


def link_or_copy(source: Path, target: Path) -> None:
    """Makes a hard link or, if the file system does not support it, a synced copy. A link does not open the file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)
    sync_path(target)


def set_aside(directory: Path) -> Path:
    """Renames a broken directory to `broken-<name>`, with a number if necessary. Returns its new path."""
    for number in range(1, 1000):
        target = broken_directory(directory, number)
        if not target.exists():
            os.rename(directory, target)
            return target
    raise CheckpointError(f"{directory.parent} has a thousand broken copies of {directory.name}; check the disk")


def newest_checkpoint(
    stage_directory: Path, tell: Callable[[str], None], wanted: Callable[[Manifest], bool] = lambda _: True
) -> Path | None:
    """The newest complete `step_*` checkpoint of a stage that is `wanted`, or None.

    Broken checkpoints are set aside with a message to `tell`, and so are those that are not `wanted`, because they
    belong to training that was rolled back.
    """
    for directory in StagePaths(stage_directory).named_as_checkpoints():
        try:
            manifest = verify_checkpoint(directory)
        except CheckpointError as error:
            tell(f"{error}; moved to {set_aside(directory).name}, trying the previous checkpoint")
        else:
            if wanted(manifest):
                return directory
            tell(f"{directory} belongs to training that was rolled back; moved to {set_aside(directory).name}")
    return None


def remove_converted(stage_directory: Path, checkpoint: Path) -> None:
    """Removes the conversions of all checkpoints older than `checkpoint` (a complete `step_N`), and unfinished ones.

    If the process dies meanwhile, a partly removed conversion remains. It belongs to an old checkpoint, so nothing
    reads it.
    """
    stage = StagePaths(stage_directory)
    old = [path for path in stage.conversions() if path < converted_directory(checkpoint)]
    for path in [*old, *stage.unfinished_conversions()]:
        shutil.rmtree(path)


def sync_path(path: Path) -> None:
    """Syncs a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
