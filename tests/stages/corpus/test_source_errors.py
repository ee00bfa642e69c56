"""stages/data/errors.py: every file system error becomes one sentence with a cause and a fix."""

import io
import socket
import ssl
import sys
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem
from huggingface_hub import constants

from stages.data.errors import MOST_SAID, DataError, reading, reason
from stages.data.spec import DataSpec
from tests.stages.corpus.small_source import texts


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


class Broken(io.BytesIO):
    """Fails at its end."""

    def readinto(self, buffer):
        if data := self.read(min(10, len(buffer))):
            buffer[: len(data)] = data
            return len(data)
        raise Failing.error


class Failing(AbstractFileSystem):
    """A folder with one file. Reading it fails at a chosen point."""

    protocol = "failing"
    cachable = False
    point = ""
    error: Exception = ClientError()

    def info(self, path, **_):
        if self.point == "info":
            raise self.error
        kind = "file" if path.endswith(".jsonl") else "directory"
        return {"name": self._strip_protocol(path), "size": 100, "type": kind}

    def find(self, path, *_, **__):
        if self.point == "list":
            raise self.error
        return {"folder/a.jsonl": self.info("folder/a.jsonl")}

    def _open(self, path, *_, **__):
        if self.point == "open":
            raise self.error
        return (Broken if self.point == "read" else io.BytesIO)(b'{"text": "a"}\n')


@pytest.fixture(autouse=True)
def failing(monkeypatch: pytest.MonkeyPatch) -> type[Failing]:
    fsspec.register_implementation("failing", Failing, clobber=True)
    monkeypatch.setattr(Failing, "point", "")
    return Failing


NO_NAME = caused(ClientError("failed"), socket.gaierror(-2, "Name or service not known"))
NO_CODEC = ModuleNotFoundError("No module named 'codec'", name="codec.fast")
INSTALL = r"No module named 'codec'\)\. To read it, `pip install codec`, or down"


@pytest.mark.parametrize(
    ("name", "point", "error", "said"),
    [
        *(("httpx", point, NO_NAME, r"Name or service not known\)") for point in ("info", "list", "open", "read")),
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
    assert texts(DataSpec(source="failing://folder")) == ["a"]
    failing.error, failing.point = error, point
    with pytest.raises(DataError, match=rf"^data\.source: .*folder.* cannot be read \(.*{said}") as caught:
        texts(DataSpec(source="failing://folder"))
    assert "\n" not in str(caught.value)
    way_out = "ownload its files on a machine that can reach it, and set data.source to their location"
    assert str(caught.value).endswith(way_out)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [FileNotFoundError("folder"), answered(404)], ids=["no file", "404"])
def test_a_source_is_missing_only_if_the_server_says_so(failing, error):
    failing.error, failing.point = error, "info"
    with pytest.raises(DataError, match=r"data\.source: 'failing://folder' does not exist"):
        texts(DataSpec(source="failing://folder"))


@pytest.mark.parametrize(
    ("error", "said"),
    [(NO_CODEC, r"\(No .*\)\. To read it, `pip install codec`$"), (ClientError("odd"), r"\(odd\)$")],
    ids=["module", "other"],
)
def test_an_error_without_a_way_out_names_at_most_a_package(error, said):
    with pytest.raises(DataError, match=f"^a file cannot be read {said}"), reading("a file"):
        raise error


def test_the_package_of_a_file_system_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    message = r"'s3://bucket' cannot be read \(.*\)\. To read it, `pip install s3fs`, or download"
    with pytest.raises(DataError, match=message):
        texts(DataSpec(source="s3://bucket"))


def test_without_a_network_the_error_names_the_dataset_to_download_from_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = r"^data\.source: 'hf://datasets/a/b' cannot be read \(.*`hf download a/b --repo-type dataset --include"
    with pytest.raises(DataError, match=message):
        texts(DataSpec(source="hf://datasets/a/b"))


def test_a_long_message_from_another_library_is_cut():
    for length in (MOST_SAID, MOST_SAID + 1):
        said = reason(ClientError("x" * length))
        assert len(said) == MOST_SAID
        assert said.endswith("...") == (length > MOST_SAID)
