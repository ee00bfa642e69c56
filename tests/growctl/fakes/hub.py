"""A fake Hugging Face hub on the loopback, with one dataset of two files, that can fail on request."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from tests.workers import HANG_SECONDS, PRINT_TRACEBACKS, REPOSITORY

LINE = b'{"text": "a text of the source, number %07d"}\n'
NUM_LINES, NUM_LONG_LINES = 4_000, 300_000
"""Of each file, and where the hub fails in the middle of one: more than the client reads at once."""

BREAKS_AT = 5_000_000
"""Byte of a file from which on `cut` and `stall` fail."""


class Hub(ThreadingHTTPServer):
    """`failure`: an HTTP status for all requests, `cut` or `stall` in the middle of a file, or nothing."""

    daemon_threads = True

    def __init__(self, failure: int | str | None) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.failure = failure
        num_lines = NUM_LONG_LINES if failure in ("cut", "stall") else NUM_LINES
        self.file = b"".join(LINE % number for number in range(num_lines))
        self.requests: list[str] = []
        self.over = threading.Event()

    def environment(self, home: Path) -> dict[str, str]:
        """What makes the hub's client go to this hub, with a wrong token, and wait a second at most."""
        return os.environ | {
            "HF_ENDPOINT": f"http://127.0.0.1:{self.server_port}",
            "HF_TOKEN": "wrong",
            "HF_HOME": str(home),
            "HF_HUB_DOWNLOAD_TIMEOUT": "1",
            "HF_HUB_ETAG_TIMEOUT": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": str(REPOSITORY),
            **PRINT_TRACEBACKS,
        }


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
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT],
        input=json.dumps([[str(argument) for argument in command] for command in commands]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return [Ended(*json.loads(line)) for line in done.stdout.splitlines()]


@contextmanager
def hub(failure: int | str | None = None) -> Iterator[Hub]:
    """A hub that listens until the block ends."""
    with Hub(failure) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append(path)
        if isinstance(self.server.failure, int):
            self._send(self.server.failure, b"{}")
        elif "/resolve/main/" in path:
            self._send_range(self.server.file)
        elif "/tree/" in path:
            self._send(200, self._tree(path.partition("/tree/main")[2].strip("/")))
        else:
            self._send(200, json.dumps({"id": "owner/texts", "sha": "0" * 40, "siblings": []}).encode())

    do_HEAD = do_POST = do_GET

    def _send_range(self, data: bytes) -> None:
        start, _, end = self.headers.get("Range", f"bytes=0-{len(data) - 1}").removeprefix("bytes=").partition("-")
        wanted = data[int(start) : int(end) + 1]
        failing = self.server.failure if int(end) >= BREAKS_AT else None
        self.send_response(206)
        self.send_header("Content-Length", str(len(wanted)))
        self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        self.end_headers()
        self.wfile.write(wanted if failing is None else wanted[: len(wanted) // 2])
        if failing == "stall":
            self.wfile.flush()
            self.server.over.wait()
        self.close_connection = True

    def _tree(self, folder: str) -> bytes:
        size = len(self.server.file)
        entries = [{"type": "file", "path": f"train/{name}.jsonl", "size": size, "oid": 40 * name} for name in "ab"]
        if not folder:
            entries.append({"type": "directory", "path": "train", "size": 0, "oid": 40 * "c"})
        return json.dumps(entries).encode()

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
