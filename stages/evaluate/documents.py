"""The text to evaluate on, as token ids.

A text file is one document; a file of JSON lines (`.jsonl`, also compressed) has one per line. Each stands between the
beginning of text, if the model has one, and the end of text, as in training.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from fsspec.implementations.local import LocalFileSystem
from tokenizers import Tokenizer

from model.errors import UserError
from stages.checkpoint.manifest import TextFacts
from stages.corpus.encoding import encode_documents
from stages.corpus.files import SourceFile
from stages.corpus.location import nearest_beside
from stages.corpus.records import BadRecord, read_records
from stages.data.errors import DataError, reading
from stages.data.spec import SourceSpec
from stages.data.tokens import Int64Array

_WHITESPACE = re.compile(r"\s+")


class TokenStream:
    """The tokens of some files, in order, and what has been counted of their text so far."""

    def __init__(self, files: Sequence[Path], tokenizer: Tokenizer, facts: TextFacts) -> None:
        self.num_tokens = 0
        """Tokens so far, with the beginning and the end of text of each document."""
        self.num_words = 0
        """Words as lm-evaluation-harness counts them: the parts into which runs of white space cut a document."""
        self.num_bytes = 0
        """UTF-8 bytes of the documents."""
        self._left = 0
        self._files = files
        self._total_bytes = sum(file.stat().st_size for file in files)
        self._tokenizer, self._facts = Tokenizer.from_str(tokenizer.to_str()), facts

    def __iter__(self) -> Iterator[Int64Array]:
        """Yields the tokens in arrays of any length."""
        texts, facts = ((None, text) for text in self._texts()), self._facts
        ids = facts.begin_of_text_id, facts.end_of_text_id
        for _, tokens, left in encode_documents(self._tokenizer, texts, *ids, np.int64):
            self.num_tokens, self._left = self.num_tokens + len(tokens), left
            yield tokens

    @property
    def fraction(self) -> float:
        """The share of the files whose tokens have been read; 1 before the end if they are compressed."""
        return min(1.0, max(0, self.num_bytes - self._left) / max(1, self._total_bytes))

    def _texts(self) -> Iterator[str]:
        for text in (text for file in self._files for text in _documents(file) if text and not text.isspace()):
            self.num_words += len(_WHITESPACE.findall(text)) + 1
            self.num_bytes += len(text.encode())
            yield text


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
            near = nearest_beside(str(path))
            hint = f"; did you mean {near!r}?" if near else ""
            raise UserError(f"--text {path}: there is no such file, or no file in that folder; give a local one{hint}")
        files += own
    return files


def _documents(path: Path) -> Iterator[str]:
    file, spec = SourceFile(str(path), path.name, num_bytes=0, version=""), SourceSpec(source=str(path))
    with reading(f"--text {path}"):
        for record in read_records(LocalFileSystem(), file, spec, is_folder=True):
            if isinstance(record, BadRecord):
                raise DataError(f"--text: {record.message.partition(': ')[2]}")
            yield record
