"""The cache of shards: bounded, whole files only, least recently used first out, whatever is killed or full."""

import errno
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from stages.checkpoint.disk_full import DiskFull
from stages.data.dataset import DatasetFile
from stages.data.errors import DataError
from stages.data.remote import ABANDONED_SECONDS, TEMPORARY, ShardCache
from stages.data.tokens import mapped

SIZE = 1000


def content_of(number: int) -> bytes:
    return np.full(SIZE // 2, number, "<u2").tobytes()


def shard(number: int) -> DatasetFile:
    return DatasetFile(name=str(number), bytes=SIZE, sha256=hashlib.sha256(content_of(number)).hexdigest())


class Cache(ShardCache):
    """Of shards that are known by their numbers. Counts the fetches."""

    num_fetched = 0

    def fetch(self, file: DatasetFile, output: IO[bytes]) -> None:
        self.num_fetched += 1
        output.write(content_of(int(file.name)))

    def get(self, number: int) -> Path:
        with self.open(shard(number), self.fetch) as file:
            file.seek(0)
            assert file.read() == content_of(number)
        return self.path(shard(number))

    def num_bytes(self) -> int:
        with self._locked("all"):
            return sum(path.stat().st_size for path in self.directory.glob("[0-9a-f]*"))


def test_the_shard_used_least_recently_goes_first(tmp_path):
    cache = Cache(tmp_path / "cache", 4 * SIZE)
    paths = [cache.get(number) for number in (0, 1, 2, 3, 0, 4)]
    assert [path.exists() for path in paths] == [True, False, True, True, True, True]
    another = Cache(cache.directory, 4 * SIZE)
    another.get(0)
    assert (cache.num_fetched, another.num_fetched) == (5, 0)


def test_a_removed_shard_is_still_read_by_whoever_has_it_open(tmp_path):
    cache = Cache(tmp_path, SIZE)
    path = cache.get(1)
    array = mapped(path, "<u2")
    cache.get(2)
    assert not path.exists()
    assert array.tolist() == [1] * (SIZE // 2)


def test_a_shard_that_another_user_stored_is_read(tmp_path, monkeypatch):
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    cache = Cache(tmp_path, 4 * SIZE)
    cache.get(1)
    monkeypatch.setattr(os, "utime", denied)
    cache.get(1)
    assert cache.num_fetched == 1


def test_threads_and_processes_fetch_a_shard_once_and_stay_within_the_limit(tmp_path):
    caches = [Cache(tmp_path, 10 * SIZE) for _ in range(4)]

    def size_after(number: int) -> int:
        caches[number % 4].get(number % 25)
        return caches[0].num_bytes()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: caches[number % 4].get(7), range(40)))
        assert sum(cache.num_fetched for cache in caches) == 1
        assert max(pool.map(size_after, range(300))) <= 10 * SIZE


@pytest.mark.parametrize("has_locks", [True, False])
def test_what_a_killed_process_left_goes_after_a_while_and_never_breaks_the_limit(tmp_path, monkeypatch, has_locks):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    if not has_locks:
        monkeypatch.setattr("fcntl.flock", no_locks)
    cache, torn = Cache(tmp_path, 4 * SIZE), tmp_path / f"{shard(7).sha256}-0123{TEMPORARY}"
    torn.write_bytes(content_of(7)[:300])
    for number in range(6):
        cache.get(number)
        assert cache.num_bytes() <= 4 * SIZE
    assert torn.exists(), "perhaps a process is still writing it"
    os.utime(torn, (0, torn.stat().st_mtime - 2 * ABANDONED_SECONDS))
    cache.get(8)
    assert not torn.exists()


def test_a_shard_waits_for_the_room_of_others_that_are_being_fetched(tmp_path, monkeypatch):
    sizes, plain = [], Cache.fetch

    def slow(cache: Cache, file: DatasetFile, output: IO[bytes]) -> None:
        sizes.append(cache.num_bytes())
        time.sleep(0.02)
        plain(cache, file, output)
        sizes.append(cache.num_bytes())

    monkeypatch.setattr(Cache, "fetch", slow)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(Cache(tmp_path, 2 * SIZE).get, range(6)))
    assert len(sizes) == 12
    assert max(sizes) <= 2 * SIZE


@pytest.mark.parametrize("damage", [b"", content_of(3)[:-2], content_of(4)], ids=["empty", "cut", "another"])
def test_a_file_that_does_not_hold_what_its_name_says_is_fetched_again(tmp_path, damage):
    cache = Cache(tmp_path, 4 * SIZE)
    cache.get(3).write_bytes(damage)
    cache.get(3)
    assert cache.num_fetched == 2


def test_a_cache_that_cannot_be_written_is_one_error_that_names_the_key_and_leaves_nothing_half_written(tmp_path):
    def on_a_full_disk(file: DatasetFile, output: IO[bytes]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = Cache(tmp_path, 4 * SIZE)
    with pytest.raises(DiskFull, match=r"^data\.cache_dir: the data cache .* \(No space left on device\); free some"):
        cache.open(shard(1), on_a_full_disk)
    assert cache.num_bytes() == 0
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(DataError, match=rf"^data\.cache_dir: the data cache {folder} cannot be written \("):
            Cache(folder, 4 * SIZE).get(1)
