"""Turns the tokens of one row into text as they come, without half characters and without stop strings."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

CONTEXT_TOKENS = 8
"""Tokens before the new ones that are decoded with them: some tokenizers treat the first token of a text apart."""


class TextStream:
    """The text of one row. Special tokens do not appear in it."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        """`prompt` are the tokens before the first. The text ends before the first of the `stop` strings."""
        self.stopped = False
        """Whether a stop string has appeared."""

        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._num_read = len(self._decoded())
        """Characters of the tokens' text that were passed on to the search for stop strings."""

        self._stream = DecodeStream(ids=self._ids.copy(), skip_special_tokens=True)
        self._pending = ""
        """Text that may be the start of a stop string."""

    def push(self, token: int) -> str:
        """Adds a token; returns the text that is certain now, often none. Returns none after a stop string."""
        self._ids.append(token)
        try:
            certain = self._stream.step(self._tokenizer, token) or ""
        except Exception:  # of the library: broken bytes changed how the characters before them decode
            certain = self._decoded()[self._num_read :]
            self._stream = DecodeStream(ids=self._ids[-CONTEXT_TOKENS:], skip_special_tokens=True)
        self._num_read += len(certain)
        return self._without_stop(certain)

    def finish(self) -> str:
        """Returns the text that was held back: the last token has been pushed."""
        rest = self._without_stop(self._decoded()[self._num_read :])
        held, self._pending = self._pending, ""
        return rest if self.stopped else rest + held

    def _decoded(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=True)

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
