"""The example and the unit of a schedule's key. docs/keys.md and the completion of editors show them."""

from typing import Any

from pydantic import Field


def example(value: Any, unit: str | None = None) -> Any:
    """Annotates a key with a value as people write it and the unit of its numbers; None for keys without numbers."""
    return Field(examples=[value], json_schema_extra={"unit": unit} if unit else None)
