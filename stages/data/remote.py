"""A dataset whose tokens lie at a URL: where, and how its shards are fetched, checked and kept.

    <datasets_dir>/<name>-<key>/
        manifest.json, tokenizer.json    copies of those at the URL
        remote.json                      RemoteReading
    <cache_dir>/
        3fa1...                          a shard, named by its sha256

The directory is a dataset like any other, except that TokenSplit fetches its shards whole, on use. All processes of a
machine share the cache. A shard that several datasets have is stored once, and each process checks it when it first
opens it. The one that was opened least recently goes first; who has a removed one mapped reads it on.

A fault that may pass is retried with growing, random pauses for `retry_seconds` in all: a dropped connection, a server
that answers 500. A file that is missing or has another size, and a server that denies access, are an error at once.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from pydantic import PositiveInt, ValidationError

from model.errors import Failure, UserError
from model.strict import Strict, first_reason
from stages.checkpoint.disk_full import NO_SPACE
from stages.checkpoint.files import hash_file, write_file
from stages.data.dataset import REMOTE_NAME, DatasetFile
from stages.data.errors import REFUSED, DataError, http_status, is_missing, reason

CACHE_NAME = ".shards"
"""The folder of the cache in a datasets directory."""

REQUEST_BYTES = 64 * 1024 * 1024
"""The most bytes of a shard in one request, so that a dropped connection costs no more."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0
ALTERED_TRIES = 3
"""How often a file is fetched whose bytes do not have their hash: what lies at the URL is probably altered."""
TEMPORARY = ".tmp"
ABANDONED_SECONDS = 3600
"""On a file system without locks, a temporary file of that age belongs to a killed process."""
ROOM_SECONDS = 60.0
"""How long a shard waits for the room that others take which are being fetched. Then it exceeds the limit."""

_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_Fetched = TypeVar("_Fetched")
_Opened = TypeVar("_Opened")


class CacheFull(Failure):
    """The cache's disk is full, and no shard is left that could be removed."""


class CacheUnusable(UserError):
    """A folder that cannot hold the cache."""


class RemoteReading(Strict):
    """Where the tokens of a dataset lie, and how they are read. Nothing here changes a token."""

    url: str
    cache_dir: str
    """The folder of the cache of shards: an absolute path, which may be another disk on each machine."""

    cache_bytes: PositiveInt
    """The most bytes that all shards in the cache take together."""

    retry_seconds: PositiveInt
    """How long a fault of the network is retried."""

    def files(self) -> "RemoteFiles":
        """The files at the URL."""
        return RemoteFiles(self.url, self.retry_seconds)

    def cache(self) -> "ShardCache":
        """The cache of this machine."""
        return ShardCache(Path(self.cache_dir), self.cache_bytes)


def remote_reading(dataset_dir: Path) -> RemoteReading | None:
    """How the tokens of a dataset are read if they lie at a URL; None if they are in its directory."""
    path = dataset_dir / REMOTE_NAME
    try:
        return RemoteReading.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise DataError(f"{path} is damaged: {first_reason(error)}; prepare the dataset again") from error


def write_remote_reading(dataset_dir: Path, reading: RemoteReading) -> None:
    """Says how the tokens of a dataset are read from now on. Raises CacheUnusable if a new cache cannot be written."""
    if remote_reading(dataset_dir) != reading:
        reading.cache().require_usable()
        write_file(dataset_dir / REMOTE_NAME, reading.model_dump_json(indent=1).encode())


def fetch_if_remote(dataset_dir: Path, name: str, sha256: str) -> None:
    """Fetches a file of a remote dataset into its directory if it is not there yet, such as the index of a shard."""
    reading = remote_reading(dataset_dir)
    if reading is not None and not (dataset_dir / name).exists():
        write_file(dataset_dir / name, reading.files().whole(name, sha256))


