"""Fills the generated parts of pages in docs/, each between two marks that name it."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

_MARKED = re.compile(r"(<!-- (?P<name>[a-z-]+): [^\n]* -->\n).*?(<!-- end of (?P=name) -->)", re.DOTALL)


def filled(page: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """`page` with every part between its marks as it is now. KeyError for a mark whose part is not in `parts`."""
    return _MARKED.sub(lambda match: f"{match[1]}\n{parts[match['name']]()}\n{match[3]}", page)
