"""A checkpoint's files compared with its manifest. No torch here."""

import errno
from pathlib import Path

from stages.checkpoint.files import OnBytes, hash_files
from stages.checkpoint.manifest import CheckpointError, Manifest, read_manifest
from stages.checkpoint.sealed import DocumentError, check_inside


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
