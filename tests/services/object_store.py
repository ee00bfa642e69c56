"""An S3 object store: moto's server."""

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.growctl.runs import SCHEDULE, TEXT, final_hashes
from tests.services.processes import background, output_of, require, wait_until
from tests.web_server import FAULTS, WebServer, server_at

SECRET = "bXkgc2VjcmV0IGtleQ"


@dataclass(frozen=True)
class Store:
    """A running store, in which the bucket `texts` has files of text."""

    folder: Path
    port: int
    client: Any

    def growctl(self, command: str, name: str, source: str, *, port: int | None = None) -> Path:
        """The runs directory `name` of a command on a source."""
        variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "OMP_NUM_THREADS": "1",
        }
        schedule, runs_dir = self.folder / "tiny.yaml", self.folder / name
        steps = re.sub("train_steps: [36]0", "train_steps: 10", SCHEDULE)
        schedule.write_text(steps.replace(f'source: {TEXT}, include: "*.py"', f"source: '{source}'"))
        output_of([sys.executable, "-m", "growctl.cli.app", command, schedule, "--runs-dir", runs_dir], variables)
        return runs_dir


@pytest.fixture
def store(training: None, tmp_path: Path) -> Iterator[Store]:
    require("pip install 'moto[server]' s3fs", modules=("moto", "flask", "s3fs"))
    import boto3

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with background([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], tmp_path / "moto.log"):
        wait_until(lambda: _listens(port), "the object store listens")
        place = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
        client = boto3.client("s3", **place, aws_access_key_id="key", aws_secret_access_key=SECRET)
        client.create_bucket(Bucket="texts")
        for path in TEXT.glob("*.py"):
            client.put_object(Bucket="texts", Key=f"python/{path.name}", Body=path.read_bytes())
        yield Store(tmp_path, port, client)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_a_run_on_tokens_in_the_store_has_the_weights_of_a_local_one_through_faults(store: Store) -> None:
    """A dataset of texts in the store lies in the store too. A proxy injects faults while a run reads it."""
    [manifest] = store.growctl("prepare", "prepared", "s3://texts/python").glob(".datasets/*/manifest.json")
    local = manifest.parent
    for path in (path for path in local.rglob("*") if path.is_file()):
        store.client.put_object(Bucket="texts", Key=f"datasets/web/{path.relative_to(local)}", Body=path.read_bytes())
    near = store.growctl("run", "near", str(local))
    with WebServer(server_at(store.port)).running() as proxy:
        proxy.faults.extend(FAULTS * 2)
        far = store.growctl("run", "far", "s3://texts/datasets/web", port=int(proxy.url.rpartition(":")[2]))
        assert not proxy.faults, f"only {dict(proxy.injected)} were injected"
    assert final_hashes(near / "tiny") == final_hashes(far / "tiny"), "the weights differ"
    secret = [path for path in far.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not secret, f"the secret key is in {secret}"