class ShardCache:
    """The shards in one directory. Safe in threads and in several processes. Makes the directory on first use."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._checked: dict[str, tuple[int, int]] = {}
        """By name, the inode and the modification time of each file that this process has checked."""

    def path(self, file: DatasetFile) -> Path:
        """Where a shard lies if it is in the cache."""
        return self.directory / file.sha256

    def get(
        self, file: DatasetFile, fetch: Callable[[DatasetFile, Path], None], opened: Callable[[Path], _Opened]
    ) -> _Opened:
        """What `opened` gives for the path of a shard, which `fetch` writes there if it is not in the cache whole.

        Marks it as used. Removes the shards used least recently to make room. On a full disk, removes half of them and
        tries again; raises CacheFull if none is left, CacheUnusable if it cannot write, and what `fetch` raises.
        """
        while True:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                with self._locked(file.sha256[:2]):  # who needs the same shard waits
                    if not self._is_whole(file):
                        self._store(file, fetch)
                    path = self.path(file)
                    with suppress(PermissionError):  # another user's
                        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
                return opened(path)
            except FileNotFoundError:
                continue  # another process removed it, to make room
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise self._unusable(error) from error
                if not self._shrink():
                    raise CacheFull(
                        f"the disk of the data cache {self.directory} is full, and no shard is left in it to remove:"
                        " free some space, or set data.cache_dir to a folder on another disk"
                    ) from error

    def require_usable(self) -> None:
        """Makes the directory. Raises CacheUnusable if this process cannot write there."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self._locked("all"):
                return
        except OSError as error:
            if error.errno not in NO_SPACE:  # a full disk is an error once a shard is there to write
                raise self._unusable(error) from error

    def num_bytes(self) -> int:
        """The bytes of all shards in the directory."""
        with self._locked("all"):
            return sum(size for _, size, _ in self._files())

    def _unusable(self, error: OSError) -> CacheUnusable:
        return CacheUnusable(
            f"data.cache_dir: the data cache {self.directory} cannot be written ({error.strerror}); set it to a folder"
            " on this machine that you may write to"
        )

    def _is_whole(self, file: DatasetFile) -> bool:
        """Whether a shard is there, with the content that its name says; removes another one."""
        path = self.path(file)
        try:
            status = path.stat()
            identity = (status.st_ino, status.st_mtime_ns)
            if self._checked.get(path.name) != identity:
                if status.st_size != file.bytes or hash_file(path) != file.sha256:
                    path.unlink()
                    return False
                self._checked[path.name] = identity
        except FileNotFoundError:
            return False
        return True

    def _store(self, file: DatasetFile, fetch: Callable[[DatasetFile, Path], None]) -> None:
        temporary = self.directory / f"{file.sha256}-{secrets.token_hex(4)}{TEMPORARY}"
        try:
            with self._reserved(temporary, file.bytes):
                fetch(file, temporary)
                with self._locked("all"):
                    os.replace(temporary, self.path(file))
            status = self.path(file).stat()
            self._checked[file.sha256] = (status.st_ino, status.st_mtime_ns)
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _reserved(self, temporary: Path, num_bytes: int) -> Iterator[None]:
        """Makes room for a shard and holds it by a locked file of that size, which other processes count.

        Waits while what they are fetching leaves no room, at most ROOM_SECONDS.
        """
        give_up = time.monotonic() + ROOM_SECONDS
        while True:
            with self._locked("all"):
                if self._make_room(self.limit_bytes - num_bytes) or time.monotonic() > give_up:
                    reserved = temporary.open("wb")
                    with suppress(OSError):
                        fcntl.flock(reserved, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    reserved.truncate(num_bytes)
                    break
            time.sleep(FIRST_PAUSE_SECONDS)
        with reserved:
            yield

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

    def _make_room(self, most_bytes: int) -> bool:
        """Removes the shards used least recently until `most_bytes` remain; returns whether they do. Needs the lock of
        all."""
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= most_bytes:
                break
            if path.suffix != TEMPORARY:  # another process is writing it
                path.unlink(missing_ok=True)
                total -= size
        return total <= most_bytes

    def _shrink(self) -> bool:
        """Removes half of the shards, after a write that found the disk full; returns whether there were any."""
        try:
            with self._locked("all"):
                total = sum(size for _, size, path in self._files() if path.suffix != TEMPORARY)
                self._make_room(total // 2)
                return total > 0
        except OSError as error:
            if error.errno not in (*NO_SPACE, errno.ENOENT):
                raise
            return False

    def _files(self) -> Iterator[tuple[int, int, Path]]:
        """(time of the last use, bytes, path) of each file. Removes what killed processes left half-written."""
        for path in self.directory.glob("[0-9a-f]*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                if path.suffix == TEMPORARY and _is_abandoned(path, status.st_mtime):
                    path.unlink()
                    continue
                yield status.st_atime_ns, status.st_size, path


def _is_abandoned(temporary: Path, modified: float) -> bool:
    """Whether nobody writes a temporary file any more: its lock is free or, without locks, it is old."""
    with temporary.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return modified < time.time() - ABANDONED_SECONDS
    return True


class RemoteFiles:
    """The files below a URL. Safe in threads. Connects on first use, again after a fork."""

    def __init__(self, url: str, retry_seconds: float) -> None:
        self.url = url.rstrip("/")
        self._retry_seconds = retry_seconds

    def fetch(self, file: DatasetFile, path: Path) -> None:
        """Writes the content of `file` to `path`, a file of its size, in requests of REQUEST_BYTES.

        Raises DataError that names a file that is missing, truncated or altered, or cannot be reached.
        """
        for attempt in range(1, ALTERED_TRIES + 1):
            hashed = hashlib.sha256()
            with path.open("r+b") as output:
                for start in range(0, file.bytes, REQUEST_BYTES):
                    content = self._range(file.name, start, min(start + REQUEST_BYTES, file.bytes))
                    hashed.update(content)
                    output.write(content)
            if hashed.hexdigest() == file.sha256:
                return
            if attempt == ALTERED_TRIES:
                raise self._altered(file.name, hashed.hexdigest(), file.sha256)

    def _range(self, name: str, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a file."""
        where = f"{self.url}/{name}"

        def attempt() -> bytes:
            fs, path = self._opened(name)
            try:
                content: bytes = fs.cat_file(path, start=start, end=stop)
            except Exception as error:  # every library has its own error classes
                if http_status(error) != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                content = b""  # the file ends before the range begins
            if len(content) > stop - start:
                raise DataError(
                    f"{where} cannot be read in ranges: the server sent {len(content):,} bytes, not the"
                    f" {stop - start:,} asked for; use a server or a store that answers range requests, or download the"
                    " dataset and give its directory"
                )
            if len(content) < stop - start:
                size = _size(fs, path)
                if size is not None and size < stop:
                    raise DataError(
                        f"{where} is truncated: it has {size:,} bytes, and bytes up to {stop:,} are needed; upload it"
                        " again, or prepare the dataset again"
                    )
                raise ConnectionError(f"{len(content):,} bytes came instead of {stop - start:,}")
            return content

        return self._retried(where, attempt)

    def whole(self, name: str, sha256: str) -> bytes:
        """The content of a small file with the hash `sha256`. Raises DataError that names the file."""

        def attempt() -> bytes:
            fs, path = self._opened(name)
            content: bytes = fs.cat_file(path)
            return content

        for _ in range(ALTERED_TRIES):
            content = self._retried(f"{self.url}/{name}", attempt)
            actual = hashlib.sha256(content).hexdigest()
            if actual == sha256:
                return content
        raise self._altered(name, actual, sha256)

    def size(self, name: str) -> int | None:
        """The bytes of a file; None if the server does not say. Raises DataError if it is missing."""
        return self._retried(f"{self.url}/{name}", lambda: _size(*self._opened(name)))

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

    def _altered(self, name: str, actual: str, sha256: str) -> DataError:
        return DataError(
            f"{self.url}/{name} is altered: its sha256 is {actual}, not {sha256} as in the dataset's manifest; upload"
            " the file again, or prepare the dataset again"
        )

    def _retried(self, where: str, attempt: Callable[[], _Fetched]) -> _Fetched:
        from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

        tries = Retrying(
            retry=retry_if_exception(_may_pass),
            wait=wait_random_exponential(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS),
            stop=stop_after_delay(self._retry_seconds),
            reraise=True,
        )
        try:
            return tries(attempt)
        except DataError:
            raise
        except Exception as error:  # every library has its own error classes
            if is_missing(error):
                raise DataError(f"{where} does not exist; upload it again, or prepare the dataset again") from error
            tried = f", for {self._retry_seconds:g} s (data.retry_seconds)" if _may_pass(error) else ""
            raise DataError(f"{where} cannot be read{tried} ({reason(error)})") from error


def _size(fs: Any, path: str) -> int | None:
    """The size of a remote file now, whatever a listing said before."""
    fs.invalidate_cache()
    size = fs.info(path).get("size")
    return None if size is None else int(size)


def _may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, DataError | FileNotFoundError | PermissionError | ImportError | ValueError | TypeError):
        return False
    status = http_status(error)
    if status in REFUSED or status == HTTPStatus.NOT_FOUND:
        return False
    return status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING
