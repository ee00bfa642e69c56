"""The cache of shards: bounded, whole files only, least recently used first out, whatever is killed or full."""

import errno
import fcntl
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from model.errors import UserError
from stages.data.dataset import DatasetFile
from stages.data.remote import ABANDONED_SECONDS, TEMPORARY, CacheFull, ShardCache
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

    def fetch(self, file: DatasetFile, path: Path) -> None:
        self.num_fetched += 1
        with path.open("r+b") as output:
            output.write(content_of(int(file.name.removesuffix(".ds"))))


def get(cache: ShardCache, number: int, origin: Origin | None = None) -> Path:
    path = cache.get(shard(number), (origin or Origin()).fetch, lambda path: path)
    assert path.read_bytes() == content_of(number)
    return path


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
    cache = ShardCache(tmp_path / name, 4 * SIZE)
    message = rf"^data\.cache_dir: the data cache {tmp_path / name} cannot be written \("
    with pytest.raises(UserError, match=message):
        cache.require_usable()
    with pytest.raises(UserError, match=message):
        get(cache, 1)


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
            caches[number % 4].get(shard(number % 25), origin.fetch, Path.read_bytes)
            return caches[0].num_bytes()

        assert max(pool.map(work, range(300))) <= 10 * SIZE


def test_what_killed_processes_left_neither_breaks_the_limit_nor_stays(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 4 * SIZE)
    torn = tmp_path / f"{shard(7).sha256}-0123{TEMPORARY}"
    torn.write_bytes(content_of(7)[:300])
    with torn.open("rb") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        for number in range(6):
            get(cache, number)
            assert cache.num_bytes() <= 4 * SIZE
        assert torn.exists(), "a process is still writing it"
    get(cache, 8)
    assert not torn.exists()


def test_without_locks_only_an_old_file_counts_as_left_by_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    cache, torn = ShardCache(tmp_path, 4 * SIZE), tmp_path / f"{shard(7).sha256}-0123{TEMPORARY}"
    torn.write_bytes(content_of(7)[:300])
    get(cache, 1)
    assert torn.exists(), "perhaps a process is still writing it"
    os.utime(torn, (0, torn.stat().st_mtime - 2 * ABANDONED_SECONDS))
    get(cache, 2)
    assert not torn.exists()


def test_a_shard_waits_for_the_room_of_others_that_are_being_fetched(tmp_path: Path) -> None:
    cache, sizes = ShardCache(tmp_path, 2 * SIZE), list[int]()

    def fetch(file: DatasetFile, path: Path) -> None:
        sizes.append(cache.num_bytes())
        time.sleep(0.02)
        Origin().fetch(file, path)
        sizes.append(cache.num_bytes())

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: cache.get(shard(number), fetch, Path.read_bytes), range(6)))
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


def test_the_cache_shrinks_on_a_full_disk_until_nothing_is_left(tmp_path: Path) -> None:
    cache, room = ShardCache(tmp_path, 100 * SIZE), 4 * SIZE

    def on_a_small_disk(file: DatasetFile, path: Path) -> None:
        if cache.num_bytes() > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        Origin().fetch(file, path)

    for number in range(20):
        cache.get(shard(number), on_a_small_disk, Path.read_bytes)
        assert cache.num_bytes() <= room
    room = 0
    message = r"the disk of the data cache .* is full, and no shard is left .*: free some space, or set data\.cache_dir"
    with pytest.raises(CacheFull, match=message):
        cache.get(shard(30), on_a_small_disk, Path.read_bytes)
    assert cache.num_bytes() == 0
