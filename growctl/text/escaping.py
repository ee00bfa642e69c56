"""Escapes names, paths and other outside text, so that they cannot send control codes to a terminal."""

import re
import sys

_UNUSUAL = re.compile(r"[^\n\t -~]")


def visible(text: str) -> str:
    r"""`text` with every unprintable character except line feeds and tabs written as its escape.

    Unprintable are characters that move a terminal's cursor or change its state (`\x1b`, `\r`), change the direction
    of text, or have no width, and bytes in a path that are not valid UTF-8.
    """
    return _UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else ascii(found[0])[1:-1], text)


def say(text: str, error: bool = False) -> None:
    """Prints `text` as a line on standard output, or on standard error if `error`."""
    print(visible(text), file=sys.stderr if error else sys.stdout, flush=True)
