"""A web server on the loopback, of a folder or in front of another server, with faults on demand."""

import re
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, NamedTuple

Fault = Literal["drop", "500", "503", "truncate", "alter", "cut"]
"""drop: the connection closes without an answer. truncate: it closes in the middle of the body. cut: the answer is
whole, but shorter than what was asked for. alter: a byte of the body differs."""

FAULTS: tuple[Fault, ...] = ("drop", "500", "truncate", "alter", "503", "cut", "drop", "500", "truncate", "500")


class Answer(NamedTuple):
    """What a server answers."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""


Origin = Callable[[str, str, Mapping[str, str], bytes], Answer]
"""(method, path, headers, body) of a request -> its answer."""


class WebServer:
    """Answers as `origin` does. Each answer with a range has the next of `faults`, as long as there are any."""

    def __init__(self, origin: Origin) -> None:
        self.faults: deque[Fault] = deque()
        self.injected: Counter[str] = Counter()
        self.forbidden = False
        self.requests: Counter[str] = Counter()
        """Requests for ranges, by path; all requests once it is forbidden."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, origin))
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


def folder(root: Path) -> Origin:
    """The files of a folder, with ranges."""

    def answer(method: str, path: str, headers: Mapping[str, str], _: bytes) -> Answer:
        file = root / path.lstrip("/")
        if not file.is_file():
            return Answer(404)
        content = file.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("Range", ""))
        if not asked or method == "HEAD":
            return Answer(200, {"Accept-Ranges": "bytes"}, content)
        start, last = int(asked[1]), int(asked[2])
        place = {"Content-Range": f"bytes {start}-{last}/{len(content)}"}
        return Answer(416) if start >= len(content) else Answer(206, place, content[start : last + 1])

    return answer


def server_at(port: int) -> Origin:
    """Another server on the loopback, which sees each request as it was sent."""

    def answer(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        connection = HTTPConnection("127.0.0.1", port)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        passed = {name: value for name, value in response.getheaders() if name.lower() not in _OF_THIS_CONNECTION}
        if method == "HEAD":
            passed["Content-Length"] = response.getheader("Content-Length", "0")
        return Answer(response.status, passed, content)

    return answer


_OF_THIS_CONNECTION = ("connection", "content-length", "transfer-encoding", "date", "server")


def _handler(server: WebServer, origin: Origin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet for head and body: two would wait for an acknowledgement

        def log_message(self, *_: object) -> None:
            pass

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asks_for_range = self.command == "GET" and "Range" in self.headers
            server.requests[self.path] += server.forbidden or asks_for_range
            if server.forbidden:
                self._send(Answer(403))
                return
            answer = origin(self.command, self.path, dict(self.headers.items()), body)
            if asks_for_range and answer.status == 206:
                self._send_range(answer)
            else:
                self._send(answer)

        do_GET = do_HEAD = do_POST = do_PUT = _serve

        def _send_range(self, answer: Answer) -> None:
            fault = server.faults.popleft() if server.faults else None
            server.injected[fault or "none"] += 1
            body = answer.body
            if fault == "drop":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            elif fault in ("500", "503"):
                self._send(Answer(int(fault)))
            elif fault == "truncate":
                self.close_connection = True
                self._send(answer, body[: len(body) // 2])
            elif fault == "alter":
                self._send(answer._replace(body=bytes([body[0] ^ 1]) + body[1:]))
            elif fault == "cut":
                self._send(answer._replace(body=body[: len(body) // 2]))
            else:
                self._send(answer)

        def _send(self, answer: Answer, sent: bytes | None = None) -> None:
            self.send_response(answer.status)
            for name, value in ({"Content-Length": str(len(answer.body))} | dict(answer.headers)).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body if sent is None else sent)

    return Handler
