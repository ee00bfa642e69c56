"""Suggests the word that a user probably meant."""

import difflib
from collections.abc import Sequence


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the word in `known` nearest to `word`; empty if none is near."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
