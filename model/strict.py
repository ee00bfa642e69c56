"""The base of everything that is validated: schedules, specs, manifests, model configurations. No torch here."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Frozen, without conversions between types, and with no keys but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
