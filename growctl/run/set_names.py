"""The names of the runs of a set: NAME-seed-1, NAME-peak-0.002-seed-1."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

LONGEST_NAME = 100
"""The most characters of a run's name (RUN_NAME in growctl/ladder/checks.py)."""

_LONGEST_VALUE = 32
_DIGEST = 8
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def run_names(group: str, points: Sequence[dict[str, Any]]) -> list[str]:
    """The name of the run at each of `points`, all with values of the same keys, in the set called `group`.

    Equal points get equal names, whichever others there are, unless two different values look alike in a name. Those
    names, and names that would be too long, end in a hash.
    """
    short = short_keys(list(points[0]))
    plain = ["-".join([group, *(f"{short[key]}-{_shown(value)}" for key, value in point.items())]) for point in points]
    often = Counter(plain)
    return [
        name if often[name] == 1 and len(name) <= LONGEST_NAME else _with_digest(name, point)
        for name, point in zip(plain, points, strict=True)
    ]


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The shortest ends of dotted keys that tell them apart and begin with a word."""

    def end(key: str, length: int) -> str:
        return ".".join(key.split(".")[-length:])

    short = {}
    for key in keys:
        length = 1
        while end(key, length) != key and (
            end(key, length)[0].isdigit()
            or any(other != key and end(other, length) == end(key, length) for other in keys)
        ):
            length += 1
        short[key] = end(key, length)
    return short


def _shown(value: Any) -> str:
    """A value as part of a name; the end of a long one, which is where paths differ."""
    if isinstance(value, float):
        value = f"{value:.6g}".replace("e+", "e")  # a name cannot hold the +
    text = value if isinstance(value, str) else json.dumps(value)
    return _NOT_IN_NAMES.sub("-", text).strip("-")[-_LONGEST_VALUE:].strip("-") or "empty"


def _with_digest(name: str, point: dict[str, Any]) -> str:
    """`name`, cut if it is too long, with a hash of it and of the point's values."""
    digest = hashlib.sha256(json.dumps([name, point], sort_keys=True, default=repr).encode()).hexdigest()[:_DIGEST]
    return f"{name[: LONGEST_NAME - _DIGEST - 1].rstrip('-')}-{digest}"
