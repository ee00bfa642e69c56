"""Sources elsewhere: every error of a library becomes one message with a fix."""

import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from huggingface_hub import constants

from stages.data.errors import DataError
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


@pytest.mark.parametrize(
    ("name", "point", "error", "said"),
    [
        *(("httpx", point, NO_NAME, r"Name or service not known\)") for point in ("info", "find", "_open", "readinto")),
        ("requests", "info", answered(401), "the server answered 401 Unauthorized; .* token"),
        ("hub", "info", caused(FileNotFoundError("x"), answered(403)), "403 Forbidden; "),
        ("aiohttp", "info", ClientError("a", status=503), r"the server answered 503 Service Unavailable\)"),
        ("several lines", "info", ClientError("no\n\n  such   luck\n"), "no such luck"),
        ("refused", "info", caused(FileNotFoundError("x"), ConnectionRefusedError(111, "Refused")), "Refused"),
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
    ("source", "said"),
    [
        ("s3://bucket", r"\. To read it, `pip install s3fs`, or download"),
        ("hf://datasets/a/b", "`hf download a/b --repo-type dataset --include"),
    ],
)
def test_a_source_that_cannot_be_reached_says_what_to_install_or_download(tmp_path, monkeypatch, source, said):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=rf"^data\.source: '{source}' cannot be read \(.*{said}"):
        texts(DataSpec(source=source))
