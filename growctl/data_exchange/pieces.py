"""The documents of token files that belong to each split, and the checks on their tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from growctl.data_exchange.token_bytes import bytes_by_token, decoded_bytes
from stages.counted import counted
from stages.data.corpus import SPLITS, SplitName
from stages.data.source_errors import DataError
from stages.token_files.files import TokenFiles
from stages.token_files.mapped import Int64Array, chunks


@dataclass(frozen=True)
class Piece:
    """Consecutive documents of token files that belong to one split."""

    files: TokenFiles
    first: int
    stop: int

    @property
    def start_token(self) -> int:
        """Where the first document begins."""
        return self._end(self.first)

    @property
    def stop_token(self) -> int:
        """Where the last document ends."""
        return self._end(self.stop)

    @property
    def num_tokens(self) -> int:
        """The tokens of the documents."""
        return self.stop_token - self.start_token

    def _end(self, number: int) -> int:
        return int(self.files.ends(number - 1, number)[0]) if number else 0


@dataclass(frozen=True)
class Content:
    """What the tokens of a piece turned out to be."""

    num_bytes: int
    """UTF-8 bytes of the text."""

    num_documents: int
    """Documents that have tokens; a dataset holds no others."""

    num_unended: int
    """Documents that do not end in the end of text."""

    num_inner_ends: int
    """Ends of text before the end of their document."""


def split_pieces(
    train: Sequence[TokenFiles], validation: Sequence[TokenFiles], validation_fraction: float
) -> dict[SplitName, list[Piece]]:
    """The documents of each split: all of the files given for it or, if none are given for validation, the last
    documents with tokens of every file. Raises DataError if a file is given twice or a split gets no tokens.
    """
    _require_different([*train, *validation])
    if validation:
        pieces = [_whole(train), _whole(validation)]
    else:
        cuts = [_cut(files, validation_fraction) for files in train]
        pieces = [
            [Piece(files, 0, cut) for files, cut in zip(train, cuts, strict=True)],
            [Piece(files, cut, files.num_documents) for files, cut in zip(train, cuts, strict=True)],
        ]
    splits = {name: [piece for piece in found if piece.num_tokens] for name, found in zip(SPLITS, pieces, strict=True)}
    for name, found in splits.items():
        if not found:
            num_documents = sum(len(part) for files in train for part in _filled(files))
            raise DataError(
                f"--validation-fraction {validation_fraction} of {counted(num_documents, 'document')} leaves no tokens"
                f" for {name}; choose another, or name files for validation with --validation"
                if not validation
                else f"the files for {name} have no tokens"
            )
    return splits


def examine(
    piece: Piece, tokenizer: Tokenizer, vocab_size: int, end_of_text_id: int, on_tokens: Callable[[int], None]
) -> Content:
    """Reads all tokens of `piece` once. Raises DataError for an id that the tokenizer does not have."""
    lengths = bytes_by_token(tokenizer, vocab_size)
    tokens, at = piece.files.tokens, piece.start_token
    num_bytes = num_documents = num_unended = num_ends = 0
    for first, stop in chunks(piece.stop, piece.first):
        ends = piece.files.ends(first, stop)
        begin = at
        for start, end in chunks(int(ends[-1]), begin):
            found = tokens.read(start, end - start)
            wrong = (found < 0) | (found >= vocab_size)
            if wrong.any():
                position = int(wrong.argmax())
                raise DataError(
                    f"{piece.files.name}: token {start + position:,} is {found[position]:,}, but the tokenizer's ids go"
                    f" from 0 to {vocab_size - 1:,}; give the tokenizer that wrote these files with --tokenizer"
                )
            num_bytes += 0 if lengths is None else int(lengths[found].sum())
            num_ends += int(np.count_nonzero(found == end_of_text_id))
            on_tokens(end - start)
        at = int(ends[-1])
        filled = np.unique(ends[ends > begin])  # an empty document ends where the one before it does
        num_documents += len(filled)
        num_unended += int((tokens.take(filled - 1) != end_of_text_id).sum())
        num_bytes += decoded_bytes(tokenizer, piece.files, first, stop) if lengths is None else 0
    return Content(num_bytes, num_documents, num_unended, num_ends - (num_documents - num_unended))


def _cut(files: TokenFiles, validation_fraction: float) -> int:
    """The document after which the last ones begin that are a share `validation_fraction` of those with tokens."""
    total = sum(map(len, _filled(files)))
    left = total - round(total * validation_fraction)
    for part in _filled(files):
        if 0 < left <= len(part):
            return int(part[left - 1]) + 1
        left -= len(part)
    return 0


def _filled(files: TokenFiles) -> Iterator[Int64Array]:
    """The numbers of the documents that have tokens, in parts."""
    before = 0
    for first, stop in chunks(files.num_documents):
        ends = files.ends(first, stop)
        yield first + np.flatnonzero(np.diff(ends, prepend=before))
        before = int(ends[-1])


def _whole(files: Sequence[TokenFiles]) -> list[Piece]:
    return [Piece(found, 0, found.num_documents) for found in files]


def _require_different(files: Sequence[TokenFiles]) -> None:
    seen: set[Path] = set()
    for path in (path for found in files for path in found.paths):
        if path.resolve() in seen:
            raise DataError(f"{path} is given twice; name each file once, for training or for validation")
        seen.add(path.resolve())
