"""An S3 object store: moto's server, which checks keys, signatures and permissions as S3 does."""

import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stages.checkpoint.manifest import read_manifest
from stages.data.dataset import read_dataset_manifest
from stages.metrics import read_metrics
from tests.growctl.runs import SCHEDULE, TEXT
from tests.services.processes import background, message_in, output_of, wait_until
from tests.services.service import Service
from tests.web_server import FAULTS, WebServer, server_at

OURS, PRIVATE = "texts", "private"
"""The bucket that our user may read, and one that exists but is not theirs."""

FOLDER = f"s3://{OURS}/python"
"""Files of text."""

NOWHERE = "http://127.0.0.1:9"
"""An endpoint on which nothing listens."""

FORBIDDEN = "(403)"
NUM_SETUP_REQUESTS = 4
"""Requests before moto checks permissions, as many as `_make_user` sends."""


@dataclass(frozen=True)
class Store:
    """A running store, and a user who may read one of its buckets."""

    folder: Path
    endpoint: str
    key: str
    secret: str

    @property
    def schedule(self) -> Path:
        """A ladder on the texts of our bucket."""
        return self.folder / "tiny.yaml"

    def variables(self, **others: str) -> dict[str, str]:
        """What a user sets: endpoint and credentials; `others` replaces some. No file of this machine's user counts."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": str(self.folder / "none"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.folder / "none"),
            "AWS_EC2_METADATA_DISABLED": "true",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
        } | others

    def growctl(self, *words: object, code: int = 0, **others: str) -> str:
        """What growctl prints, on both streams."""
        command = [sys.executable, "-m", "growctl.cli.app", *map(str, words)]
        return output_of(command, self.variables(**others), code=code)


def _version() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("moto", "s3fs", "botocore"))


@contextmanager
def _start(folder: Path) -> Iterator[Store]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    variables = {"INITIAL_NO_AUTH_ACTION_COUNT": str(NUM_SETUP_REQUESTS)}
    with background(command, folder / "moto.log", variables):
        wait_until(lambda: _listens(port), "the object store listens")
        store = Store(folder, f"http://127.0.0.1:{port}", *_make_user(f"http://127.0.0.1:{port}"))
        schedule = SCHEDULE.replace(f'source: {TEXT}, include: "*.py"', f'source: "{FOLDER}"')
        store.schedule.write_text(re.sub("train_steps: [36]0", "train_steps: 10", schedule))
        client = _client("s3", store.endpoint, store.key, store.secret)
        client.create_bucket(Bucket=OURS)
        for path in TEXT.glob("*.py"):
            client.put_object(Bucket=OURS, Key=f"python/{path.name}", Body=path.read_bytes())
        yield store


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _client(service: str, endpoint: str, key: str, secret: str) -> Any:
    import boto3

    return boto3.client(
        service,
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
    )


def _make_user(endpoint: str) -> tuple[str, str]:
    """Makes the private bucket, and a user with every right on the other one. Returns the user's key and secret."""
    root = ("root", secrets.token_hex())
    _client("s3", endpoint, *root).create_bucket(Bucket=PRIVATE)
    iam = _client("iam", endpoint, *root)
    iam.create_user(UserName="reader")
    made = iam.create_access_key(UserName="reader")["AccessKey"]
    ours = [f"arn:aws:s3:::{OURS}", f"arn:aws:s3:::{OURS}/*"]
    document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ours}]}
    iam.put_user_policy(UserName="reader", PolicyName="ours", PolicyDocument=json.dumps(document))
    return made["AccessKeyId"], made["SecretAccessKey"]


