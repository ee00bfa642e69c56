"""What the blocks of a schedule share: their base, walks over their keys, and quantities as people write them."""

import re
from collections.abc import Iterator
from decimal import Decimal
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

from model.strict import Strict


class Block(Strict):
    """The base of all blocks: frozen and strict, and it rejects unknown keys."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)


def blocks_by_path(root: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every block of the schema with its dotted path; N stands for an entry of a list."""
    yield path, root
    for name, field in user_keys(root).items():
        block, is_list = block_in(field.annotation)
        if block:
            yield from blocks_by_path(block, ".".join(filter(None, (path, name, "N" if is_list else ""))))


def user_keys(block: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a block without those that growctl writes, which its JSON Schema leaves out too."""
    skip = type(SkipJsonSchema())
    fields = block.model_fields.items()
    return {name: field for name, field in fields if not any(isinstance(mark, skip) for mark in field.metadata)}


def block_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The block that a value may be, and whether it is a list of them; None if no block is allowed."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) in (list, Union, UnionType, Annotated):
        for argument in get_args(annotation):
            block, is_list = block_in(argument)
            if block:
                return block, is_list or get_origin(annotation) is list
    return None, False


_NUMBER = r"(\d{1,99}(?:\.\d{1,99})?)"
_COUNT = re.compile(rf"{_NUMBER} ?([kmbt]?)", re.IGNORECASE)
_DURATION = re.compile(rf"{_NUMBER} ?(d|h|min|m|s)", re.IGNORECASE)
_SIZE = re.compile(rf"{_NUMBER} ?((?:[kmgt]i?)?)b?", re.IGNORECASE)
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_SECONDS = {"d": 86400, "h": 3600, "min": 60, "m": 60, "s": 1}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

MOST_COUNTED = 10**14
"""More tokens, steps or sequences than anybody has: 100T."""


def parse_count(value: Any) -> int:
    """Parses 15B, 300M, 2.5k or a plain whole number. Raises ValueError for anything else."""
    return _parsed(value, _COUNT, _COUNTS, "must be a whole number; 2.5k, 300M and 15B are fine")


def parse_duration(value: Any) -> int:
    """Parses 90m, 36h, 1d 12h or a number of seconds into whole seconds. Raises ValueError for anything else."""
    return _parsed(value, _DURATION, _SECONDS, "must be a duration: 90m, 36h, 1d 12h, or seconds", parts=99)


def parse_size(value: Any) -> int:
    """Parses 40GiB, 80 GB, 512MiB or a number of bytes into bytes. Raises ValueError for anything else."""
    return _parsed(value, _SIZE, _BYTES, "must be a size: 40GiB, 80GB, 512MiB, or bytes")


def _parsed(value: Any, pattern: re.Pattern[str], factors: dict[str, int], allowed: str, parts: int = 1) -> int:
    """The sum of up to `parts` numbers with units, or a plain whole number."""
    number = Decimal(value) if isinstance(value, int | float) and not isinstance(value, bool) else Decimal("nan")
    found = pattern.findall(value)[:parts] if isinstance(value, str) else []
    if found and not pattern.sub("", value, parts).strip():
        number = sum((Decimal(count) * factors[unit.lower()] for count, unit in found), Decimal(0))
    if not number.is_finite() or number != int(number):
        raise ValueError(allowed)
    return int(number)


def _text(pattern: str) -> Any:
    """A string type for `pattern` in either case. JSON Schema has no flag to ignore case, so both are spelled out."""
    either_case = re.sub("[a-z]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", pattern)
    return Annotated[str, Field(pattern=f"^ *{either_case.replace('NUMBER', '[0-9]+([.][0-9]+)?')} *$")]


_COUNT_TEXT = _text("NUMBER ?(k|m|b|t)?")
_DURATION_TEXT = _text("(NUMBER ?(d|h|min|m|s) ?)+")
_SIZE_TEXT = _text("NUMBER ?((k|m|g|t)i?)?b?")
_IS_COUNT = BeforeValidator(parse_count, json_schema_input_type=PositiveInt | _COUNT_TEXT)
_IS_COUNT_OR_ZERO = BeforeValidator(parse_count, json_schema_input_type=NonNegativeInt | _COUNT_TEXT)
_IS_DURATION = BeforeValidator(parse_duration, json_schema_input_type=PositiveInt | _DURATION_TEXT)
_IS_SIZE = BeforeValidator(parse_size, json_schema_input_type=PositiveInt | _SIZE_TEXT)

Count = Annotated[int, _IS_COUNT, Field(gt=0, le=MOST_COUNTED)]
"""A positive count, as people write it."""
CountOrZero = Annotated[int, _IS_COUNT_OR_ZERO, Field(ge=0, le=MOST_COUNTED)]
Vocabulary = Annotated[int, _IS_COUNT, Field(ge=257, le=2**20)]
"""Entries of a byte-level tokenizer: at least the 256 bytes and the end-of-text token."""
FlopsPerSecond = Annotated[int, _IS_COUNT, Field(gt=0, le=10**18)]
Duration = Annotated[int, _IS_DURATION, Field(gt=0, le=10**9)]
"""Seconds."""
Size = Annotated[int, _IS_SIZE, Field(gt=0, le=2**60)]
"""Bytes."""
