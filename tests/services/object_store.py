"""An S3 object store: moto's server, which checks keys, signatures and permissions as S3 does."""

import json
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stages.checkpoint.manifest import read_manifest
from stages.data.dataset import read_dataset_manifest
from stages.metrics import read_metrics
from tests.growctl.runs import TEXT
from tests.services.processes import background, output_of, wait_until
from tests.services.service import Service
from tests.web_server import FAULTS, WebServer, server_at

OURS, PRIVATE = "texts", "private"
"""The bucket that our user may read, and one that exists but is not theirs."""

FOLDER = f"s3://{OURS}/python"
"""Files of text."""

NOWHERE = "http://127.0.0.1:9"
"""An endpoint on which nothing listens."""

NUM_SETUP_REQUESTS = 4
"""Requests before moto checks permissions, as many as `_make_user` sends."""

SCHEDULE = f"""
seed: 3
data: {{source: "{FOLDER}", vocab_size: 300, validation_fraction: 0.2}}
model: {{num_layers: 1, hidden_size: 32, num_heads: 2}}
stages:
  - {{name: small, attention_tokens: 8, ffn_tokens: 16, train_steps: 10}}
  - {{name: large, attention_tokens: 16, ffn_tokens: 32, train_steps: 10}}
training: {{sequence_length: 32, batch_size: 8, log_every: 5, precision: fp32}}
learning_rate: {{peak: 5e-3, warmup_steps: 2}}
evaluation: {{max_sequences: 32}}
launch: {{devices: 1}}
"""


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

    def refusal(self, source: str, *expected: str, **others: str) -> str:
        """The first sentence of growctl's only message about a source that it cannot prepare.

        Fails unless the message has all of `expected`, and if anything but a lock and a log is left behind.
        """
        with TemporaryDirectory(dir=self.folder) as runs:
            override = f"data.source={source}"
            printed = self.growctl("prepare", self.schedule, override, "--runs-dir", runs, code=2, **others)
            left = [
                path.name for path in Path(runs).rglob("*") if path.is_file() and path.suffix not in (".lock", ".txt")
            ]
        assert "Traceback" not in printed, printed
        assert printed.count("growctl: ") == 1, f"not one message: {printed}"
        assert not left, f"left behind: {left}"
        message = printed[printed.index("growctl: ") :].removeprefix("growctl: ").strip()
        assert all(text in message for text in expected), message
        return message.partition(". ")[0]


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
        store.schedule.write_text(SCHEDULE)
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
    runs = store.folder / "runs"
    store.growctl("run", store.schedule, "--runs-dir", runs)
    final = read_manifest(runs / "tiny/stages/1-large/final")
    local = store.folder / "python"
    local.mkdir()
    for name, text in _texts().items():
        (local / name).write_text(text)
    store.growctl("prepare", store.schedule, f"data.source={local}", "--runs-dir", store.folder / "local")
    (dataset,) = (store.folder / "local/.datasets").glob("*/manifest.json")
    same = read_dataset_manifest(dataset.parent).fingerprint == final.dataset_fingerprint
    assert same, "the dataset differs from that of the same local files"
    return f"{len(_texts())} files prepared and trained on; the same dataset as from local files"


def _trains_on_json_lines(store: Store) -> str:
    """Also, the second stage needs the store no more."""
    runs = store.folder / "lines"
    command = ("run", store.schedule, f"data.source=s3://{OURS}/lines", "--runs-dir", runs)
    store.growctl(*command, "--until", "small")
    (dataset,) = (runs / ".datasets").glob("*/manifest.json")
    splits = read_dataset_manifest(dataset.parent).splits
    num_documents = sum(split.num_documents for split in splits.values())
    assert num_documents == len(_texts()), f"{num_documents} documents"
    store.growctl(*command, AWS_ENDPOINT_URL=NOWHERE)
    read_manifest(runs / "tiny/stages/1-large/final")
    return f"{num_documents} documents prepared and trained on; resumed while the store was unreachable"


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


def _forbidden_bucket(store: Store) -> str:
    return store.refusal(f"s3://{PRIVATE}/texts", f"s3://{PRIVATE}/texts", "403 Forbidden", "AWS_ACCESS_KEY_ID")


def _unknown_key(store: Store) -> str:
    return store.refusal(FOLDER, "403 Forbidden", "AWS_ACCESS_KEY_ID", AWS_ACCESS_KEY_ID="AKIAUNKNOWNUNKNOWN12")


def _wrong_secret(store: Store) -> str:
    return store.refusal(FOLDER, "403 Forbidden", "AWS_ACCESS_KEY_ID", AWS_SECRET_ACCESS_KEY="not-the-secret")


def _no_credentials(store: Store) -> str:
    absent = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    return store.refusal(FOLDER, "Unable to locate credentials", "AWS_ACCESS_KEY_ID", **absent)


def _missing_object(store: Store) -> str:
    return store.refusal(f"s3://{OURS}/absent.jsonl", f"'s3://{OURS}/absent.jsonl' does not exist")


def _missing_bucket(store: Store) -> str:
    """S3 does not tell a user without the right to list all buckets whether a bucket exists."""
    return store.refusal("s3://no-such-bucket/texts", "'s3://no-such-bucket/texts' cannot be read", "403 Forbidden")


def _broken_line(store: Store) -> str:
    return store.refusal(f"s3://{OURS}/broken", "python.jsonl line 33 is not JSON")


def _absent_endpoint(store: Store) -> str:
    return store.refusal(FOLDER, NOWHERE, "AWS_ENDPOINT_URL", AWS_ENDPOINT_URL=NOWHERE)


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
    checks=(
        ("a folder of text", _trains_on_a_folder),
        ("JSON lines", _trains_on_json_lines),
        ("tokens in the store, with faults", _trains_on_remote_tokens),
        ("reuse of a dataset", _prepares_again_only_what_changed),
        ("a bucket without permission", _forbidden_bucket),
        ("an unknown key", _unknown_key),
        ("a wrong secret", _wrong_secret),
        ("no credentials", _no_credentials),
        ("a missing object", _missing_object),
        ("a missing bucket", _missing_bucket),
        ("a broken line of JSON", _broken_line),
        ("an endpoint that is not there", _absent_endpoint),
        ("no secret on disk", _keeps_no_secret),
    ),
)
