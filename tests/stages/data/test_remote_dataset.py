"""A prepared dataset at a URL: the same samples as local, faults of the network, and one error for what is damaged."""

import fcntl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import numpy as np
import pytest

from stages.corpus import prepared
from stages.corpus.prepare import prepare
from stages.corpus.prepared import Ingredient, prepared_datasets, write_mixture
from stages.corpus.tasks import Progress
from stages.data import remote
from stages.data.dataset import dataset_manifest_bytes, read_dataset_manifest, verify_dataset
from stages.data.errors import DataError
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.remote import ALTERED_TRIES, CACHE_NAME, RemoteFiles
from stages.data.samples import TrainingSamples
from stages.data.spec import DataSpec
from stages.data.tokens import TokenSplit
from tests.stages.data.test_dataset import limit_shards, write_dataset
from tests.web_server import FAULTS, WebServer, folder

LENGTH = 60
"""Data tokens of a sample: a sample sometimes lies in two shards."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WebServer, Path]]:
    """A running server, and the folder of the dataset that it serves as `/web`."""
    monkeypatch.setattr(remote, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(remote, "LONGEST_PAUSE_SECONDS", 0.01)
    dataset = write_dataset(tmp_path / "served/web", [2000, 700, 1300], [900], token_bytes=2)
    limit_shards(dataset, {"train/00001.ds": 650})
    manifest = read_dataset_manifest(dataset)
    splits = manifest.splits | {"train": manifest.splits["train"].model_copy(update={"num_tokens": 3950})}
    (dataset / "manifest.json").write_bytes(dataset_manifest_bytes(manifest.model_copy(update={"splits": splits})))
    with WebServer(folder(tmp_path / "served")).running() as server:
        yield server, dataset


def opened(server: WebServer, tmp_path: Path, **keys: Any) -> Path:
    """The directory here of the served dataset."""
    return prepare(DataSpec(source=f"{server.url}/web", **keys), tmp_path / "datasets")


def test_a_remote_dataset_gives_the_same_samples_as_a_local_one_through_20_faults(
    served: tuple[WebServer, Path], tmp_path: Path
) -> None:
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
    splits = [TokenSplit(directory, "train") for directory in (local, remote)]
    assert np.array_equal(splits[0].read(1990, 1960), splits[1].read(1990, 1960))


def test_nobody_else_locks_a_dataset_while_it_is_fetched(
    served: tuple[WebServer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`growctl clean` takes the lock before it removes what looks like a dead process's leftover."""
    free: list[bool] = []
    plain = prepared.write_file

    def checked(*arguments: Any) -> Any:
        [lock] = (tmp_path / "datasets").glob(".web-at-*.lock")
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free.append(True)
            except BlockingIOError:
                free.append(False)
        return plain(*arguments)

    monkeypatch.setattr(prepared, "write_file", checked)
    verify_dataset(opened(served[0], tmp_path))
    assert set(free) == {False}


def test_shards_are_fetched_once_and_shared_by_threads(served: tuple[WebServer, Path], tmp_path: Path) -> None:
    server, local = served
    samples, expected = TrainingSamples(opened(server, tmp_path), LENGTH, 1), TrainingSamples(local, LENGTH, 1)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda index: samples[index], range(100)))
    assert np.array_equal(np.stack(found), expected.batch(0, 100))
    assert server.requests.total() == len(list((local / "train").glob("*.ds")))


@pytest.mark.parametrize(
    ("forbidden", "message"),
    [
        (False, r"http://.*/web/validation/00000\.ds does not exist; upload it again"),
        (True, r"00000\.ds cannot be read \(the server answered 403 Forbidden"),
    ],
)
def test_a_server_that_has_no_shard_or_denies_access_is_asked_once(
    served: tuple[WebServer, Path], tmp_path: Path, forbidden: bool, message: str
) -> None:
    server, local = served
    remote = opened(server, tmp_path)
    (local / "validation/00000.ds").unlink()
    server.forbidden = forbidden
    with pytest.raises(DataError, match=message):
        TokenSplit(remote, "validation").read(0, 100)
    assert server.requests.total() == 1


