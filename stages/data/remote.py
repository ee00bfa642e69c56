"""A dataset whose tokens lie at a URL: where, and how its shards are fetched, checked and kept.

    <datasets_dir>/<name>-<key>/
        manifest.json, tokenizer.json    copies of those at the URL
        remote.json                      RemoteReading
    <cache_dir>/
        3fa1...                          a shard, named by its sha256

The directory is a dataset like any other, except that TokenSplit fetches its shards whole, on use. All processes of a
machine share the cache. A shard that several datasets have is stored once, and each process checks it when it opens it.
The one that was opened least recently goes first; who has a removed one mapped reads it on.

A fault that may pass is retried with growing, random pauses for `retry_seconds` in all: a dropped connection, a server
that answers 500. A file that is missing, and a server that denies access, are an error at once.
"""

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from pydantic import PositiveInt, ValidationError

from model.strict import Strict, first_reason
from stages.checkpoint.disk_full import NO_SPACE, DiskFull
from stages.checkpoint.files import write_file
from stages.data.dataset import REMOTE_NAME, DatasetFile
from stages.data.errors import DataError, http_status, is_missing, reason

CACHE_NAME = ".shards"
"""The folder of the cache in a datasets directory."""

REQUEST_BYTES = 64 * 1024 * 1024
"""The most bytes of a shard in one request, so that a dropped connection costs no more."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0
ALTERED_TRIES = 3
"""How often a file is fetched whose bytes do not have their hash: what lies at the URL is probably altered."""
TEMPORARY = ".tmp"
ABANDONED_SECONDS = 3600
"""A temporary file that nobody has written to for so long belongs to a killed process."""
ROOM_SECONDS = 60.0
"""How long a shard waits for the room that others take which are being fetched. Then it exceeds the limit."""

_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


class RemoteReading(Strict):
    """Where the tokens of a dataset lie, and how they are read. Nothing here changes a token."""

    url: str
    cache_dir: str
    """The folder of the cache of shards: an absolute path, which may be another disk on each machine."""

    cache_bytes: PositiveInt
    """The most bytes that all shards in the cache take together."""

    retry_seconds: PositiveInt
    """How long a fault of the network is retried."""


def remote_reading(dataset_dir: Path) -> RemoteReading | None:
    """How the tokens of a dataset are read if they lie at a URL; None if they are in its directory."""
    path = dataset_dir / REMOTE_NAME
    try:
        return RemoteReading.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        why = first_reason(error) if isinstance(error, ValidationError) else error.strerror
        raise DataError(f"{path} cannot be read: {why}; prepare the dataset again") from error


def write_remote_reading(dataset_dir: Path, reading: RemoteReading) -> None:
    """Says how the tokens of a dataset are read from now on."""
    if remote_reading(dataset_dir) != reading:
        write_file(dataset_dir / REMOTE_NAME, reading.model_dump_json(indent=1).encode())


def fetch_if_remote(dataset_dir: Path, file: DatasetFile) -> None:
    """Fetches a file of a remote dataset into its directory if it is not there yet, such as the index of a shard."""
    reading = remote_reading(dataset_dir)
    if reading is not None and not (dataset_dir / file.name).exists():
        RemoteFiles(reading.url, reading.retry_seconds).fetch(file, content := BytesIO())
        write_file(dataset_dir / file.name, content.getvalue())


class ShardCache:
    """The shards in one directory. Safe in threads and in several processes. Makes the directory on first use."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes

    def path(self, file: DatasetFile) -> Path:
        """Where a shard lies if it is in the cache."""
        return self.directory / file.sha256

    def open(self, file: DatasetFile, fetch: Callable[[DatasetFile, IO[bytes]], None]) -> IO[bytes]:
        """A shard, after its hash was checked; `fetch` writes it if it is not in the cache.

        Marks it as used, and removes the shards used least recently to make room. Raises DiskFull if the disk is full,
        DataError if the directory cannot be written, and what `fetch` raises.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._locked(file.sha256[:2]):  # who needs the same shard waits
                with suppress(FileNotFoundError):
                    shard = self.path(file).open("rb")
                    if hashlib.file_digest(shard, "sha256").hexdigest() == file.sha256:
                        with suppress(OSError):  # it is another user's, or was removed to make room
                            os.utime(self.path(file))
                        return shard
                return self._fetched(file, fetch)
        except OSError as error:
            message = (
                f"data.cache_dir: the data cache {self.directory} cannot be written ({error.strerror}); free some space"
                " there, or set it to another folder on this machine"
            )
            raise (DiskFull if error.errno in NO_SPACE else DataError)(message) from error

    def _fetched(self, file: DatasetFile, fetch: Callable[[DatasetFile, IO[bytes]], None]) -> IO[bytes]:
        temporary = self.directory / f"{file.sha256}-{secrets.token_hex(4)}{TEMPORARY}"
        self._reserve(temporary, file.bytes)
        try:
            shard = temporary.open("r+b")
            fetch(file, shard)
            shard.flush()
            with self._locked("all"):
                os.replace(temporary, self.path(file))
            return shard
        finally:
            temporary.unlink(missing_ok=True)

    def _reserve(self, temporary: Path, num_bytes: int) -> None:
        """Makes room for a shard and holds it by a file of that size, which other processes count.

        Waits while what they are fetching leaves no room, at most ROOM_SECONDS.
        """
        give_up = time.monotonic() + ROOM_SECONDS
        while True:
            with self._locked("all"):
                if self._make_room(num_bytes) or time.monotonic() > give_up:
                    with temporary.open("wb") as reserved:
                        reserved.truncate(num_bytes)
                    return
            time.sleep(FIRST_PAUSE_SECONDS)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Waits until no other process or thread holds the lock. Does nothing on a file system without locks."""
        lock = os.open(self.directory / f".lock-{name}", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _make_room(self, num_bytes: int) -> bool:
        """Removes what killed processes left half-written, then the shards used least recently, until there is room;
        returns whether there is. Needs the lock of all."""
        files = []
        for path in self.directory.glob("[0-9a-f]*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                is_fetched = path.suffix == TEMPORARY and status.st_mtime > time.time() - ABANDONED_SECONDS
                files.append((is_fetched, path.suffix != TEMPORARY, status.st_atime_ns, status.st_size, path))
        total = num_bytes + sum(size for *_, size, _ in files)
        for is_fetched, *_, size, path in sorted(files):
            if total > self.limit_bytes and not is_fetched:
                path.unlink(missing_ok=True)
                total -= size
        return total <= self.limit_bytes


class RemoteFiles:
    """The files below a URL. Safe in threads. Connects on first use."""

    def __init__(self, url: str, retry_seconds: float) -> None:
        self.url = url.rstrip("/")
        self._retry_seconds = retry_seconds

    def fetch(self, file: DatasetFile, output: IO[bytes]) -> None:
        """Writes the content of `file` to `output`, in requests of REQUEST_BYTES.

        Raises DataError that names a file that is missing, truncated or altered, or cannot be reached.
        """
        for _ in range(ALTERED_TRIES):
            hashed = hashlib.sha256()
            output.seek(0)
            for start in range(0, file.bytes, REQUEST_BYTES):
                content = self.read(file.name, start, min(start + REQUEST_BYTES, file.bytes))
                hashed.update(content)
                output.write(content)
            if hashed.hexdigest() == file.sha256:
                return
        raise DataError(
            f"{self.url}/{file.name} is altered: its sha256 is {hashed.hexdigest()}, not {file.sha256} as in the"
            " dataset's manifest; upload the file again, or prepare the dataset again"
        )

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """The content of a file, or its bytes `start` to `stop`. Raises DataError as `fetch` does."""
        from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

        def attempt() -> bytes:
            fs, path = self._opened(name)
            content: bytes = fs.cat_file(path, start=start, end=stop)
            if start is not None and stop is not None:
                if len(content) > stop - start:
                    content = content[start:stop]  # from a server that ignores ranges
                if len(content) < stop - start:
                    raise ConnectionError(f"{len(content):,} bytes came instead of {stop - start:,}")
            return content

        tries = Retrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_random_exponential(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS),
            stop=stop_after_delay(self._retry_seconds),
            reraise=True,
        )
        where = f"{self.url}/{name}"
        try:
            return tries(attempt)
        except Exception as error:  # every library has its own error classes
            if is_missing(error):
                raise DataError(f"{where} does not exist; upload it again, or prepare the dataset again") from error
            tried = f", for {self._retry_seconds:g} s (data.retry_seconds)" if _may_pass(error) else ""
            raise DataError(f"{where} cannot be read{tried} ({reason(error)})") from error

    def content_if_there(self, name: str) -> bytes | None:
        """The content of a file; None if it is missing. Tries once, and raises what the file system raises."""
        fs, path = self._opened(name)
        try:
            content: bytes = fs.cat_file(path)
        except Exception as error:  # every library has its own error classes
            if is_missing(error):
                return None
            raise
        return content

    def _opened(self, name: str) -> tuple[Any, str]:
        import fsspec

        fs, path = fsspec.url_to_fs(f"{self.url}/{name}")
        return fs, path


def _may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, FileNotFoundError | PermissionError | ImportError | ValueError | TypeError):
        return False
    status = http_status(error)
    return status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING
