"""Decides whether a validation set is too small to trust, and words the warning."""

from math import ceil
from pathlib import Path

from stages.counted import counted, plural

ENOUGH_DOCUMENTS = 50
ENOUGH_TOKENS = 100_000
MARGIN = 1.2
"""A hash of their texts draws the documents, so a share gives somewhat more or fewer of them than it says."""
LARGEST_SHARE = 0.5
"""The largest `data.validation_fraction` to suggest. Beyond it, the text itself is too short."""


def small_validation(
    num_documents: int,
    num_tokens: int,
    fraction: float | None = None,
    *,
    given: Path | None = None,
    max_sequences: int | None = None,
    sequence_length: int = 1,
) -> str | None:
    """A warning if a validation set of that size, or what an evaluation reads of it, is too small; None if it is large
    enough.

    `fraction` is the `data.validation_fraction` that gave it; without it, the warning suggests no other. `given` is the
    dataset that the schedule names as its source, to which no such key applies. An evaluation reads `max_sequences` of
    `sequence_length` tokens, or all.
    """
    missing = []
    if num_documents < ENOUGH_DOCUMENTS:
        missing.append(f"{ENOUGH_DOCUMENTS} documents")
    if num_tokens < ENOUGH_TOKENS:
        missing.append(f"{ENOUGH_TOKENS:,} tokens")
    read = num_tokens if max_sequences is None else min(num_tokens, max_sequences * sequence_length)
    reads_little = read < min(num_tokens, ENOUGH_TOKENS)
    if not missing and not reads_little:
        return None
    few = counted(num_documents, "document")
    rests = f"{plural(num_documents, 'this', 'these')} {few}" if num_documents < ENOUGH_DOCUMENTS else "so little text"
    facts = f"Validation has {few} with {counted(num_tokens, 'token')}"
    facts += f", fewer than {' and '.join(missing)}" if missing else ""
    if reads_little:
        facts += f", {'and' if missing else 'but'} an evaluation reads {read:,} of the tokens"
        facts += "" if num_tokens < ENOUGH_TOKENS else f", fewer than {ENOUGH_TOKENS:,}"
    advice = [_advice(num_documents, num_tokens, fraction, given)] if missing else []
    if reads_little:
        advice.append(f"Set evaluation.max_sequences to {enough_sequences(sequence_length):,} or more.")
    return f"{facts}: a difference of 0.05 nats per token between two losses may rest on {rests}. {' '.join(advice)}"


def enough_sequences(sequence_length: int) -> int:
    """The fewest sequences with ENOUGH_TOKENS."""
    return ceil(ENOUGH_TOKENS / sequence_length)


def _advice(num_documents: int, num_tokens: int, fraction: float | None, given: Path | None) -> str:
    """What to set, as a sentence."""
    if given:
        return f"Prepare or import {given} again with a larger validation fraction, or use more text."
    factor = max(ENOUGH_DOCUMENTS / max(1, num_documents), ENOUGH_TOKENS / max(1, num_tokens))
    if fraction is None:
        return "Use a larger data.validation_fraction, or more text."
    share = ceil(100 * MARGIN * factor * fraction) / 100
    if share > LARGEST_SHARE:
        return f"Use more text, or a larger data.validation_fraction than {fraction:g}."
    return f"Set data.validation_fraction to {share:g} instead of {fraction:g}, or use more text."
