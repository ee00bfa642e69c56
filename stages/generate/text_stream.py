"""Turns the tokens of one row into text as they come, without half characters and without stop strings."""

from collections.abc import Sequence

from tokenizers import Tokenizer

CONTEXT_TOKENS = 8
"""Tokens before the new ones that are decoded with them: some tokenizers treat the first token of a text apart."""

WINDOW_TOKENS = 32
"""The window is cut back to its context once it is this long, so that the time for a token does not grow. Only special
tokens after half a character, which have no text, delay that."""

REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are not UTF-8. At the end of a text they may be the start of a character."""

MOST_HELD = 3
"""The most replacement characters, and tokens, that can still become a character: three of its four bytes."""


class TextStream:
    """The text of one row. Special tokens do not appear in it."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        """`prompt` are the tokens before the first. The text ends before the first of the `stop` strings."""
        self.stopped = False
        """Whether a stop string has appeared."""

        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._window = list(prompt[-CONTEXT_TOKENS:])
        self._num_read = len(self._decoded())
        """Characters of the window's text that were passed on to the search for stop strings."""

        self._num_incomplete = 0
        """Tokens since the text last ended in a whole character. Until then, a tokenizer whose decoder falls back to
        bytes may show whole characters before it as broken, too."""

        self._pending = ""
        """Text that may be the start of a stop string."""

    def push(self, token: int) -> str:
        """Adds a token; returns the text that is certain now, often none. Returns none after a stop string."""
        self._window.append(token)
        text = self._decoded()
        num_broken = len(text) - len(text.rstrip(REPLACEMENT))
        self._num_incomplete = self._num_incomplete + 1 if num_broken else 0
        certain = ""
        if self._num_incomplete == 0 or self._num_incomplete > MOST_HELD:
            certain = text[self._num_read : len(text) - min(num_broken, MOST_HELD)]
            self._num_read += len(certain)
        if len(self._window) >= WINDOW_TOKENS:
            self._cut(text)
        return self._without_stop(certain)

    def _cut(self, text: str) -> None:
        """Cuts the window, with the text `text`, back to its context, if possible before a whole character."""
        unread = text[self._num_read :]
        for size in range(CONTEXT_TOKENS, CONTEXT_TOKENS + MOST_HELD + 1):
            window = self._window[-size:]
            shorter = self._tokenizer.decode(window, skip_special_tokens=True)
            same = text.endswith(shorter) or len(self._window) >= 2 * WINDOW_TOKENS
            if same and shorter.endswith(unread):
                self._window, self._num_read = window, len(shorter) - len(unread)
                return

    def finish(self) -> str:
        """Returns the text that was held back: the last token has been pushed."""
        rest = self._without_stop(self._decoded()[self._num_read :])
        held, self._pending = self._pending, ""
        return rest if self.stopped else rest + held

    def _decoded(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=True)

    def _without_stop(self, certain: str) -> str:
        if self.stopped:
            return ""
        text = self._pending + certain
        places = [place for place in map(text.find, self._stop) if place >= 0]
        if places:
            self.stopped, self._pending = True, ""
            return text[: min(places)]
        held = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._pending = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
