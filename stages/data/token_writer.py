"""Writes the token file of a shard and its index. Both get their names only once they are complete and on the disk."""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Self

import numpy as np

from stages.checkpoint.files import sync_path
from stages.data.corpus import SPLITS
from stages.data.dataset import DatasetFile, range_hashes_of
from stages.data.encoding import Tokens

ENDINGS = ("ds", "ds.index")
"""The tokens; where documents end (uint64, in tokens)."""


class TokenWriter:
    """Writes `FOLDER/NUMBER.ds` and its index below a dataset. Removes what it has not finished."""

    def __init__(self, dataset: Path, folder: str, number: int) -> None:
        """Opens temporary files: two processes that write the same shard do not disturb each other."""
        self._dataset, self._folder = dataset, dataset / folder
        self._folder.mkdir(exist_ok=True)
        own = f"{os.getpid()}-{secrets.token_hex(4)}.tmp"
        self._names = [f"{number:05d}.{ending}" for ending in ENDINGS]
        self._temporary = [self._folder / f".{name}.{own}" for name in self._names]
        self._files = [path.open("wb") for path in self._temporary]
        self._hashes = [hashlib.sha256() for _ in ENDINGS]
        self.num_tokens = self.num_documents = 0

    def add(self, tokens: Tokens, ends_document: bool) -> None:
        """Writes tokens of a document; with `ends_document`, the document ends after them."""
        self.num_tokens += len(tokens)
        self._write(0, tokens.tobytes())
        if ends_document:
            self.num_documents += 1
            self._write(1, np.uint64(self.num_tokens).tobytes())

    def _write(self, which: int, content: bytes) -> None:
        self._files[which].write(content)
        self._hashes[which].update(content)

    def finish(self) -> tuple[DatasetFile, ...]:
        """Syncs the files, gives them their names and adds the hashes of ranges. A shard without documents has none."""
        sizes = [file.tell() for file in self._files]
        for file in self._files:
            file.close()
        finished = []
        for temporary, name, size, hashed in zip(self._temporary, self._names, sizes, self._hashes, strict=True):
            path = self._folder / name
            if size == 0:
                temporary.unlink()
                continue
            sync_path(temporary)
            os.rename(temporary, path)
            finished.append(
                DatasetFile(name=path.relative_to(self._dataset).as_posix(), bytes=size, sha256=hashed.hexdigest())
            )
        if finished and self._folder.name in SPLITS:
            finished.append(range_hashes_of(self._dataset, finished[0].name))
        sync_path(self._folder)
        return tuple(finished)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file, path in zip(self._files, self._temporary, strict=True):
            file.close()
            path.unlink(missing_ok=True)
