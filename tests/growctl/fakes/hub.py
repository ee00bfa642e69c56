"""A fake Hugging Face hub on the loopback, with one dataset of two files, that can fail on request."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.web_server import Answer, WebServer
from tests.workers import HANG_SECONDS, PRINT_TRACEBACKS, REPOSITORY

LINE = b'{"text": "a text of the source, number %07d"}\n'
NUM_LINES = 300_000
"""Of each file: more than the client reads at once."""

BREAKS_AT = 5_000_000
"""Byte of a file from which on `cut` fails."""


class Hub:
    """`failure`: an HTTP status for all requests, or `cut` in the middle of a file, or nothing."""

    def __init__(self, failure: int | str | None) -> None:
        self.failure = failure
        self.file = b"".join(LINE % number for number in range(NUM_LINES))
        self.requests: list[str] = []
        self.server = WebServer(self._answer)

    def environment(self, home: Path) -> dict[str, str]:
        """What makes the hub's client go to this hub, with a wrong token, and wait a second at most."""
        return os.environ | {
            "HF_ENDPOINT": self.server.url,
            "HF_TOKEN": "wrong",
            "HF_HOME": str(home),
            "HF_HUB_DOWNLOAD_TIMEOUT": "1",
            "HF_HUB_ETAG_TIMEOUT": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": str(REPOSITORY),
            **PRINT_TRACEBACKS,
        }

    def _answer(self, _: str, path: str, headers: Mapping[str, str], __: bytes) -> Answer:
        path = path.partition("?")[0]
        self.requests.append(path)
        if isinstance(self.failure, int):
            return Answer(self.failure, body=b"{}")
        if "/resolve/main/" in path:
            return self._range({name.lower(): value for name, value in headers.items()}.get("range", "bytes=0-"))
        if "/tree/" not in path:
            return Answer(200, body=json.dumps({"id": "owner/texts", "sha": "0" * 40, "siblings": []}).encode())
        size = len(self.file)
        entries = [{"type": "file", "path": f"train/{name}.jsonl", "size": size, "oid": 40 * name} for name in "ab"]
        if not path.partition("/tree/main")[2].strip("/"):
            entries.append({"type": "directory", "path": "train", "size": 0, "oid": 40 * "c"})
        return Answer(200, body=json.dumps(entries).encode())

    def _range(self, asked: str) -> Answer:
        start, _, last = asked.removeprefix("bytes=").partition("-")
        end = int(last or len(self.file) - 1)
        part = self.file[int(start) : end + 1]
        place = {"Content-Range": f"bytes {start}-{end}/{len(self.file)}", "Content-Length": str(len(part))}
        if self.failure != "cut" or end < BREAKS_AT:
            return Answer(206, place, part)
        return Answer(206, place | {"Connection": "close"}, part[: len(part) // 2])


@contextmanager
def hub(failure: int | str | None = None) -> Iterator[Hub]:
    """A hub that listens until the block ends."""
    made = Hub(failure)
    with made.server.running():
        yield made


IMPATIENT = """
import contextlib, io, json, sys, time
from growctl.cli.app import main

time.sleep = lambda seconds: None
for arguments in json.load(sys.stdin):
    sys.argv = ["growctl", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


class Ended(NamedTuple):
    """How a growctl ended."""

    code: int
    out: str
    err: str


def growctl(environment: dict[str, str], *commands: Sequence[object]) -> list[Ended]:
    """How each growctl ends, one after another in a process where no client waits before it tries again."""
    words = json.dumps([[str(argument) for argument in command] for command in commands])
    command = [sys.executable, "-c", IMPATIENT]
    done = subprocess.run(
        command, input=words, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return [Ended(*json.loads(line)) for line in done.stdout.splitlines()]
