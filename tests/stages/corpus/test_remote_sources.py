"""Sources elsewhere: files on a small server that answers as the Hugging Face hub does, and errors with a fix."""

import io
import json
import random
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.parse import unquote, urlsplit

import fsspec.config
import pyarrow
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from huggingface_hub import constants
from pyarrow import parquet

from stages.corpus.corpus import open_corpus
from stages.data.errors import MOST_SAID, DataError, reading, reason
from stages.data.spec import DataSpec
from tests.stages.corpus.small_source import texts
from tests.web_server import Answer, WebServer


class ClientError(Exception):
    """An error class that growctl does not import."""

    def __init__(self, message: str = "", **attributes: object) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def answered(status: int) -> Exception:
    return ClientError(response=SimpleNamespace(status_code=status))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Exception], None]:
    """Lets the method of that name fail while the folder memory://failing is read."""
    MemoryFileSystem().pipe_file("/failing/a.jsonl", b'{"text": "a"}\n')
    assert texts(DataSpec(source="memory://failing")) == ["a"]

    def fail(method: str, error: Exception) -> None:
        where = MemoryFile if method == "readinto" else MemoryFileSystem
        monkeypatch.setattr(where, method, Mock(side_effect=error))

    return fail


NO_NAME = caused(ClientError("failed"), socket.gaierror(-2, "Name or service not known"))
NO_CODEC = ModuleNotFoundError("No module named 'codec'", name="codec.fast")
INSTALL = r"No module named 'codec'\)\. To read it, `pip install codec`, or down"


@pytest.mark.parametrize(
    ("name", "point", "error", "said"),
    [
        *(("httpx", point, NO_NAME, r"Name or service not known\)") for point in ("info", "find", "_open", "readinto")),
        ("requests", "info", answered(401), "the server answered 401 Unauthorized; .* token"),
        ("hub", "info", caused(FileNotFoundError("x"), answered(403)), "403 Forbidden; "),
        ("aiohttp", "info", ClientError("a", status=503), r"the server answered 503 Service Unavailable\)"),
        ("TLS", "info", ssl.SSLCertVerificationError(1, "certificate verify failed"), "certificate verify failed"),
        ("OSError", "info", OSError(5, "Input/output error"), r"Input/output error\)"),
        ("several lines", "info", ClientError("no\n\n  such   luck\n"), "no such luck"),
        ("no text", "info", ClientError(), "ClientError"),
        ("no status", "info", ClientError("odd", status=7, response=SimpleNamespace(status_code="x")), "odd"),
        ("refused", "info", caused(FileNotFoundError("x"), ConnectionRefusedError(111, "Refused")), "Refused"),
        ("module", "info", NO_CODEC, INSTALL),
        ("module, as fsspec puts it", "info", caused(ImportError("install it"), NO_CODEC), INSTALL),
    ],
    ids=lambda value: "" if isinstance(value, Exception) else None,
)
def test_any_error_at_any_point_becomes_a_one_line_message(failing, name, point, error, said):
    failing(point, error)
    way_out = "ownload its files on a machine that can reach it, and set data.source to their location$"
    with pytest.raises(DataError, match=rf"^data\.source: .*failing.* cannot be read \([^\n]*{said}") as caught:
        texts(DataSpec(source="memory://failing"))
    assert caught.match(way_out)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [FileNotFoundError("folder"), answered(404)], ids=["no file", "404"])
def test_a_source_is_missing_only_if_the_server_says_so(failing, error):
    failing("info", error)
    with pytest.raises(DataError, match=r"data\.source: 'memory://failing' does not exist"):
        texts(DataSpec(source="memory://failing"))


@pytest.mark.parametrize(
    ("error", "said"),
    [(NO_CODEC, r"\(No .*\)\. To read it, `pip install codec`$"), (ClientError("odd"), r"\(odd\)$")],
    ids=["module", "other"],
)
def test_an_error_without_a_way_out_names_at_most_a_package(error, said):
    with pytest.raises(DataError, match=f"^a file cannot be read {said}"), reading("a file"):
        raise error


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("s3://bucket", r"\. To read it, `pip install s3fs`, or download"),
        ("nosuchprotocol://x", "Protocol not known"),
        ("hf://datasets/a/b", "`hf download a/b --repo-type dataset --include"),
    ],
)
def test_a_source_that_cannot_be_reached_from_here_says_what_to_install_or_download(
    tmp_path, monkeypatch, source, said
):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=rf"^data\.source: '{source}' cannot be read \(.*{said}"):
        texts(DataSpec(source=source))