def _trains_on_a_folder(store: Store) -> str:
    """The same texts in a folder give the same tokens."""
    store.growctl("run", store.schedule, "--runs-dir", store.folder / "runs")
    local = (f"data.source={TEXT}", "data.include='*.py'", "--runs-dir", store.folder / "local")
    store.growctl("prepare", store.schedule, *local)
    [manifest] = (store.folder / "local/.datasets").glob("*/manifest.json")
    found = read_manifest(store.folder / "runs/tiny/stages/1-large/final").dataset_fingerprint
    assert read_dataset_manifest(manifest.parent).fingerprint == found, "the dataset differs from that of local files"
    return "files prepared and trained on; the same dataset as from local files"


def _refused(source: str, *expected: str, **variables: str) -> Callable[[Store], str]:
    """A check that growctl refuses a source with a message that has all of `expected`, and leaves nothing behind."""

    def check(store: Store) -> str:
        with TemporaryDirectory(dir=store.folder) as runs:
            command = ("prepare", store.schedule, f"data.source={source}", "--runs-dir", runs)
            printed = store.growctl(*command, code=2, **variables)
            files = [path for path in Path(runs).rglob("*") if path.is_file()]
        left = [path.name for path in files if path.suffix not in (".lock", ".txt")]
        assert not left, f"left behind: {left}"
        message = message_in(printed)
        assert all(text in message for text in expected), message
        return message.partition(". ")[0]

    return check


def _keeps_no_secret(store: Store) -> str:
    runs = [path for path in store.folder.rglob("*") if path.is_file() and os.access(path, os.R_OK)]
    found = [path for path in runs if store.secret.encode() in path.read_bytes()]
    assert not found, f"the secret key is in {found}"
    return f"none of {len(runs)} files holds the secret key"


def _trains_on_remote_tokens(store: Store) -> str:
    """The dataset lies in the store, and a proxy in front of the store injects faults while a run reads it."""
    runs = store.folder / "remote"
    prepared = store.growctl("prepare", store.schedule, "--runs-dir", runs / "prepared")
    local = Path(prepared.split()[-1])
    client = _client("s3", store.endpoint, store.key, store.secret)
    for path in (path for path in local.rglob("*") if path.is_file()):
        client.put_object(Bucket=OURS, Key=f"datasets/web/{path.relative_to(local)}", Body=path.read_bytes())
    store.growctl("run", store.schedule, f"data.source={local}", "--runs-dir", runs / "local")
    with WebServer(server_at(int(store.endpoint.rpartition(":")[2]))).running() as proxy:
        proxy.faults.extend(FAULTS * 2)
        remote = ("data.source=s3://texts/datasets/web", "--runs-dir", runs / "far")
        store.growctl("run", store.schedule, *remote, AWS_ENDPOINT_URL=proxy.url)
        assert not proxy.faults, f"only {dict(proxy.injected)} were injected"
    finals = [read_manifest(runs / place / "tiny/stages/1-large/final") for place in ("local", "far")]
    hashes = [{name: file.sha256 for name, file in final.files.items()} for final in finals]
    assert hashes[0] == hashes[1], "the weights differ"
    records = read_metrics(runs / "far/tiny/stages/1-large/metrics.jsonl")
    waited = sum(record["data_wait_seconds"] for record in records if record["event"] == "train")
    faults = f"{len(FAULTS * 2)} faults among {proxy.injected.total()} requests"
    return f"{faults}, {waited:.1f} s waited, the same weights as local"


SERVICE = Service(
    name="S3",
    programs=(),
    modules=("moto", "flask", "s3fs"),
    install="pip install 'moto[server]' s3fs",
    version=_version,
    start=_start,
    checks={
        "a folder of text": _trains_on_a_folder,
        "tokens in the store, with faults": _trains_on_remote_tokens,
        "a bucket without permission": _refused(f"s3://{PRIVATE}/texts", f"s3://{PRIVATE}/texts", FORBIDDEN),
        "no credentials": _refused(
            FOLDER, "Unable to locate credentials", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY=""
        ),
        "an endpoint that is not there": _refused(FOLDER, NOWHERE, AWS_ENDPOINT_URL=NOWHERE),
        "no secret on disk": _keeps_no_secret,
    },
)
