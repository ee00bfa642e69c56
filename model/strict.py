"""The strict pydantic base of schedules, specs, manifests and model configurations.

Imports no torch.
"""

from pydantic import BaseModel, ConfigDict, ValidationError


class Strict(BaseModel):
    """Frozen, without conversions between types, and with no keys but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def first_reason(error: ValidationError) -> str:
    """What the first problem in `error` is, without the `Value error, ` that pydantic puts before our own words."""
    return error.errors(include_input=False, include_url=False)[0]["msg"].removeprefix("Value error, ")
