"""hf:// sources, read from a small server that answers as the Hugging Face hub does."""

import json
import random
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

import fsspec.config
import pyarrow
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import parquet

from stages.corpus.corpus import open_corpus
from stages.data.errors import DataError
from stages.data.spec import DataSpec
from tests.web_server import Answer, WebServer

TOKEN = "hf_of_a_test"
LONG = 24_000_000
"""Characters of each file. growctl reads up to 12 MB for the first document."""


class Hub:
    """A hub with the dataset `owner/texts`. It notes what was asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.refuses = ""
        """The code of the hub that files are refused with."""
        self.sent_bytes = 0
        """Of files."""
        self.tokens: set[str | None] = set()

    def answer(self, _: str, path: str, headers: Mapping[str, str], __: bytes) -> Answer:
        headers = {name.lower(): value for name, value in headers.items()}
        path = unquote(urlsplit(path).path).removeprefix("/api").removeprefix("/datasets/")
        owner, name, action, *rest = [*path.split("/", 4), "", "", ""]
        self.tokens.add(headers.get("authorization"))
        if f"{owner}/{name}" != "owner/texts":
            return Answer(401, {"X-Error-Code": "RepoNotFound"})
        if action == "resolve":
            return self._file(rest[1], headers)
        listed = self._listed(rest[1]) if action == "tree" else {"id": "owner/texts", "sha": "0" * 40}
        return Answer(200, {}, json.dumps(listed).encode())

    def _listed(self, folder: str) -> list[dict[str, object]]:
        files = {name: content for name, content in self.files.items() if name.startswith(folder)}
        folders = sorted({name.rpartition("/")[0] for name in files} - {folder, ""})
        return [{"type": "directory", "path": name, "oid": "0", "size": 0} for name in folders] + [
            {"type": "file", "path": name, "oid": "0", "size": len(content)} for name, content in files.items()
        ]

    def _file(self, name: str, headers: Mapping[str, str]) -> Answer:
        if self.refuses:
            return Answer(403, {"X-Error-Code": self.refuses})
        content = self.files[name]
        start, _, last = headers.get("range", f"bytes=0-{len(content) - 1}").removeprefix("bytes=").partition("-")
        part = content[int(start) : int(last) + 1]
        self.sent_bytes += len(part)
        return Answer(206, {}, part)


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
    hub = Hub(files)
    with WebServer(hub.answer).running() as server:
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": server.url})
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


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