def test_a_server_without_ranges_will_do_and_a_missing_shard_is_one_error_that_names_it(
    served: tuple[WebServer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.data.remote.REQUEST_BYTES", 500)
    serve = partial(SimpleHTTPRequestHandler, directory=tmp_path / "served")
    (served[1] / "validation/00000.ds").unlink()
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/web"
        remote = prepare(DataSpec(source=url), tmp_path / "datasets")
        with pytest.raises(DataError, match=rf"^{url}/validation/00000\.ds does not exist; upload it again"):
            TokenSplit(remote, "validation").read(0, 100)
        here, there = (TokenSplit(directory, "train").read(0, 3900) for directory in (served[1], remote))
        assert np.array_equal(here, there)
        server.shutdown()


def test_an_altered_shard_is_one_error_with_both_hashes(served: tuple[WebServer, Path], tmp_path: Path) -> None:
    server, local = served
    remote, shard = opened(server, tmp_path), local / "validation/00000.ds"
    wanted = read_dataset_manifest(local).splits["validation"].files[0].sha256
    shard.write_bytes(b"\7" + shard.read_bytes()[1:])
    with pytest.raises(DataError, match=rf"/00000\.ds is altered: its sha256 is [0-9a-f]{{64}}, not {wanted}"):
        TokenSplit(remote, "validation").read(0, 10)
    assert server.requests.total() == ALTERED_TRIES


def test_a_cache_that_cannot_hold_a_shard_is_one_error_that_names_the_key(
    served: tuple[WebServer, Path], tmp_path: Path
) -> None:
    remote = opened(served[0], tmp_path, cache_bytes=3999)
    with pytest.raises(DataError, match=r"data\.cache_bytes: 3,999 are fewer than the 4,000 of the largest shard"):
        TrainingSamples(remote, LENGTH, seed=1)


def test_a_fault_that_lasts_longer_than_the_limit_is_an_error_that_names_the_key(
    served: tuple[WebServer, Path], tmp_path: Path
) -> None:
    server, local = served
    file = read_dataset_manifest(local).splits["validation"].files[0]
    message = r"/web/validation/00000\.ds cannot be read, for 0\.05 s \(data\.retry_seconds\) \(.*"
    server.faults.extend(["500"] * 1000)
    with pytest.raises(DataError, match=rf"{message} 500 Internal"):
        RemoteFiles(f"{server.url}/web", 0.05).fetch(file, BytesIO())
    assert server.injected["500"] > 1
    server.faults.clear()
    shard = local / file.name
    shard.write_bytes(shard.read_bytes()[:1700])
    with pytest.raises(DataError, match=rf"{message}1,700 bytes came instead of 1,800\)"):
        RemoteFiles(f"{server.url}/web", 0.05).fetch(file, BytesIO())


def test_a_dataset_that_was_opened_before_needs_no_network(served: tuple[WebServer, Path], tmp_path: Path) -> None:
    server, _ = served
    remote = opened(server, tmp_path)
    tokens = TokenSplit(remote, "validation").read(0, 900)
    server.forbidden = True
    told: list[str] = []
    spec = DataSpec(source=f"{server.url}/web/", retry_seconds=7)
    assert prepare(spec, tmp_path / "datasets", progress=Progress(tell=told.append)) == remote
    assert "cannot be reached (the server answered 403 Forbidden" in told[0]
    assert [path for path, _ in prepared_datasets(spec, tmp_path / "datasets")] == [remote]
    assert np.array_equal(TokenSplit(remote, "validation").read(0, 900), tokens)
    with pytest.raises(DataError, match=r"data\.source: 'http://.*' cannot be read"):
        prepare(spec, tmp_path / "others")


def test_a_mixture_of_a_dataset_in_any_file_system_has_the_samples_of_a_local_one(tmp_path: Path) -> None:
    local = write_dataset(tmp_path / "local/numbers", [2000, 700], [900], token_bytes=2)
    fsspec.filesystem("memory").put(str(local), "/bucket/numbers", recursive=True)
    remote = prepare(DataSpec(source="memory://bucket/numbers"), tmp_path / "datasets")
    assert read_dataset_manifest(remote).fingerprint == read_dataset_manifest(local).fingerprint
    mixtures = [write_mixture([Ingredient("a", path, 1.0)], tmp_path / "mixtures") for path in (local, remote)]
    here, there = (TrainingSamples(directory, 16, seed=3) for directory in mixtures)
    there.expect(0, 100)
    assert np.array_equal(there.batch(0, 300), here.batch(0, 300))
