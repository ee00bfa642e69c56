"""Encodes documents to tokens as fast as the tokenizer does alone, in memory that does not grow with a document."""

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from stages.data.safe_cuts import pieces, why_uncuttable

BATCH_CHARACTERS = 1 << 19
"""All cores together encode about this much text at a time, which takes about 150 MB."""
BATCH_PIECES = 1024
"""The most texts that are encoded at a time."""

Tokens = npt.NDArray[np.unsignedinteger]


class Encoder:
    """Encodes texts with a tokenizer. An end of text that is spelled out in a text is ordinary text."""

    def __init__(self, tokenizer: Tokenizer, end_of_text_id: int, token_bytes: int) -> None:
        """Sets up `tokenizer`. Tokens are little-endian integers of `token_bytes`."""
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._dtype = np.dtype(f"<u{token_bytes}")
        self._end = np.array([end_of_text_id], self._dtype)
        self.uncuttable = why_uncuttable(tokenizer)
        """Why long texts are encoded as a whole, which takes memory in proportion; None if they are cut."""

    def documents(self, texts: Iterable[str]) -> Iterator[tuple[Tokens, bool]]:
        """The tokens of each text and the end of text, in order, in parts; whether the part ends the document.

        The parts of a document together are what the tokenizer gives for its whole text.
        """
        for batch in _batches(chain.from_iterable(map(self._pieces, texts))):
            encodings = self._tokenizer.encode_batch_fast([text for text, _ in batch], add_special_tokens=False)
            for (_, is_last), encoding in zip(batch, encodings, strict=True):
                ids = np.array(encoding.ids, self._dtype)
                yield np.concatenate((ids, self._end)) if is_last else ids, is_last

    def _pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Pieces of a text, and whether each is the last."""
        if self.uncuttable:
            yield text, True
            return
        found = pieces(text)
        before = next(found)
        for piece in found:
            yield before, False
            before = piece
        yield before, True


def _batches(texts: Iterable[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    """Texts in groups that are encoded together."""
    batch: list[tuple[str, bool]] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text[0])
        if size >= BATCH_CHARACTERS or len(batch) == BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
