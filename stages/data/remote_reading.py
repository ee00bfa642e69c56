"""A dataset whose tokens lie at a URL: the small file in its directory here that says where, and how they are read.

    <datasets_dir>/<name>-<key>/
        manifest.json, tokenizer.json    copies of those at the URL
        train/00000.ds.ranges, ...       copies of the hashes of the shards' ranges
        remote.json                      RemoteReading

The directory is a dataset like any other, except that TokenSplit fetches its tokens. Whoever trains, evaluates or looks
at it gives its path.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import PositiveInt, ValidationError

from model.strict import Strict, first_reason
from stages.checkpoint.files import write_file
from stages.data.source_errors import DataError

if TYPE_CHECKING:
    from stages.data.remote_files import RemoteFiles
    from stages.remote_shards.range_cache import RangeCache

REMOTE_NAME = "remote.json"
CACHE_NAME = ".ranges"
"""The folder of the cache in a datasets directory."""


class RemoteReading(Strict):
    """Where the tokens of a dataset lie, and how they are read. Nothing here changes a token."""

    url: str
    cache_dir: str
    """The folder of the cache of ranges: an absolute path, which may be another disk on each machine."""

    cache_bytes: PositiveInt
    """The most bytes that all ranges in the cache take together."""

    retry_seconds: PositiveInt
    """How long a fault of the network is retried."""

    def files(self) -> "RemoteFiles":
        """The files at the URL."""
        from stages.data.remote_files import RemoteFiles  # tenacity: only where tokens are remote

        return RemoteFiles(self.url, self.retry_seconds)

    def cache(self) -> "RangeCache":
        """The cache of this machine."""
        from stages.remote_shards.range_cache import RangeCache

        return RangeCache(Path(self.cache_dir), self.cache_bytes)


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
