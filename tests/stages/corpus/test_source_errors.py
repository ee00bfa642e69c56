"""stages/data/errors.py: every file system error becomes one sentence with a cause and a fix."""

import io
import re
import shlex
import socket
import ssl
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem
from huggingface_hub.utils import filter_repo_objects

from stages.corpus.corpus import open_corpus
from stages.corpus.location import by_hand
from stages.data.errors import MOST_SAID, DataError, reading, reason
from stages.data.spec import SPLITS, DataSpec


class ClientError(Exception):
    """An error class that growctl does not import."""

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
    "TLS": (ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed"), "certificate verify failed"),
    "time-out": (TimeoutError("timed out"), "timed out"),
    "OSError": (OSError(5, "Input/output error"), "Input/output error"),
    "several lines": (ClientError("no\n\n  such   luck\n"), "no such luck"),
    "no text": (ClientError(), "ClientError"),
    "no status": (ClientError("odd", status=7, response=SimpleNamespace(status_code="x")), "odd"),
}


class Failing(AbstractFileSystem):
    """A folder with one file. Reading it fails at a chosen point."""

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
            def readinto(self, buffer: Any) -> int:
                if data := self.read(min(10, len(buffer))):
                    buffer[: len(data)] = data
                    return len(data)
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


@pytest.mark.parametrize(
    ("name", "point"), [(name, "info") for name in ERRORS] + [("httpx", point) for point in ("list", "open", "read")]
)
def test_any_error_at_any_point_becomes_a_one_line_message(failing: type[Failing], name: str, point: str) -> None:
    assert read_all("failing://folder") == ["a"]
    failing.error, said = ERRORS[name]
    failing.point = point
    with pytest.raises(DataError, match=rf"^data\.source: .*folder.* cannot be read \(.*{said}") as caught:
        read_all("failing://folder")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(
        "Download its files on a machine that can reach it, and set data.source to their location"
    )
    assert caught.value.__cause__ is failing.error


def test_a_source_is_missing_only_if_the_server_says_so(failing: type[Failing]) -> None:
    failing.point = "info"
    refused = ConnectionRefusedError(111, "Connect call failed")
    for error, message in (
        (FileNotFoundError("folder"), "does not exist"),
        (ClientError(response=SimpleNamespace(status_code=404)), "does not exist"),
        # fsspec's HTTP file system says so whatever went wrong
        (caused(FileNotFoundError("folder"), refused), r"cannot be read \(Connect call failed\)"),
    ):
        failing.error = error
        with pytest.raises(DataError, match=rf"data\.source: 'failing://folder' {message}"):
            open_corpus(DataSpec(source="failing://folder"))


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (
            "hf://datasets/a/b",
            r"`hf download a/b --repo-type dataset --include '\*' --local-dir DIR`; then .*=DIR$",
        ),
        ("hf://datasets/a/b@v1/c/d", r"--include 'c/d/\*' --revision v1 --local-dir DIR`; then .*=DIR/c/d$"),
        (
            "hf://datasets/a/b/c/d.jsonl",
            r"--include c/d\.jsonl --local-dir DIR`; then set data\.source=DIR/c/d\.jsonl$",
        ),
        (
            "hf://datasets/a/b/c/*.jsonl",
            r"--include 'c/\*\.jsonl' --local-dir DIR`; then set data\.source=DIR/c/\*\.jsonl$",
        ),
        ("hf://datasets/a/b/c/**/*.jsonl", r"--include 'c/\*\.jsonl' --local-dir DIR`; then .*=DIR/c/\*\*/\*\.jsonl$"),
        ("gs://bucket/texts", r"^download its files on a machine that can reach it, and set data\.source to their loc"),
        ("/local/texts", "^$"),
        ("file:///local/texts", "^$"),
    ],
)
def test_the_message_gives_a_command_that_downloads_the_source(source: str, command: str) -> None:
    assert re.search(command, by_hand(DataSpec(source=source)))


@pytest.mark.parametrize(
    ("include", "files"),
    [
        ("**/*.jsonl.zst", ["train/00.jsonl.zst", "train/29.jsonl.zst", "train/nested/deeper/30.jsonl.zst"]),
        ("**/30.jsonl.zst", ["train/nested/deeper/30.jsonl.zst"]),
        ("nested/**/*.zst", ["train/nested/deeper/30.jsonl.zst"]),
        ("**/*", ["train/00.jsonl.zst", "train/29.jsonl.zst", "train/README.md", "train/nested/deeper/30.jsonl.zst"]),
    ],
)
def test_the_command_downloads_the_files_that_the_source_includes(include: str, files: list[str]) -> None:
    published = ["README.md", "test.jsonl.zst", "train/00.jsonl.zst", "train/29.jsonl.zst", "train/README.md"]
    source = "hf://datasets/monology/pile-uncopyrighted/train"
    words = shlex.split(by_hand(DataSpec(source=source, include=include)).split("`")[1])
    pattern = words[words.index("--include") + 1]
    found = filter_repo_objects([*published, "train/nested/deeper/30.jsonl.zst"], allow_patterns=pattern)
    assert list(found) == files


def test_a_missing_package_is_named_with_the_command_to_install_it(failing: type[Failing]) -> None:
    cause = ModuleNotFoundError("No module named 'codec'", name="codec.fast")
    failing.point = "info"
    for failing.error in (cause, caused(ImportError("as fsspec puts it"), cause)):
        with pytest.raises(DataError, match=r"\(No module named 'codec'\)\. To read it, `pip install codec`, or downl"):
            read_all("failing://folder")
    message = r"^a file cannot be read \(.*\)\. To read it, `pip install codec`$"
    with pytest.raises(DataError, match=message), reading("a file"):
        raise cause


def test_a_missing_file_system_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    with pytest.raises(
        DataError, match=r"'s3://bucket' cannot be read \(.*\)\. To read it, `pip install s3fs`, or download"
    ):
        open_corpus(DataSpec(source="s3://bucket"))


def test_a_long_message_from_another_library_is_cut() -> None:
    for length in (MOST_SAID, MOST_SAID + 1):
        said = reason(ClientError("x" * length))
        assert len(said) == MOST_SAID
        assert said.endswith("...") == (length > MOST_SAID)
