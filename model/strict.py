"""The strict pydantic base of schedules, specs, manifests and model configurations.

Imports no torch.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Strict(BaseModel):
    """Frozen, without conversions between types, and with no keys but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def example(value: Any, unit: str | None = None) -> Any:
    """Annotates a key with a value as people write it and the unit of its numbers; None for keys without numbers."""
    return Field(examples=[value], json_schema_extra={"unit": unit} if unit else None)


def first_reason(error: ValidationError) -> str:
    """What the first problem in `error` is, without the `Value error, ` that pydantic puts before our own words."""
    return error.errors(include_input=False, include_url=False)[0]["msg"].removeprefix("Value error, ")


def problem_of(error: Exception) -> str:
    """One line: of pydantic's errors the first, with its field and its value."""
    if not isinstance(error, ValidationError):
        return str(error).splitlines()[0]
    first = error.errors(include_url=False)[0]
    if first["type"] == "missing" or not first["loc"]:
        return ": ".join([*map(str, first["loc"]), first_reason(error)])
    return f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first_reason(error)}"
