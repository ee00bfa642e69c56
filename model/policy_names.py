"""The names of everything a growth policy chooses from. Imports nothing slow: the command line shows them in --help."""

from typing import Literal

Init = Literal["random", "matched", "zero-key", "zero-value", "copy"]
"""What new tokens start as."""

TauPolicy = Literal["ramp", "anneal", "frozen", "recompute", "per-generation"]
"""What becomes of the scale of the scores."""

Moments = Literal["keep", "reset"]
"""What becomes of Adam's moments of the old parameters."""

Preset = Literal["growctl-default", "official", "paper-appendix"]
"""Policies with a name (`model.policy.PRESETS`)."""
