"""Replaces a file whole, so that nobody ever reads half of it."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Writes `path` whole: a reader sees the old content or the new. A failure leaves no other file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
