"""A small source for the tests of data."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sixty documents, some with text that careless processing would damage."""
    source = tmp_path / "texts"
    source.mkdir()
    for number in range(60):
        text = f"Document {number}\r\n\tsays  héllo 𝄞 <|endoftext|> and\x00."
        (source / f"{number:02d}.txt").write_bytes(text.encode())
    return source
