"""Text from elsewhere (names, paths, logs, manifests) on its way to a terminal, which it must not command."""

import re
import sys

_UNUSUAL = re.compile(r"[^\n\t -~]")


def visible(text: str) -> str:
    r"""`text` with every character that is not seen as itself written as its escape, line feeds and tabs excepted.

    Those are what moves a terminal's cursor or sets its state (`\x1b`, `\r`), turns the direction of reading, or takes
    no room; and bytes of a path that are no text.
    """
    return _UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else ascii(found[0])[1:-1], text)


def say(text: str, error: bool = False) -> None:
    """A line on standard output, or standard error."""
    print(visible(text), file=sys.stderr if error else sys.stdout, flush=True)
