"""Files of a prepared dataset that lie at a URL: fetched whole or in ranges, checked, and retried if the network fails.

A fault that may pass is retried with growing, random pauses for `retry_seconds` in all: a dropped connection, a server
that answers 500, bytes that do not have their hash. A file that is missing or has another size, and a server that
denies access or ignores ranges, are an error at once.
"""

import hashlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

import fsspec
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from stages.data.source_errors import REFUSED, DataError, http_status, is_missing, reason

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0
ALTERED_TRIES = 3
"""How often a file is fetched whose bytes do not have their hash: what lies at the URL is probably altered."""

_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_Fetched = TypeVar("_Fetched")


class Altered(DataError):
    """Bytes that do not have the hash in the manifest."""


class RemoteFiles:
    """The files below a URL. Safe in threads. Connects on first use, again after a fork."""

    def __init__(self, url: str, retry_seconds: float) -> None:
        self.url = url.rstrip("/")
        self._retry_seconds = retry_seconds

    def fetch(self, name: str, start: int, stop: int, sha256: str) -> bytes:
        """Bytes `start` to `stop` of a file, which have the hash `sha256`. Raises DataError that names the file."""
        where = f"bytes {start:,} to {stop:,} of {self.url}/{name}"

        def checked() -> bytes:
            fs, path = self._opened(name)
            try:
                content: bytes = fs.cat_file(path, start=start, end=stop)
            except Exception as error:  # every library has its own error classes
                if http_status(error) != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                content = b""  # the file ends before the range begins
            if len(content) > stop - start:
                raise DataError(
<<<<<<< HEAD
                    f"{self.url}/{name} cannot be read in ranges: the server sent {len(content):,} bytes, not the"
                    f" {stop - start:,} asked for; use a server or a store that answers range requests, or download the"
                    " dataset and give its directory"
                )
            if len(content) != stop - start:
=======
                    f"{where}: the server ignores ranges: it sent {len(content):,} bytes, not {stop - start:,}; use a"
                    " server that knows HTTP ranges, or download the dataset and give its directory"
                )
            if len(content) < stop - start:
>>>>>>> 7967f282abea4bab0db15a8af439f149aa3923af
                found = _size(fs, path)
                if found is not None and found < stop:
                    raise DataError(
                        f"{self.url}/{name} is truncated: it has {found:,} bytes, and bytes up to {stop:,} are needed;"
                        " upload it again, or prepare the dataset again"
                    )
                raise ConnectionError(f"{len(content):,} bytes came instead of {stop - start:,}")
            _require_hash(where, content, sha256)
            return content

        return self._retried(where, checked)

    def whole(self, name: str, sha256: str | None = None) -> bytes:
        """The content of a file; with the hash `sha256` if one is given. Raises DataError that names the file."""
        where = f"{self.url}/{name}"

        def checked() -> bytes:
            fs, path = self._opened(name)
            content: bytes = fs.cat_file(path)
            if sha256 is not None:
                _require_hash(where, content, sha256)
            return content

        return self._retried(where, checked)

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
        fs, path = fsspec.url_to_fs(f"{self.url}/{name}")
        return fs, path

    def _retried(self, where: str, attempt: Callable[[], _Fetched]) -> _Fetched:
        altered = 0

        def may_pass(error: BaseException) -> bool:
            nonlocal altered
            altered += isinstance(error, Altered)
            return altered < ALTERED_TRIES if isinstance(error, Altered) else _may_pass(error)

        tries = Retrying(
            retry=retry_if_exception(may_pass),
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
            if not _may_pass(error):
                raise DataError(f"{where} cannot be read ({reason(error)})") from error
            raise DataError(
                f"{where} cannot be read, for {self._retry_seconds:g} s (data.retry_seconds) ({reason(error)})"
            ) from error


def _size(fs: Any, path: str) -> int | None:
    """The size of a remote file now, whatever a listing said before."""
    fs.invalidate_cache()
    found = fs.info(path).get("size")
    return None if found is None else int(found)


def _require_hash(where: str, content: bytes, sha256: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise Altered(
            f"{where} are altered: their sha256 is {found}, not {sha256} as in the dataset's manifest; upload the"
            " file again, or prepare the dataset again"
        )


def _may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, DataError | FileNotFoundError | PermissionError | ImportError | ValueError | TypeError):
        return False
    status = http_status(error)
    if status in REFUSED or status == HTTPStatus.NOT_FOUND:
        return False
    if status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return True
    return status in _PASSING
