"""Encodes documents to tokens as fast as the tokenizer does alone, in memory that does not grow with a document.

Encoding takes about a hundred bytes of memory per character, so a document of 200 MB has to be encoded in pieces. This
is exact only where the tokenizer itself always cuts. For the pre-tokenizer of GPT-2, which NeoX and the tokenizers that
growctl trains have too, that is between a letter and the space or line feed after it. It needs all of this, which
`is_cuttable` checks:

- The pre-tokenizer cuts there whatever else the text holds. In GPT-2's pattern, a match can hold white space after a
  letter nowhere, and looks ahead only from white space. So no match reaches across the cut, no match before it depends
  on what follows it, and matching goes on after it as at the start of a text. It puts no space in front of a text.
- The normaliser is NFC or none. An ASCII character starts a new sequence in NFC, so nothing composes across the cut.
- No added token reaches across the cut: none holds white space after another character, takes the white space to its
  right, or asks which character stands before it. That holds for special tokens too, which become ordinary text: where
  one is found, the tokenizer looks for no other.

Other tokenizers, such as Llama's, encode each document as a whole.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

BATCH_CHARACTERS = 1 << 19
"""All cores together encode about this much text at a time, which takes about 150 MB."""
BATCH_PIECES = 1024
"""The most texts that are encoded at a time."""

PIECE_CHARACTERS = 1 << 16
"""A text is cut at the first place after so many characters."""

Key = TypeVar("Key")
_CUT = re.compile("[^\\W_](?= )|[a-zA-Z一-龥가-힣](?=\n)")
"""Before a line feed only letters of every version of Unicode."""


def encode_documents(
    tokenizer: Tokenizer,
    texts: Iterable[tuple[Key, str]],
    begin_id: int | None,
    end_id: int | None,
    dtype: npt.DTypeLike,
) -> Iterator[tuple[Key, npt.NDArray[Any], int]]:
    """The tokens of each text between the beginning and the end of text, if any, in order, in parts, with the text's
    key and how many of its characters are left after the part: 0 where it ends.

    The parts of a document together are what the tokenizer gives for its whole text. A special token that is spelled
    out in a text is ordinary text; `tokenizer` is set up for that.
    """
    tokenizer.encode_special_tokens = True
    begin, end = ([] if token is None else [token] for token in (begin_id, end_id))
    is_cut, is_first = is_cuttable(tokenizer), True
    parts = ((key, *part) for key, text in texts for part in _parts(text, is_cut))
    for batch in _batches(parts):
        encodings = tokenizer.encode_batch_fast([text for _, text, _ in batch], add_special_tokens=False)
        for (key, _, left), encoding in zip(batch, encodings, strict=True):
            yield key, np.array((begin if is_first else []) + encoding.ids + ([] if left else end), dtype), left
            is_first = left == 0


def _parts(text: str, is_cut: bool) -> Iterator[tuple[str, int]]:
    left = len(text)
    for piece in pieces(text) if is_cut else (text,):
        left -= len(piece)
        yield piece, left


def _batches(texts: Iterable[tuple[Key, str, int]]) -> Iterator[list[tuple[Key, str, int]]]:
    """Texts in groups that are encoded together."""
    batch: list[tuple[Key, str, int]] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text[1])
        if size >= BATCH_CHARACTERS or len(batch) == BATCH_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def is_cuttable(tokenizer: Tokenizer) -> bool:
    """Whether `pieces` may cut texts for `tokenizer`, because it surely cuts there too."""
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    step = parts["pre_tokenizer"] or {}
    return (
        (parts["normalizer"] or {"type": "NFC"})["type"] == "NFC"
        and not parts["model"].get("dropout")
        and (step.get("type") == "ByteLevel" and step["use_regex"] and not step["add_prefix_space"])
        and not any(map(_looks_around, parts["added_tokens"]))
    )


def _looks_around(token: dict[str, Any]) -> bool:
    """Whether an added token may reach across a cut."""
    return bool(
        (not token["special"] and (token["rstrip"] or token["single_word"])) or re.search(r"\S\s", token["content"])
    )


def pieces(text: str, shortest: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cuts `text` at the first place after every `shortest` characters: between a letter and the space or line feed
    after it."""
    start = 0
    while len(text) - start > shortest and (cut := _CUT.search(text, start + shortest - 1)):
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:] if start else text
