"""Suggests the word that a user probably meant."""

import difflib
from collections.abc import Iterable, Sequence

from stages.counted import plural


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the word in `known` nearest to `word`; empty if none is near."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """`the nearest are x, y` for the words in `known` nearest to `word`, or else its first ones; empty if it is."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.4) or names[:5]
    return f"the nearest {plural(len(near), 'is', 'are')} {', '.join(near)}" if near else ""
