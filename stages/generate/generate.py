"""Text in, text out: continues a prompt with a finished model."""

import time
from collections.abc import Callable, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from model.errors import UserError
from model.tokenformer import reading_top
from stages.checkpoint.pretrained import Pretrained
from stages.counted import counted
from stages.generate.decode import decode
from stages.generate.settings import FinishReason, GeneratedText, GenerationSettings, Sample

OnText = Callable[[int, str], None]
"""Called with the number of a sample, from 0, and the text that it gained."""

CONTEXT_TOKENS = 8
"""Tokens before the new ones that are decoded with them: some tokenizers treat the first token of a text apart."""


class PromptTooLong(UserError):
    """A prompt leaves no room for text in the context."""


def generate(
    pretrained: Pretrained, prompt: str, settings: GenerationSettings | None = None, on_text: OnText | None = None
) -> GeneratedText:
    """Continues `prompt` as `settings` say; equal arguments give equal text on the same device.

    The prompt begins a new text: after the beginning of text if the model has one; an empty one else after the end of
    the text before. `on_text` gets the text as it grows, in whole characters.

    Raises PromptTooLong if the prompt does not fit into the context, UserError if it is empty and the model has neither
    token.
    """
    settings = settings or GenerationSettings()
    tokens, limit = _prompt_tokens(pretrained, prompt), settings.context_length or pretrained.text.context_length
    num_new = settings.max_new_tokens if limit is None else min(settings.max_new_tokens, _room(tokens, limit))
    started = time.perf_counter()
    end: FinishReason = "length" if num_new == settings.max_new_tokens else "context"
    rows = continue_rows(pretrained, [tokens] * settings.num_samples, settings, num_new, on_text=on_text, end=end)
    seconds, num_tokens = time.perf_counter() - started, sum(len(row.tokens) for row in rows)
    return GeneratedText(
        checkpoint=pretrained.directory,
        prompt=prompt,
        prompt_tokens=tuple(tokens),
        samples=tuple(Sample(row.text, tuple(row.tokens), row.finish_reason or end) for row in rows),
        num_tokens=num_tokens,
        wall_seconds=seconds,
        tokens_per_second=num_tokens / seconds,
        settings=settings,
    )


def continue_rows(
    pretrained: Pretrained,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    max_new_tokens: int,
    names: Sequence[str] | None = None,
    on_text: OnText | None = None,
    end: FinishReason = "length",
) -> list["Row"]:
    """The rows that continue `prompts` in one batch, each until it ends by itself or, after `max_new_tokens`, for the
    reason `end`. `names` are those of their random numbers."""
    end_id = pretrained.text.end_of_text_id
    rows = [Row(pretrained.tokenizer, ids, settings.stop, end_id) for ids in prompts]

    def tell(number: int, text: str) -> None:
        if text and on_text:
            on_text(number, text)

    num_token_ids, sampling = pretrained.num_token_ids, settings.sampling
    tokens = decode(pretrained.model, prompts, max_new_tokens, sampling, num_token_ids=num_token_ids, rows=names)
    with reading_top(pretrained.model, settings.top_tokens):
        for chosen in tokens:
            for number, (row, token) in enumerate(zip(rows, chosen, strict=True)):
                tell(number, row.add(token))
            if all(row.finish_reason for row in rows):
                break
    for number, row in enumerate(rows):
        tell(number, row.end(end))
    return rows


def _prompt_tokens(pretrained: Pretrained, prompt: str) -> list[int]:
    if prompt and not pretrained.tokenizer.encode(prompt, add_special_tokens=False).ids:
        raise UserError(f"the prompt {prompt[:40]!r} has no tokens: the tokenizer drops all of its characters")
    if tokens := pretrained.encode(prompt):
        return tokens
    if pretrained.text.end_of_text_id is None:
        raise UserError("the prompt is empty, and the tokenizer has no end of text after which a new text could begin")
    return [pretrained.text.end_of_text_id]


def _room(tokens: list[int], limit: int) -> int:
    if len(tokens) >= limit:
        raise PromptTooLong(
            f"the prompt has {counted(len(tokens), 'token')}; with a context of {limit:,} tokens it may have "
            f"{limit - 1:,}, so that there is room for text; shorten it"
        )
    return limit - len(tokens)


class Row:
    """One sample as it grows, in whole characters, without special tokens and stop strings."""

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str] = (), end_of_text_id: int | None = None
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.tokens: list[int] = []
        self.text = ""
        self._tokenizer = tokenizer
        self._stop = stop
        self._end_of_text_id = end_of_text_id
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._stream = DecodeStream(ids=self._ids.copy(), skip_special_tokens=True)
        self._num_read = len(self._decoded())
        """Characters of the tokens' text that were passed on to the search for stop strings."""
        self._pending = ""
        """Text that may be the start of a stop string."""

    def add(self, token: int) -> str:
        """Adds a token, unless the sample has ended; returns the text that is certain now, often none."""
        if self.finish_reason:
            return ""
        self.tokens.append(token)
        if token == self._end_of_text_id:
            return self.end("end_of_text")
        self._ids.append(token)
        try:
            certain = self._stream.step(self._tokenizer, token) or ""
        except Exception:  # of the library: broken bytes changed how the characters before them decode
            certain = self._decoded()[self._num_read :]
            self._stream = DecodeStream(ids=self._ids[-CONTEXT_TOKENS:], skip_special_tokens=True)
        self._num_read += len(certain)
        return self._gain(certain, is_last=False)

    def end(self, reason: FinishReason) -> str:
        """Ends the sample for `reason`, unless it has ended; returns the text that was held back."""
        if self.finish_reason:
            return ""
        text = self._gain(self._decoded()[self._num_read :], is_last=True)
        self.finish_reason = self.finish_reason or reason
        return text

    def _decoded(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=True)

    def _gain(self, certain: str, *, is_last: bool) -> str:
        text = self._pending + certain
        if places := [place for place in map(text.find, self._stop) if place >= 0]:
            self.finish_reason = "stop"
            num_shown = min(places)
        else:
            num_shown = len(text) - (0 if is_last else max((_overlap(text, stop) for stop in self._stop), default=0))
        self._pending = text[num_shown:]
        self.text += text[:num_shown]
        return text[:num_shown]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
