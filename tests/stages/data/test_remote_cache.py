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
    return DatasetFile(name=f"{number}.ds", bytes=SIZE, sha256=hashlib.sha256(content_of(number)).hexdigest())


class Origin:
    """Counts the fetches."""

    def __init__(self) -> None:
        self.num_fetched = 0

    def fetch(self, file: DatasetFile, output: IO[bytes]) -> None:
        self.num_fetched += 1
        output.write(content_of(int(file.name.removesuffix(".ds"))))


def get(cache: ShardCache, number: int, origin: Origin | None = None) -> Path:
    with cache.open(shard(number), (origin or Origin()).fetch) as file:
        file.seek(0)
        assert file.read() == content_of(number)
    return cache.path(shard(number))


def num_bytes(cache: ShardCache) -> int:
    with cache._locked("all"):
        return sum(path.stat().st_size for path in cache.directory.glob("[0-9a-f]*"))


def test_the_shard_used_least_recently_goes_first(tmp_path: Path) -> None:
    cache, origin = ShardCache(tmp_path / "cache", 4 * SIZE), Origin()
    for number in (0, 1, 2, 3, 0, 4):
        get(cache, number, origin)
    assert [cache.path(shard(number)).exists() for number in range(5)] == [True, False, True, True, True]
    get(ShardCache(cache.directory, 4 * SIZE), 0, origin)  # another process reads the same cache
    assert origin.num_fetched == 5


def test_a_removed_shard_is_still_read_by_whoever_has_it_open(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, SIZE)
    array = mapped(get(cache, 1), "<u2")
    get(cache, 2)
    assert not cache.path(shard(1)).exists()
    assert array.tolist() == [1] * (SIZE // 2)


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_hold_the_cache_is_one_error_that_names_the_key(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    message = rf"^data\.cache_dir: the data cache {tmp_path / name} cannot be written \("
    with pytest.raises(DataError, match=message):
        get(ShardCache(tmp_path / name, 4 * SIZE), 1)


def test_a_shard_that_another_user_stored_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    cache, origin = ShardCache(tmp_path, 4 * SIZE), Origin()
    get(cache, 1, origin)
    monkeypatch.setattr(os, "utime", denied)
    get(cache, 1, origin)
    assert origin.num_fetched == 1


def test_threads_and_processes_fetch_a_shard_once_and_stay_within_the_limit(tmp_path: Path) -> None:
    caches, origin = [ShardCache(tmp_path, 10 * SIZE) for _ in range(4)], Origin()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: get(caches[number % 4], 7, origin), range(40)))
        assert origin.num_fetched == 1

        def work(number: int) -> int:
            get(caches[number % 4], number % 25, origin)
            return num_bytes(caches[0])

        assert max(pool.map(work, range(300))) <= 10 * SIZE


@pytest.mark.parametrize("has_locks", [True, False])
def test_what_a_killed_process_left_goes_after_a_while_and_never_breaks_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_locks: bool
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    if not has_locks:
        monkeypatch.setattr("fcntl.flock", no_locks)
    cache, torn = ShardCache(tmp_path, 4 * SIZE), tmp_path / f"{shard(7).sha256}-0123{TEMPORARY}"
    torn.write_bytes(content_of(7)[:300])
    for number in range(6):
        get(cache, number)
        assert num_bytes(cache) <= 4 * SIZE
    assert torn.exists(), "perhaps a process is still writing it"
    os.utime(torn, (0, torn.stat().st_mtime - 2 * ABANDONED_SECONDS))
    get(cache, 8)
    assert not torn.exists()


def test_a_shard_waits_for_the_room_of_others_that_are_being_fetched(tmp_path: Path) -> None:
    cache, sizes = ShardCache(tmp_path, 2 * SIZE), list[int]()

    def fetch(file: DatasetFile, output: IO[bytes]) -> None:
        sizes.append(num_bytes(cache))
        time.sleep(0.02)
        Origin().fetch(file, output)
        sizes.append(num_bytes(cache))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: cache.open(shard(number), fetch).close(), range(6)))
    assert len(sizes) == 12
    assert max(sizes) <= 2 * SIZE


@pytest.mark.parametrize("damage", [b"", content_of(3)[:-2], content_of(4)])
def test_a_file_that_does_not_hold_what_its_name_says_is_fetched_again(tmp_path: Path, damage: bytes) -> None:
    cache, origin = ShardCache(tmp_path, 4 * SIZE), Origin()
    path = get(cache, 3, origin)
    path.unlink()
    path.write_bytes(damage)
    get(cache, 3, origin)
    assert origin.num_fetched == 2


def test_a_full_disk_is_one_error_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    def on_a_full_disk(file: DatasetFile, output: IO[bytes]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = ShardCache(tmp_path, 4 * SIZE)
    message = r"data\.cache_dir: the data cache .* cannot be written \(No space left on device\); free some space there"
    with pytest.raises(DiskFull, match=message):
        cache.open(shard(1), on_a_full_disk)
    assert num_bytes(cache) == 0
