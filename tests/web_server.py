"""A web server of a folder on the loopback, with ranges and with faults on demand."""

import re
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

Fault = Literal["drop", "500", "503", "truncate", "alter", "cut"]
"""drop: the connection closes without an answer. truncate: it closes in the middle of the body. cut: the answer is
whole, but shorter than what was asked for. alter: a byte of the body differs."""


class WebServer:
    """Serves a folder. Each request for a range takes the next of `faults`, as long as there are any."""

    def __init__(self, folder: Path) -> None:
        self.faults: deque[Fault] = deque()
        self.injected: Counter[str] = Counter()
        self.forbidden = False
        self.requests: Counter[str] = Counter()
        """Requests for ranges, by path."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, folder))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator["WebServer"]:
        """Serves until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def _handler(server: WebServer, folder: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet for head and body: two would wait for an acknowledgement

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            path = folder / self.path.lstrip("/")
            content = path.read_bytes() if path.is_file() else b""
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, last = (int(asked[1]), int(asked[2])) if asked else (0, 0)
            server.requests[self.path] += server.forbidden or bool(asked)
            if server.forbidden or not path.is_file():
                self._send(403 if server.forbidden else 404, b"", with_body)
            elif not asked:
                self._send(200, content, with_body)
            elif start >= len(content):
                self._send(416, b"", with_body)
            else:
                self._send_range(content[start : last + 1], f"bytes {start}-{last}/{len(content)}")

        def _send_range(self, body: bytes, place: str) -> None:
            fault = server.faults.popleft() if server.faults else None
            server.injected[fault or "none"] += 1
            if fault == "drop":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            elif fault in ("500", "503"):
                self._send(int(fault), b"", True)
            elif fault == "truncate":
                self._send(206, body, True, body[: len(body) // 2], place)
                self.close_connection = True
            elif fault == "alter":
                self._send(206, bytes([body[0] ^ 1]) + body[1:], True, place=place)
            elif fault == "cut":
                self._send(206, body[: len(body) // 2], True, place=place)
            else:
                self._send(206, body, True, place=place)

        def _send(
            self, status: int, body: bytes, with_body: bool, sent: bytes | None = None, place: str | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Accept-Ranges", "bytes")
            if place:
                self.send_header("Content-Range", place)
            self.end_headers()
            if with_body:
                self.wfile.write(body if sent is None else sent)

    return Handler
