"""The text to evaluate on, as token ids.

A file is one document; a file of JSON lines (`.jsonl`, also compressed) has one per line. The end of text follows each
document, as in training.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, pairwise
from pathlib import Path

import fsspec
import numpy as np
import orjson
from tokenizers import Tokenizer

from model.errors import UserError
from stages.corpus.encoding import is_cuttable, pieces
from stages.corpus.records import BYTE_ORDER_MARK
from stages.data.errors import DataError, reading
from stages.data.tokens import Int64Array

PIECES_AT_ONCE = 8
"""Pieces that the tokenizer encodes in parallel."""

_WHITESPACE = re.compile(r"\s+")


class TokenStream:
    """The tokens of some files, in order, and what has been counted of their text so far."""

    def __init__(self, files: Sequence[Path], tokenizer: Tokenizer, end_of_text_id: int | None) -> None:
        self.files = files
        self.num_documents = 0
        self.num_tokens = 0
        """Tokens so far, with the end of text after each document."""
        self.num_words = 0
        """Words as lm-evaluation-harness counts them: the parts into which runs of white space cut a document."""
        self.num_bytes = 0
        """UTF-8 bytes of the documents."""
        self._total_bytes = sum(file.stat().st_size for file in files)
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.encode_special_tokens = True  # an end of text spelled out in a document is ordinary text
        self._cuttable = is_cuttable(self._tokenizer)
        self._end = np.array([] if end_of_text_id is None else [end_of_text_id], np.int64)

    def __iter__(self) -> Iterator[Int64Array]:
        """Yields the tokens in arrays of any length."""
        pieces_left = self._pieces()
        while batch := list(islice(pieces_left, PIECES_AT_ONCE)):
            encodings = self._tokenizer.encode_batch([text for text, _ in batch], add_special_tokens=False)
            for encoding, (_, is_last) in zip(encodings, batch, strict=True):
                ids = np.array(encoding.ids, np.int64)
                tokens = np.concatenate((ids, self._end)) if is_last else ids
                self.num_tokens += len(tokens)
                yield tokens

    @property
    def fraction(self) -> float:
        """The share of the files that has been read; 1 before the end if they are compressed."""
        return min(1.0, self.num_bytes / max(1, self._total_bytes))

    def _pieces(self) -> Iterator[tuple[str, bool]]:
        """Pieces of all documents, each with whether it is the last of its document. Counts them."""
        for text in (text for file in self.files for text in _documents(file) if not text.isspace() and text):
            self.num_documents += 1
            self.num_words += len(_WHITESPACE.findall(text)) + 1
            parts = pieces(text) if self._cuttable else (text,)
            for piece, following in pairwise(chain(parts, ("",))):
                self.num_bytes += len(piece.encode())
                yield piece, not following


def text_files(paths: Iterable[Path]) -> list[Path]:
    """The files at `paths`; of a folder, all files in it and below, by name, without hidden ones.

    Raises UserError if a path does not exist or a folder has no file.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = (file for file in sorted(path.rglob("*")) if file.is_file())
            own = [file for file in inside if not any(part[0] == "." for part in file.relative_to(path).parts)]
        else:
            own = [path] if path.exists() else []
        if not own:
            raise UserError(f"--text {path}: there is no such file, or no file in that folder; give a local one")
        files += own
    return files


def _documents(path: Path) -> Iterator[str]:
    with (
        reading(f"--text {path}"),
        fsspec.open(str(path), "rt", encoding="utf-8-sig", newline="\n", compression="infer") as stream,
    ):
        if ".jsonl" not in path.suffixes[-2:]:
            yield stream.read()
            return
        for number, line in enumerate(stream, start=1):
            record = None
            with suppress(orjson.JSONDecodeError):
                record = orjson.loads(line) if not line.isspace() else {"text": ""}
            if not isinstance(record, dict) or not isinstance(record.get("text"), str):
                raise DataError(f"--text {path}, line {number}: it must be a JSON object with a text under 'text'")
            yield record["text"].removeprefix(BYTE_ORDER_MARK)
