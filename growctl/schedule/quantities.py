"""Field types for counts, durations and sizes as people write them in a schedule."""

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

_NUMBER = r"(\d{1,99}(?:\.\d{1,99})?)"
_COUNT = re.compile(rf"{_NUMBER} ?([kmbt]?)", re.IGNORECASE)
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_DURATION = re.compile(rf"{_NUMBER} ?(d|h|min|m|s)", re.IGNORECASE)
_SECONDS = {"d": 86400, "h": 3600, "min": 60, "m": 60, "s": 1}
_SIZE = re.compile(rf"{_NUMBER} ?([kmgt]i?)?b?", re.IGNORECASE)
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

MOST_COUNTED = 10**14
"""More tokens, steps or sequences than anybody has: 100T."""


def parse_count(value: Any) -> int:
    """Parses 15B, 300M, 2.5k or a plain whole number. Raises ValueError for anything else."""
    number = _plain(value)
    if isinstance(value, str) and (match := _COUNT.fullmatch(value.strip())):
        number = Decimal(match[1]) * _FACTORS[match[2].upper()]
    if not number.is_finite() or number != int(number):
        raise ValueError("must be a whole number; 2.5k, 300M and 15B are fine")
    return int(number)


def parse_duration(value: Any) -> int:
    """Parses 90m, 36h, 1d 12h or a number of seconds into whole seconds. Raises ValueError for anything else."""
    number = _plain(value)
    if isinstance(value, str) and (parts := _DURATION.findall(value)) and not _DURATION.sub("", value).strip():
        number = sum((Decimal(count) * _SECONDS[unit.lower()] for count, unit in parts), Decimal(0))
    if not number.is_finite() or number != int(number):
        raise ValueError("must be a duration: 90m, 36h, 1d 12h, or seconds")
    return int(number)


def parse_size(value: Any) -> int:
    """Parses 40GiB, 80 GB, 512MiB or a number of bytes into bytes. Raises ValueError for anything else."""
    number = _plain(value)
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        number = Decimal(match[1]) * _BYTES[(match[2] or "").lower()]
    if not number.is_finite() or number != int(number):
        raise ValueError("must be a size: 40GiB, 80GB, 512MiB, or bytes")
    return int(number)


def _plain(value: Any) -> Decimal:
    """The value of a YAML number; NaN for everything else, so that callers need one check only."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Decimal(value)
    return Decimal("nan")


def _text(pattern: str) -> Any:
    """A string type for `pattern` in either case. JSON Schema has no flag to ignore case, so both are spelled out."""
    either_case = re.sub("[a-z]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", pattern)
    return Annotated[str, Field(pattern=f"^ *{either_case.replace('NUMBER', '[0-9]+([.][0-9]+)?')} *$")]


_COUNT_TEXT = _text("NUMBER ?(k|m|b|t)?")
_DURATION_TEXT = _text("(NUMBER ?(d|h|min|m|s) ?)+")
_SIZE_TEXT = _text("NUMBER ?((k|m|g|t)i?)?b?")

Count = Annotated[
    int, BeforeValidator(parse_count, json_schema_input_type=PositiveInt | _COUNT_TEXT), Field(gt=0, le=MOST_COUNTED)
]
"""A positive count, as people write it."""

CountOrZero = Annotated[
    int, BeforeValidator(parse_count, json_schema_input_type=NonNegativeInt | _COUNT_TEXT), Field(ge=0, le=MOST_COUNTED)
]

Vocabulary = Annotated[
    int, BeforeValidator(parse_count, json_schema_input_type=PositiveInt | _COUNT_TEXT), Field(ge=257, le=2**20)
]
"""Entries of a byte-level tokenizer: at least the 256 bytes and the end-of-text token."""

FlopsPerSecond = Annotated[
    int, BeforeValidator(parse_count, json_schema_input_type=PositiveInt | _COUNT_TEXT), Field(gt=0, le=10**18)
]

Duration = Annotated[
    int, BeforeValidator(parse_duration, json_schema_input_type=PositiveInt | _DURATION_TEXT), Field(gt=0, le=10**9)
]
"""Seconds."""

Size = Annotated[
    int, BeforeValidator(parse_size, json_schema_input_type=PositiveInt | _SIZE_TEXT), Field(gt=0, le=2**60)
]
"""Bytes."""
