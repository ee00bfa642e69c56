"""The cache of ranges: bounded, whole files only, least recently used first out, whatever is killed or full."""

import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from model.errors import UserError
from stages.remote_shards import range_cache
from stages.remote_shards.range_cache import ABANDONED_SECONDS, BYTES_FILE, CacheFull, RangeCache

SIZE = 1000


def content_of(number: int) -> bytes:
    return np.full(SIZE // 2, number, "<u2").tobytes()


def name_of(number: int) -> str:
    return hashlib.sha256(content_of(number)).hexdigest()


def store(cache: RangeCache, number: int) -> None:
    cache.store(name_of(number), content_of(number))


def has(cache: RangeCache, number: int) -> bool:
    """Whether a range is there and whole."""
    found = cache.open(name_of(number), SIZE, "<u2")
    assert found is None or found.tolist() == [number] * (SIZE // 2)
    return found is not None


def test_the_range_used_least_recently_goes_first(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path / "cache", 4 * SIZE)
    for number in range(4):
        store(cache, number)
    assert has(cache, 0)
    store(cache, 4)
    assert [cache.has(name_of(number)) for number in range(5)] == [True, False, True, True, True]
    assert has(RangeCache(cache.directory, 4 * SIZE), 0), "another process reads the same cache"


def test_a_removed_range_is_still_read_by_whoever_has_it_open(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, SIZE)
    store(cache, 1)
    array = cache.open(name_of(1), SIZE, "<u2")
    store(cache, 2)
    assert not cache.has(name_of(1))
    assert array is not None
    assert array.tolist() == [1] * (SIZE // 2)


def test_open_ranges_take_no_file_descriptors_and_cannot_be_written(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, 100 * SIZE)
    for number in range(50):
        store(cache, number)
    before = len(os.listdir("/proc/self/fd"))
    arrays = [cache.open(name_of(number), SIZE, "<u2") for number in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    for array in arrays:
        assert array is not None
        assert not array.flags.writeable


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_hold_the_cache_is_one_error_that_names_the_key(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    cache = RangeCache(tmp_path / name, 4 * SIZE)
    message = rf"^data\.cache_dir: the data cache {tmp_path / name} cannot be written \("
    with pytest.raises(UserError, match=message):
        cache.require_usable()
    with pytest.raises(UserError, match=message):
        store(cache, 1)


def test_a_range_that_another_user_stored_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = RangeCache(tmp_path, 4 * SIZE)
    store(cache, 1)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "utime", denied)
    assert has(cache, 1)
    assert cache.read(name_of(1), 0, 2) == content_of(1)[:2]


def test_writers_at_the_same_time_stay_within_the_limit(tmp_path: Path) -> None:
    caches = [RangeCache(tmp_path, 10 * SIZE) for _ in range(4)]

    def work(number: int) -> int:
        store(caches[number % 4], number % 25)
        has(caches[(number + 1) % 4], number % 25)
        return caches[0].num_bytes()

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(work, range(300))) <= 10 * SIZE


def test_what_killed_processes_left_neither_breaks_the_limit_nor_stays(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, 4 * SIZE)
    for number in range(4):
        store(cache, number)
    (tmp_path / BYTES_FILE).write_bytes(b"")  # killed between opening and writing it
    torn = tmp_path / name_of(7)[:2] / f"{name_of(7)}-0123{range_cache.TEMPORARY}"
    torn.parent.mkdir(exist_ok=True)
    torn.write_bytes(content_of(7)[:300])
    store(cache, 8)
    assert cache.num_bytes() <= 4 * SIZE
    assert torn.exists(), "perhaps a process is still writing it"
    os.utime(torn, (0, torn.stat().st_mtime - 2 * ABANDONED_SECONDS))
    for number in range(10, 20):
        store(cache, number)
    assert not torn.exists()
    (tmp_path / BYTES_FILE).write_text("999999")  # booked, but killed before the files were there
    store(cache, 21)
    assert has(cache, 21)
    assert cache.num_bytes() == 4 * SIZE, "the files were counted again"


@pytest.mark.parametrize("damage", [b"", content_of(3)[:-2], content_of(4)])
def test_a_file_that_does_not_hold_what_its_name_says_is_removed(tmp_path: Path, damage: bytes) -> None:
    cache = RangeCache(tmp_path, 4 * SIZE)
    store(cache, 3)
    assert has(cache, 3)
    path = tmp_path / name_of(3)[:2] / name_of(3)
    path.unlink()
    path.write_bytes(damage)
    assert not has(cache, 3)
    store(cache, 3)
    assert has(cache, 3)


def test_the_cache_shrinks_on_a_full_disk_until_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = RangeCache(tmp_path, 100 * SIZE)
    for number in range(8):
        store(cache, number)
    room, write = 4 * SIZE, Path.write_bytes

    def on_a_small_disk(path: Path, content: bytes) -> int:
        if sum(file.stat().st_size for file in tmp_path.glob("??/*")) + len(content) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", on_a_small_disk)
    for number in range(8, 20):
        store(cache, number)
        assert has(cache, number)
        assert cache.num_bytes() <= room
    room = 0
    message = r"the disk of the data cache .* is full, and no range is left .*: free some space, or set data\.cache_dir"
    with pytest.raises(CacheFull, match=message):
        store(cache, 30)
    assert not [path for path in tmp_path.glob("*/*") if path.is_file()]
