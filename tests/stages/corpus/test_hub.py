"""hf:// sources, read from a small server that answers as the Hugging Face hub does."""

import io
import json
import random
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import fsspec.config
import pyarrow
import pytest
from pyarrow import parquet

from stages.corpus.corpus import open_corpus
from stages.data.errors import DataError
from stages.data.spec import DataSpec
from tests.web_server import Answer, WebServer

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
        path = unquote(urlsplit(path).path).removeprefix("/api").removeprefix("/datasets/")
        owner, name, action, _, below = [*path.split("/", 4), "", "", ""][:5]
        self.tokens.add(headers.get("authorization"))
        if f"{owner}/{name}" != "owner/texts":
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
