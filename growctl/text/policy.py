"""The words for the policy of a growth."""

from collections.abc import Mapping
from typing import Any


def policy_words(policy: Mapping[str, Any], *, new_layers: object = None) -> str:
    """The choices of a policy as a manifest has it, for example `init matched, tau ramp`; empty without a policy.

    `depth` is a choice only where there are `new_layers`.
    """
    keys = ("init", "tau", "depth") if new_layers else ("init", "tau")
    return ", ".join(f"{key} {policy[key]}" for key in keys if key in policy)
