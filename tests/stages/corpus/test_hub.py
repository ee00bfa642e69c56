"""hf:// sources, read from a small server that answers as the Hugging Face hub does."""

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import fsspec.config
import pyarrow
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import parquet

from stages.corpus.corpus import open_corpus
from stages.data.errors import DataError
from stages.data.spec import DataSpec

TOKEN = "hf_of_a_test"
LONG = 24_000_000
"""Characters of each file. growctl reads up to 12 MB for the first document."""


class Hub(ThreadingHTTPServer):
    """A hub with the dataset `owner/texts`. It notes what was asked for."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.refuses = ""
        """The code of the hub that files are refused with."""
        self.sent_bytes = 0
        """Of files."""
        self.tokens: set[str | None] = set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        kind, _, rest = unquote(urlsplit(self.path).path).removeprefix("/api").removeprefix("/datasets/").partition("/")
        name, _, rest = rest.partition("/")
        action, _, rest = rest.partition("/")
        self.server.tokens.add(self.headers.get("Authorization"))
        if f"{kind}/{name}" != "owner/texts":
            self._answer(401, b"", "RepoNotFound")
        elif action == "resolve":
            self._file(rest.partition("/")[2])
        elif action == "tree":
            self._answer(200, json.dumps(self._listed(rest.partition("/")[2])).encode())
        else:
            self._answer(200, json.dumps({"id": "owner/texts", "sha": "0" * 40}).encode())

    def _listed(self, folder: str) -> list[dict[str, object]]:
        files = {name: content for name, content in self.server.files.items() if name.startswith(folder)}
        folders = sorted({name.rpartition("/")[0] for name in files} - {folder, ""})
        return [{"type": "directory", "path": name, "oid": "0", "size": 0} for name in folders] + [
            {"type": "file", "path": name, "oid": "0", "size": len(content)} for name, content in files.items()
        ]

    def _file(self, name: str) -> None:
        if self.server.refuses:
            self._answer(403, b"", self.server.refuses)
            return
        content = self.server.files[name]
        start, _, last = self.headers.get("Range", f"bytes=0-{len(content) - 1}").removeprefix("bytes=").partition("-")
        part = content[int(start) : int(last) + 1]
        self.server.sent_bytes += len(part)
        self._answer(206, part)

    def _answer(self, status: int, body: bytes, code: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """A Parquet file and JSON lines, each larger than what one document needs."""
    numbers = random.Random(0)
    table = pyarrow.table({"text": [numbers.randbytes(LONG // 400).hex() for _ in range(200)]})
    memory = MemoryFileSystem()
    with memory.open("/hub.parquet", "wb") as file:
        parquet.write_table(table, file, row_group_size=10, use_dictionary=False)
    lines = b"".join(json.dumps({"text": row}).encode() + b"\n" for row in table["text"].to_pylist())
    return {"data/a.parquet": memory.cat("/hub.parquet"), "lines/a.jsonl": lines}


@pytest.fixture
def hub(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(files)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": endpoint})
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def first_text(source: str) -> str:
    found = open_corpus(DataSpec(source=source, validation_fraction=1e-9))
    return next(found.documents(found.files, "train")).text


@pytest.mark.parametrize("folder", ["data", "lines"])
def test_a_file_on_the_hub_is_read_in_parts_with_the_users_token(hub: Hub, folder: str) -> None:
    assert len(first_text(f"hf://datasets/owner/texts/{folder}")) == LONG // 200
    assert hub.sent_bytes < 0.6 * LONG
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_a_gated_dataset_and_one_that_the_hub_does_not_show_say_which_credentials_to_give(hub: Hub) -> None:
    hub.refuses = "GatedRepo"
    with pytest.raises(
        DataError, match=r"a\.jsonl cannot be read \(.* 403 Forbidden; .* if the dataset is gated, accept its"
    ):
        first_text("hf://datasets/owner/texts/lines")
    with pytest.raises(DataError, match=r"owner/text' cannot be read \(.* 401 Unauthorized; private data needs cr"):
        first_text("hf://datasets/owner/text")