@pytest.mark.parametrize("length", [MOST_SAID, MOST_SAID + 1])
def test_a_long_message_from_another_library_is_cut(length):
    said = reason(ClientError("x" * length))
    assert (len(said), said.endswith("...")) == (MOST_SAID, length > MOST_SAID)


# The Hugging Face hub

TOKEN = "hf_of_a_test"
LONG = 24_000_000
"""Characters of each file. growctl reads up to 12 MB for the first document."""


class Hub:
    """A hub with the dataset `owner/texts`: a Parquet file and JSON lines. It notes what was asked for."""

    def __init__(self) -> None:
        numbers, table = random.Random(0), io.BytesIO()
        rows = [numbers.randbytes(LONG // 400).hex() for _ in range(200)]
        parquet.write_table(pyarrow.table({"text": rows}), table, row_group_size=10, use_dictionary=False)
        lines = b"".join(json.dumps({"text": row}).encode() + b"\n" for row in rows)
        self.files = {"data/a.parquet": table.getvalue(), "lines/a.jsonl": lines}
        self.refuses = ""
        """The code of the hub that files are refused with."""
        self.num_sent_bytes = 0
        """Of files."""
        self.tokens: set[str | None] = set()

    def answer(self, _, path, headers, __) -> Answer:
        headers = {name.lower(): value for name, value in headers.items()}
        self.tokens.add(headers.get("authorization"))
        _, found, rest = unquote(urlsplit(path).path).partition("/datasets/owner/texts")
        action, _, below = [*rest[1:].split("/", 2), "", ""][:3]
        if not found:
            return Answer(401, {"X-Error-Code": "RepoNotFound"})
        if action == "tree":
            files = {name: len(content) for name, content in self.files.items() if name.startswith(below)}
            folders = {name.rpartition("/")[0] for name in files} - {below}
            entries = [{"type": "directory", "path": name, "oid": "0", "size": 0} for name in folders]
            entries += [{"type": "file", "path": name, "oid": "0", "size": size} for name, size in files.items()]
            return Answer(200, {}, json.dumps(entries).encode())
        if action != "resolve":
            return Answer(200, {}, json.dumps({"id": "owner/texts", "sha": "0" * 40}).encode())
        if self.refuses:
            return Answer(403, {"X-Error-Code": self.refuses})
        content = self.files[below]
        start, _, last = headers.get("range", f"bytes=0-{len(content) - 1}").removeprefix("bytes=").partition("-")
        part = content[int(start) : int(last) + 1]
        self.num_sent_bytes += len(part)
        return Answer(206, {}, part)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    hub = Hub()
    with WebServer(hub.answer).running() as server, pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "hf", {"endpoint": server.url})
        patch.setenv("HF_TOKEN", TOKEN)
        yield hub


def first_text(source: str) -> str:
    found = open_corpus(DataSpec(source=source, validation_fraction=1e-9))
    return next(found.documents(found.files, "train")).text


@pytest.mark.parametrize("folder", ["data", "lines"])
def test_a_file_on_the_hub_is_read_in_parts_with_the_users_token(hub, folder):
    before = hub.num_sent_bytes
    assert len(first_text(f"hf://datasets/owner/texts/{folder}")) == LONG // 200
    assert hub.num_sent_bytes - before < 0.6 * LONG
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_a_gated_dataset_and_one_that_the_hub_does_not_show_say_which_credentials_to_give(hub, monkeypatch):
    monkeypatch.setattr(hub, "refuses", "GatedRepo")
    message = r"a\.jsonl cannot be read \(.* 403 Forbidden; .* if the dataset is gated, accept its"
    with pytest.raises(DataError, match=message):
        first_text("hf://datasets/owner/texts/lines")
    with pytest.raises(DataError, match=r"owner/text' cannot be read \(.* 401 Unauthorized; private data needs cr"):
        first_text("hf://datasets/owner/text")
