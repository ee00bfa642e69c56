"""A prepared dataset at a URL -> its directory here, which has everything but the tokens and document ends."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import sync_path, write_file
from stages.data.corpus import DataSpec
from stages.data.dataset import DatasetFile, DatasetManifest, read_dataset_manifest, verify_dataset
from stages.data.location import local_path
from stages.data.locked_dataset import locked
from stages.data.prepared import prepared_datasets
from stages.data.progress import Progress
from stages.data.remote_files import RemoteFiles
from stages.data.remote_reading import CACHE_NAME, RemoteReading, remote_reading, write_remote_reading
from stages.data.source_errors import DataError, reason
from stages.remote_shards.range_hashes import RANGES_ENDING
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME, staging_directory

_ASKED_AT_ONCE = 16
_OF_A_DATASET = {"splits", "fingerprint", "tokenizer_sha256"}
"""Keys that tell the manifest of a dataset from other files of that name."""


def remote_dataset(
    spec: DataSpec, datasets_dir: Path, progress: Progress, tell: Callable[[str], None] = lambda line: None
) -> Path | None:
    """The directory in `datasets_dir` of the dataset at the URL `spec.source`; None if no dataset lies there.

    Fetches and checks the manifest, the tokenizer and the hashes of ranges, and asks for the size of every shard. If
    the URL cannot be reached, a directory from before is enough; `tell` gets a line that says so. Raises DataError that
    names the file that is missing, has another size or is altered; CacheUnusable if the cache cannot be written.
    """
    if local_path(spec.source) is not None or "://" not in spec.source or "::" in spec.source:
        return None
    reading = reading_of(spec, spec.source, datasets_dir)
    files = reading.files()
    progress.say("looking for a prepared dataset")
    try:
        content = files.content_if_there(MANIFEST_NAME)
    except Exception as error:  # every library has its own error classes
        known = next((path for path, _ in prepared_datasets(spec, datasets_dir)), None)
        if known is None or remote_reading(known) is None:
            return None  # opening it as a text gives the message
        write_remote_reading(known, reading)
        tell(f"{spec.source} cannot be reached ({reason(error)}); {known} is used, which was fetched from there before")
        return known
    if content is None or not _is_dataset(content):
        return None
    return _fetched(content, reading, files, datasets_dir, progress)


def reading_of(spec: DataSpec, url: str, datasets_dir: Path) -> RemoteReading:
    """How a data block reads a dataset at a URL."""
    return RemoteReading(
        url=url.rstrip("/"),
        cache_dir=str(Path(spec.cache_dir or datasets_dir / CACHE_NAME).absolute()),
        cache_bytes=spec.cache_bytes,
        retry_seconds=spec.retry_seconds,
    )


def _is_dataset(content: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        document = json.loads(content)
        return isinstance(document, dict) and document.keys() >= _OF_A_DATASET
    return False


def _fetched(
    content: bytes, reading: RemoteReading, files: RemoteFiles, datasets_dir: Path, progress: Progress
) -> Path:
    """The directory of the dataset whose manifest is `content`, from before or fetched now."""
    name = reading.url.rpartition("/")[2]
    key = hashlib.sha256(reading.url.encode() + b"\0" + content).hexdigest()[:12]
    target = datasets_dir / f"{name}-at-{key}"
    if _is_there(target, reading):
        return target
    with raise_when_full(datasets_dir):
        datasets_dir.mkdir(parents=True, exist_ok=True)
        with locked(target, progress):
            if not _is_there(target, reading):
                _fetch(content, reading, files, target, progress)
    return target


def _is_there(target: Path, reading: RemoteReading) -> bool:
    """Whether the dataset `target` is whole; then it is read by `reading` from now on."""
    with suppress(DataError):
        verify_dataset(target)
        write_remote_reading(target, reading)
        return True
    return False


def _fetch(content: bytes, reading: RemoteReading, files: RemoteFiles, target: Path, progress: Progress) -> None:
    """Fetches the dataset whose manifest is `content` into `target`. The lock keeps others away, where there are locks;
    elsewhere the name of the hidden directory does."""
    beside = staging_directory(target)
    staging = beside.with_name(f"{beside.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        write_file(staging / MANIFEST_NAME, content)
        manifest = _manifest(staging, reading.url)
        progress.say("fetching the hashes of the dataset")
        write_file(staging / TOKENIZER_NAME, files.whole(TOKENIZER_NAME, manifest.tokenizer_sha256))
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            list(pool.map(lambda file: _take(staging, files, file), manifest.files))
        write_remote_reading(staging, reading)
        verify_dataset(staging)
        sync_path(staging)
        shutil.rmtree(target, ignore_errors=True)  # it was damaged, and everything in it is a copy
        with suppress(OSError):  # another process was faster
            os.rename(staging, target)
        sync_path(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    verify_dataset(target)


def _manifest(staging: Path, url: str) -> DatasetManifest:
    try:
        manifest = read_dataset_manifest(staging)
    except DataError as error:
        raise DataError(f"{url}/{MANIFEST_NAME} cannot be used: {error.__cause__ or error}") from error
    if manifest.sources:
        raise DataError(
            f"{url} is a mixture, which has no tokens; name its sources in data.mixture, each by the URL of its dataset"
        )
    names = {file.name for file in manifest.files}
    for file in manifest.files:
        if file.name.endswith(".ds") and file.name + RANGES_ENDING not in names:
            raise DataError(
                f"{url} has no hashes of the ranges of {file.name}, so its tokens could not be checked when they are"
                " read; prepare the dataset again, or download it and give its directory"
            )
    return manifest


def _take(staging: Path, files: RemoteFiles, file: DatasetFile) -> None:
    """Fetches the hashes of a shard's ranges; checks the size of every other file."""
    if file.name.endswith(RANGES_ENDING):
        write_file(staging / file.name, files.whole(file.name, file.sha256))
    elif (size := files.size(file.name)) not in (None, file.bytes):
        raise DataError(
            f"{files.url}/{file.name} has {size:,} bytes, not {file.bytes:,} as in the manifest: it is truncated or"
            " belongs to another dataset; upload it again"
        )
