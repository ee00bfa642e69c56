"""Tokens of documents in files, whichever program wrote them, and what can be asked of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stages.token_files.mapped import Int64Array, MappedNumbers


@dataclass(frozen=True)
class TokenFiles:
    """The tokens of some documents, one document after another, in one file or in several that follow each other."""

    name: Path
    """What the user calls them."""

    paths: tuple[Path, ...]
    """The files of the tokens: nothing but numbers of `dtype`. A document may begin in one and end in the next."""

    dtype: np.dtype[Any]
    """An integer type, little-endian."""

    tokens: MappedNumbers
    """All tokens, read from disk on use. Ids are not checked."""

    num_documents: int
    ends: Callable[[int, int], Int64Array]
    """Where documents `first` to `stop` end, in tokens from the start: (stop - first,) int64, never falling. The last
    ends where the tokens end."""

    def document(self, number: int) -> Int64Array:
        """The tokens of a document."""
        start = int(self.ends(number - 1, number)[0]) if number else 0
        return self.tokens.read(start, int(self.ends(number, number + 1)[0]) - start)
