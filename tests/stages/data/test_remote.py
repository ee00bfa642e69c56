"""A prepared dataset at a URL: the same samples as local, faults of the network, and the cache of its shards."""

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from unittest.mock import Mock

import numpy as np
import pytest

from stages.checkpoint.disk_full import DiskFull
from stages.corpus import prepared
from stages.corpus.prepare import prepare
from stages.corpus.prepared import prepared_datasets
from stages.corpus.tasks import Progress
from stages.data import remote
from stages.data.dataset import DatasetFile, read_dataset_manifest, verify_dataset
from stages.data.errors import DataError
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.remote import ABANDONED_SECONDS, ALTERED_TRIES, CACHE_NAME, TEMPORARY, RemoteFiles, ShardCache
from stages.data.samples import TrainingSamples
from stages.data.spec import DataSpec
from stages.data.tokens import TokenSplit, mapped
from tests.stages.data.test_dataset import write_dataset
from tests.web_server import FAULTS, WebServer, folder

LENGTH = 60
"""Data tokens of a sample: a sample sometimes lies in two shards."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WebServer, Path]]:
    """A running server, and the folder of the dataset that it serves as `/web`."""
    monkeypatch.setattr(remote, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(remote, "LONGEST_PAUSE_SECONDS", 0.01)
    dataset = write_dataset(tmp_path / "served/web", [2000, 650, 1300], [900], token_bytes=2, beyond=[0, 50])
    with WebServer(folder(tmp_path / "served")).running() as server:
        yield server, dataset


def opened(server: WebServer, tmp_path: Path, **keys: Any) -> Path:
    """The directory here of the served dataset."""
    return prepare(DataSpec(source=f"{server.url}/web", **keys), tmp_path / "datasets")


def test_a_remote_dataset_gives_the_same_samples_as_a_local_one_through_20_faults(served, tmp_path):
    server, local = served
    limit = 5400  # two of three shards
    remote = opened(server, tmp_path, cache_bytes=limit)
    assert verify_dataset(remote).fingerprint == read_dataset_manifest(local).fingerprint
    assert not list(remote.rglob("*.ds")), "the tokens stay where they are"
    server.faults.extend(FAULTS * 2)
    here, there = (TrainingSamples(directory, LENGTH, seed=4) for directory in (local, remote))
    for first in range(0, 150, 5):
        there.expect(first + 5, 5)
        assert np.array_equal(there.batch(first, 5), here.batch(first, 5))
        kept = (tmp_path / "datasets" / CACHE_NAME).glob("[0-9a-f]*")
        assert sum(path.stat().st_size for path in kept) <= limit
    windows = [EvaluationWindows(directory, "validation", LENGTH) for directory in (local, remote)]
    assert np.array_equal(windows[0].batch(0, 14), windows[1].batch(0, 14))
    assert not server.faults, f"only {server.injected} were injected"
    assert TokenSplit(remote, "train").read(1990, 1960).tolist() == list(range(1990, 3950))


def test_nobody_else_locks_a_dataset_while_it_is_fetched(served, tmp_path, monkeypatch):
    """`growctl clean` takes the lock before it removes what looks like a dead process's leftover."""
    plain, checked = prepared.write_file, []

    def write_file(path: Path, content: bytes) -> None:
        [lock] = (tmp_path / "datasets").glob(".web-at-*.lock")
        with lock.open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        checked.append(path.name)
        plain(path, content)

    monkeypatch.setattr(prepared, "write_file", write_file)
    verify_dataset(opened(served[0], tmp_path))
    assert checked == ["manifest.json", "tokenizer.json"]


@pytest.mark.parametrize(
    ("damage", "message", "num_requests"),
    [
        (lambda server, shard: shard.unlink(), "does not exist; upload it again", 1),
        (lambda server, shard: setattr(server, "forbidden", True), "cannot be read .*answered 403 Forbidden", 1),
        (
            lambda server, shard: shard.write_bytes(bytes(1800)),
            "is altered: its sha256 is .*, not SHA256",
            ALTERED_TRIES,
        ),
        (lambda server, shard: server.faults.extend(["500"] * 1000), r"for 0\.05 s \(data\.retry_seconds\).* 500", 0),
        (lambda server, shard: os.truncate(shard, 1700), r"for 0\.05 s .*1,700 bytes came instead of 1,800\)", 0),
    ],
    ids=["missing", "forbidden", "altered", "broken", "truncated"],
)
def test_only_a_passing_fault_is_retried_and_an_error_names_the_shard(served, damage, message, num_requests):
    server, local = served
    file = read_dataset_manifest(local).splits["validation"].files[0]
    damage(server, local / file.name)
    with pytest.raises(DataError, match=rf"/web/validation/00000\.ds .*{message.replace('SHA256', file.sha256)}"):
        RemoteFiles(f"{server.url}/web", 0.05).fetch(file, BytesIO())
    assert server.requests.total() == num_requests if num_requests else server.requests.total() > 1


def test_a_cache_that_cannot_hold_a_shard_is_one_error_that_names_the_key(served, tmp_path):
    dataset = opened(served[0], tmp_path, cache_bytes=3999)
    with pytest.raises(DataError, match=r"data\.cache_bytes: 3,999 are fewer than the 4,000 of the largest shard"):
        TrainingSamples(dataset, LENGTH, seed=1)


def test_a_dataset_that_was_opened_before_needs_no_network(served, tmp_path):
    server, _ = served
    dataset = opened(server, tmp_path)
    tokens = TokenSplit(dataset, "validation").read(0, 900)
    server.forbidden, told = True, list[str]()
    spec = DataSpec(source=f"{server.url}/web/", retry_seconds=7)
    assert prepare(spec, tmp_path / "datasets", progress=Progress(tell=told.append)) == dataset
    assert "cannot be reached (the server answered 403 Forbidden" in told[0]
    assert remote.remote_reading(dataset).retry_seconds == 7
    assert [path for path, _ in prepared_datasets(spec, tmp_path / "datasets")] == [dataset]
    assert np.array_equal(TokenSplit(dataset, "validation").read(0, 900), tokens)
    with pytest.raises(DataError, match=r"data\.source: 'http://.*' cannot be read"):
        prepare(spec, tmp_path / "others")


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
    if not has_locks:
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
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
    cache = Cache(tmp_path, 4 * SIZE)
    with pytest.raises(DiskFull, match=r"^data\.cache_dir: the data cache .* \(No space left on device\); free some"):
        cache.open(shard(1), Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    assert cache.num_bytes() == 0
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(DataError, match=rf"^data\.cache_dir: the data cache {place} cannot be written \("):
            Cache(place, 4 * SIZE).get(1)
