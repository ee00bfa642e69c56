"""Encodes documents to tokens as fast as the tokenizer does alone, in memory that does not grow with a document.

Encoding takes about a hundred bytes of memory per character, so a document of 200 MB has to be encoded in pieces. This
is exact only where the tokenizer itself always cuts. We know one such place for common tokenizers: between a letter and
the space or line feed after it. It needs all of this, which `why_uncuttable` checks:

- The pre-tokenizer cuts there whatever else the text holds. In each pattern below, a match can hold white space after a
  letter nowhere, and looks ahead only from white space. So no match reaches across the cut, no match before it depends
  on what follows it, and matching goes on after it as at the start of a text. It puts no space in front of a text.
- The normaliser is NFC or none. An ASCII character starts a new sequence in NFC, so nothing composes across the cut.
- No added token reaches across the cut: none holds white space after another character, takes the white space to its
  right, or asks which character stands before it. That holds for special tokens too, which become ordinary text: where
  one is found, the tokenizer looks for no other.

Other tokenizers, such as those of SentencePiece, which mark the start of a text, encode each document as a whole.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

BATCH_CHARACTERS = 1 << 19
"""All cores together encode about this much text at a time, which takes about 150 MB."""
BATCH_PIECES = 1024
"""The most texts that are encoded at a time."""

Tokens = npt.NDArray[np.unsignedinteger]
PIECE_CHARACTERS = 1 << 16
"""Pieces are at most this long, unless the text has no place to cut in so many characters."""

_CUT = re.compile("[^\\W_](?= )|[a-zA-Z一-龥가-힣](?=\n)")
"""Before a line feed only letters of every version of Unicode: some patterns join other characters with it."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_NUMBERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    _GPT2,
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_AFTER_NUMBERS}",  # Llama 3, cl100k
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_AFTER_NUMBERS}",  # Qwen 2 and 3
}
_ISOLATING = {"Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
"""Pre-tokenizers that decide about each character alone, or also cut wherever white space begins."""


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
        rest = pieces(text)
        before = next(rest)
        for piece in rest:
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


def why_uncuttable(tokenizer: Tokenizer) -> str | None:
    """Why no place is known where `tokenizer` surely cuts, as a clause; None if `pieces` may cut its texts."""
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    normalizer = parts["normalizer"]
    if normalizer is not None and normalizer["type"] != "NFC":
        return f"its normaliser is {normalizer['type']}"
    if parts["model"].get("dropout"):
        return "its model draws random merges"
    steps = _steps(parts["pre_tokenizer"])
    if not _cuts_text(steps) or not all(map(_keeps_cuts, steps)):
        return f"its pre-tokenizer is {' and '.join(step['type'] for step in steps) or 'missing'}"
    for token in parts["added_tokens"]:
        looks_around = not token["special"] and (token["rstrip"] or token["single_word"])
        if looks_around or re.search(r"\S\s", token["content"]):
            return f"its added token {token['content']!r} depends on the text around it"
    return None


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    return pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]


def _cuts_text(steps: list[dict[str, Any]]) -> bool:
    """Whether a step cuts before one turns the text into bytes, after which white space looks like a letter."""
    deciding = next((step for step in steps if _cuts(step) or step["type"] == "ByteLevel"), None)
    return deciding is not None and _cuts(deciding)


def _cuts(step: dict[str, Any]) -> bool:
    """Whether a step of a pre-tokenizer always cuts between a letter and white space, and adds nothing there."""
    if step["type"] == "Split":
        is_safe = step["pattern"].get("Regex") in _PATTERNS
        return is_safe and (step["behavior"], step["invert"]) in {("Isolated", False), ("Removed", True)}
    if step["type"] == "ByteLevel":
        return step["use_regex"] and not step["add_prefix_space"]
    return step["type"] in _ISOLATING - {"Digits", "Punctuation"}


def _keeps_cuts(step: dict[str, Any]) -> bool:
    """Whether a step treats what stands after a cut as it does in the whole text."""
    return _cuts(step) or step["type"] in _ISOLATING or (step["type"] == "ByteLevel" and not step["add_prefix_space"])


def pieces(text: str, longest: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cuts `text`, only between a letter and the space or line feed after it, into pieces of up to `longest`.

    Where such a place is further away, the piece is longer.
    """
    start = 0
    while len(text) - start > longest:
        cut = _last_cut(text, start, start + longest)
        if cut is None:
            following = _CUT.search(text, start + longest - 1)
            if following is None:
                break
            cut = following.end()
        yield text[start:cut]
        start = cut
    yield text[start:] if start else text


def _last_cut(text: str, start: int, stop: int) -> int | None:
    """The last place to cut in `text[start:stop]`, and not at `start`; None if there is none.

    Looks at growing parts of the end, because most texts have a place near it.
    """
    width = 256
    while True:
        lowest = max(start, stop - width)
        ends = [match.end() for match in _CUT.finditer(text, lowest, stop)]
        if ends or lowest == start:
            return ends[-1] if ends else None
        width *= 8
