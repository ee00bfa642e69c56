"""stages/outside.py: whatever a file system raises is one sentence, with the reason and the way out."""

import io
import re
import socket
import ssl
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

from stages.corpus import SPLITS, DataError, DataSpec, open_corpus


class ClientError(Exception):
    """Of a class that growctl has never heard of."""

    def __init__(self, message: str = "", **attributes: object) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


ERRORS = {
    "httpx": (
        caused(ClientError("failed"), socket.gaierror(-2, "Name or service not known")),
        "Name or service not known",
    ),
    "requests": (
        ClientError(response=SimpleNamespace(status_code=401)),
        "the server answered 401 Unauthorized; .* token",
    ),
    "hub": (caused(FileNotFoundError("x"), ClientError(response=SimpleNamespace(status_code=403))), "403 Forbidden; "),
    "aiohttp": (ClientError("a", status=503), r"the server answered 503 Service Unavailable\)"),
    "botocore": (ClientError("b", response={"ResponseMetadata": {"HTTPStatusCode": 403}}), "403 Forbidden"),
    "TLS": (ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed"), "certificate verify failed"),
    "time-out": (TimeoutError("timed out"), "timed out"),
    "OSError": (OSError(5, "Input/output error"), "Input/output error"),
    "several lines": (ClientError("no\n\n  such   luck\n"), "no such luck"),
    "no text": (ClientError(), "ClientError"),
    "no status": (ClientError("odd", status=7, response=SimpleNamespace(status_code="x")), "odd"),
}


class Failing(AbstractFileSystem):
    """A folder of one file that fails at one point of being read."""

    protocol = "failing"
    cachable = False
    point = ""
    error: Exception = ClientError()

    def _fail(self, point: str) -> None:
        if point == self.point:
            raise self.error

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self._fail("info")
        kind = "file" if path.endswith(".jsonl") else "directory"
        return {"name": self._strip_protocol(path), "size": 100, "type": kind}

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self._fail("list")
        return {"folder/a.jsonl": self.info("folder/a.jsonl")}

    def _open(self, path: str, *args: Any, **kwargs: Any) -> io.BytesIO:
        self._fail("open")
        if self.point != "read":
            return io.BytesIO(b'{"text": "a"}\n')
        outer = self

        class Broken(io.BytesIO):
            def read1(self, size: int | None = -1) -> bytes:
                if data := super().read1(10):
                    return data
                raise outer.error

        return Broken(b'{"text": "a"}\n')


@pytest.fixture
def failing() -> Iterator[type[Failing]]:
    fsspec.register_implementation("failing", Failing, clobber=True)
    yield Failing
    Failing.point = ""


def read_all(source: str) -> list[str]:
    found = open_corpus(DataSpec(source=source))
    return [document.text for split in SPLITS for document in found.documents(found.files, split)]


@pytest.mark.parametrize("point", ["info", "list", "open", "read"])
@pytest.mark.parametrize("name", ERRORS)
def test_whatever_is_raised_wherever_is_one_sentence(failing: type[Failing], name: str, point: str) -> None:
    failing.error, said = ERRORS[name]
    failing.point = point
    with pytest.raises(DataError, match=rf"^data\.source: .*folder.* cannot be read \(.*{said}") as caught:
        read_all("failing://folder")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(
        "Download its files where it can be reached, and set data.source to where they are"
    )
    assert caught.value.__cause__ is failing.error


def test_what_fails_above_is_read_where_nothing_fails(failing: type[Failing]) -> None:
    assert read_all("failing://folder") == ["a"]


def test_what_a_server_does_not_have_does_not_exist(failing: type[Failing]) -> None:
    failing.point = "info"
    for error in (FileNotFoundError("folder"), ClientError(response=SimpleNamespace(status_code=404))):
        failing.error = error
        with pytest.raises(DataError, match=r"data\.source: 'failing://folder' does not exist"):
            open_corpus(DataSpec(source="failing://folder"))


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (
            "hf://datasets/a/b",
            r"`hf download a/b --repo-type dataset --include '\*\*/\*' --local-dir DIR`; then .*=DIR$",
        ),
        ("hf://datasets/a/b@v1/c/d", r"--include 'c/d/\*\*/\*' --revision v1 --local-dir DIR`; then .*=DIR/c/d$"),
        (
            "hf://datasets/a/b/c/d.jsonl",
            r"--include c/d\.jsonl --local-dir DIR`; then set data\.source=DIR/c/d\.jsonl$",
        ),
        (
            "hf://datasets/a/b/c/*.jsonl",
            r"--include 'c/\*\.jsonl' --local-dir DIR`; then set data\.source=DIR/c/\*\.jsonl$",
        ),
        ("s3://bucket/texts", r"Download its files where it can be reached, and set data\.source to where they are$"),
        ("/local/texts", "^$"),
        ("file:///local/texts", "^$"),
    ],
)
def test_the_way_out_is_a_command_that_fetches_the_source(source: str, command: str) -> None:
    assert re.search(command, DataSpec(source=source).by_hand)
