"""The strict pydantic base of schedules, specs, manifests and model configurations.

Imports no torch.
"""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Frozen, without conversions between types, and with no keys but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
