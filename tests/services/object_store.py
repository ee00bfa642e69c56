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
from stages.data.dataset import DatasetManifest, read_dataset_manifest
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
        _fill(_client("s3", store.endpoint, store.key, store.secret))
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


def _texts() -> dict[str, str]:
    """Real texts, by name."""
    return {path.name: path.read_text() for path in sorted(TEXT.glob("*.py"))}


def _fill(client: Any) -> None:
    """Puts the texts into our bucket: as files, and as JSON lines."""
    client.create_bucket(Bucket=OURS)
    texts = _texts()
    for name, text in texts.items():
        client.put_object(Bucket=OURS, Key=f"python/{name}", Body=text.encode())
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts.values())
    client.put_object(Bucket=OURS, Key="lines/python.jsonl", Body=lines.encode())
    client.put_object(Bucket=OURS, Key="broken/python.jsonl", Body=lines.encode()[:-100])


def _trains_on_a_folder(store: Store) -> str:
    """The same texts in a folder give the same tokens."""
    runs, local = store.folder / "runs", store.folder / "python"
    store.growctl("run", store.schedule, "--runs-dir", runs)
    local.mkdir()
    for name, text in _texts().items():
        (local / name).write_text(text)
    store.growctl("prepare", store.schedule, f"data.source={local}", "--runs-dir", store.folder / "local")
    found = read_manifest(runs / "tiny/stages/1-large/final").dataset_fingerprint
    assert _dataset(store.folder / "local").fingerprint == found, "the dataset differs from that of local files"
    return f"{len(_texts())} files prepared and trained on; the same dataset as from local files"


def _trains_on_json_lines(store: Store) -> str:
    """Also, the second stage needs the store no more."""
    runs = store.folder / "lines"
    command = ("run", store.schedule, f"data.source=s3://{OURS}/lines", "--runs-dir", runs)
    store.growctl(*command, "--until", "small")
    num_documents = sum(split.num_documents for split in _dataset(runs).splits.values())
    assert num_documents == len(_texts()), f"{num_documents} documents"
    store.growctl(*command, AWS_ENDPOINT_URL=NOWHERE)
    read_manifest(runs / "tiny/stages/1-large/final")
    return f"{num_documents} documents prepared and trained on; resumed while the store was unreachable"


def _dataset(runs: Path) -> DatasetManifest:
    (manifest,) = (runs / ".datasets").glob("*/manifest.json")
    return read_dataset_manifest(manifest.parent)


def _prepares_again_only_what_changed(store: Store) -> str:
    runs = store.folder / "runs"
    command = ("prepare", store.schedule, "--runs-dir", runs)
    before = {path.name for path in (runs / ".datasets").iterdir()}
    store.growctl(*command)
    assert {path.name for path in (runs / ".datasets").iterdir()} == before, "unchanged files were prepared again"
    client = _client("s3", store.endpoint, store.key, store.secret)
    client.put_object(Bucket=OURS, Key="python/added.py", Body=b"print('a new text')\n" * 100)
    store.growctl(*command)
    client.delete_object(Bucket=OURS, Key="python/added.py")
    assert len(list((runs / ".datasets").glob("*/manifest.json"))) == 2, "a new file went unnoticed"
    return "unchanged files are reused; a new file is noticed"


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
        "JSON lines": _trains_on_json_lines,
        "tokens in the store, with faults": _trains_on_remote_tokens,
        "reuse of a dataset": _prepares_again_only_what_changed,
        "a bucket without permission": _refused(f"s3://{PRIVATE}/texts", f"s3://{PRIVATE}/texts", FORBIDDEN),
        "an unknown key": _refused(FOLDER, FORBIDDEN, AWS_ACCESS_KEY_ID="AKIAUNKNOWNUNKNOWN12"),
        "a wrong secret": _refused(FOLDER, FORBIDDEN, AWS_SECRET_ACCESS_KEY="not-the-secret"),
        "no credentials": _refused(
            FOLDER, "Unable to locate credentials", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY=""
        ),
        "a missing object": _refused(f"s3://{OURS}/absent.jsonl", f"'s3://{OURS}/absent.jsonl' does not exist"),
        # S3 does not tell a user without the right to list all buckets whether a bucket exists.
        "a missing bucket": _refused(
            "s3://no-such-bucket/texts", "'s3://no-such-bucket/texts' cannot be read", FORBIDDEN
        ),
        "a broken line of JSON": _refused(f"s3://{OURS}/broken", "python.jsonl line 33 is not JSON"),
        "an endpoint that is not there": _refused(FOLDER, NOWHERE, AWS_ENDPOINT_URL=NOWHERE),
        "no secret on disk": _keeps_no_secret,
    },
)
