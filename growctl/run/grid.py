"""The points of a sweep, from overrides in hydra's sweep syntax, and the names of their runs: NAME-peak-0.002-seed-1.

hydra's own parser reads `learning_rate.peak=2e-3,4e-3 seed=range(0,3)`, and a key's values are those that hydra's own
sweeper would try.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from growctl.schedule.errors import shown
from model.errors import UserError

MOST_RUNS = 100
"""A larger sweep needs --yes: it is more often a slip than a wish."""

MOST_RUNS_EVER = 10_000

SEED = "seed"
"""The key of a schedule that --seeds sets."""

LONGEST_NAME = 100
"""The most characters of a run's name (RUN_NAME in growctl/runs_dir.py)."""

_LONGEST_VALUE = 32
_DIGEST = 8
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_UNREADABLE = (HydraException, OmegaConfBaseException, ValueError, RecursionError)


class SweepError(UserError):
    """The runs of a sweep cannot be told from what was given."""


@dataclass(frozen=True)
class Point:
    """One point of a sweep: one run."""

    overrides: tuple[str, ...]
    """All overrides of its schedule, each with one value."""
    values: dict[str, Any]
    """The values of the swept keys."""


class _Choice(NamedTuple):
    """One value of a swept key."""

    override: str
    value: Any


def grid(overrides: Sequence[str], large: bool = False) -> list[Point]:
    """The points of a sweep: all combinations of the values given, the last key changing fastest.

    Overrides with one value, also those that cannot be read, are passed on as they are: the schedule judges them.
    Raises SweepError if no key has several values, a value is given twice, the values cannot be listed, or there are
    more than MOST_RUNS points (`large`: MOST_RUNS_EVER).
    """
    columns: list[tuple[str | None, list[_Choice]]] = []
    for text in overrides:
        override = _parsed(text)
        if override is None or not override.is_sweep_override():
            columns.append((None, [_Choice(text, None)]))
        else:
            columns.append((override.key_or_group, _choices(override, f"override {shown(text)}")))
    swept = Counter(key for key, _ in columns if key)
    if not swept:
        raise SweepError(
            "no key has several values; write learning_rate.peak=2e-3,4e-3 or seed=range(0,3), or train a single run "
            "with growctl run"
        )
    if "name" in swept:
        raise SweepError("name=...: the runs are named after the swept keys; name them all with --name")
    [(key, times)] = swept.most_common(1)
    if times > 1:
        raise SweepError(f"{key} is swept twice; give all its values at once")
    _check_number(math.prod(len(choices) for _, choices in columns), large)
    keys = [key for key, _ in columns]
    return [
        Point(
            tuple(choice.override for choice in row),
            {key: choice.value for key, choice in zip(keys, row, strict=True) if key},
        )
        for row in product(*(choices for _, choices in columns))
    ]


def seed_grid(seeds: str, overrides: Sequence[str]) -> list[Point]:
    """A point for each seed of `--seeds`, such as `0,1,2` or `range(0,3)`, with the `overrides` of the schedule.

    Raises SweepError if a seed is no whole number, is negative or is given twice, or if an override sets it too.
    """
    where = f"--seeds {seeds!r}"
    for text in overrides:
        if (override := _parsed(text)) and override.key_or_group == SEED:
            raise SweepError(f"{where} and the override {shown(text)} contradict each other; give one of them")
    parsed = _parsed(f"{SEED}={seeds}")
    if parsed is None:
        raise SweepError(f"{where}: must be whole numbers from 0 on, such as 0,1,2")
    chosen = _choices(parsed, where) if parsed.is_sweep_override() else [_Choice(f"{SEED}={seeds}", parsed.value())]
    for _, value in chosen:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise SweepError(f"{where}: {shown(value)} is not a seed; a seed is a whole number from 0 on, as in 0,1,2")
    _check_number(len(chosen), large=False)
    return [Point((*overrides, choice.override), {SEED: choice.value}) for choice in chosen]


def _parsed(text: str) -> Override | None:
    """The override, as hydra reads it; None if hydra cannot read it."""
    try:
        return OverridesParser.create().parse_override(text)
    except _UNREADABLE:
        return None


def _choices(override: Override, where: str) -> list[_Choice]:
    """The values of a swept key; raises SweepError, with a message that begins with `where`, if they are no list."""
    key = override.get_key_element()
    try:
        texts = list(islice(override.sweep_string_iterator(), MOST_RUNS_EVER + 1))
    except _UNREADABLE as error:  # interval() and glob() name no values
        raise SweepError(f"{where}: the values cannot be listed: {error}; use 1,2 or range(1,3)") from None
    _check_number(len(texts), large=True)
    if len(set(texts)) < max(1, len(texts)):
        raise SweepError(f"{where}: must give one or more values, each of them once")
    overrides = [f"{key}={text}" for text in texts]
    return [_Choice(text, one.value()) for text in overrides if (one := _parsed(text))]


def _check_number(number: int, large: bool) -> None:
    """Raises SweepError for more runs than anyone means."""
    most = MOST_RUNS_EVER if large else MOST_RUNS
    if number > most:
        more = "" if large else f"; growctl sweep --yes trains up to {MOST_RUNS_EVER:,}"
        raise SweepError(f"this would train more than {most:,} runs; give fewer values{more}")


def run_names(group: str, points: Sequence[dict[str, Any]]) -> list[str]:
    """The name of the run at each of `points`, all with values of the same keys, in the set called `group`.

    Equal points get equal names, whichever others there are, unless two different values look alike in a name. Those
    names, and names that would be too long, end in a hash.
    """
    short = short_keys(list(points[0]))
    plain = [
        "-".join([group, *(f"{short[key]}-{_in_name(value)}" for key, value in point.items())]) for point in points
    ]
    often = Counter(plain)
    return [
        name if often[name] == 1 and len(name) <= LONGEST_NAME else _with_digest(name, point)
        for name, point in zip(plain, points, strict=True)
    ]


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The shortest ends of dotted keys that tell them apart and begin with a word."""
    short = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[start:]) for start in reversed(range(len(parts))))
        others = [f".{other}" for other in keys if other != key]
        clear = (end for end in ends if not end[0].isdigit() and not any(other.endswith(f".{end}") for other in others))
        short[key] = next(clear, key)
    return short


def _in_name(value: Any) -> str:
    """A value as part of a name; the end of a long one, which is where paths differ."""
    if isinstance(value, float):
        value = f"{value:.6g}".replace("e+", "e")  # a name cannot hold the +
    text = value if isinstance(value, str) else json.dumps(value)
    return _NOT_IN_NAMES.sub("-", text).strip("-")[-_LONGEST_VALUE:].strip("-") or "empty"


def _with_digest(name: str, point: dict[str, Any]) -> str:
    """`name`, cut if it is too long, with a hash of it and of the point's values."""
    digest = hashlib.sha256(json.dumps([name, point], sort_keys=True, default=repr).encode()).hexdigest()[:_DIGEST]
    return f"{name[: LONGEST_NAME - _DIGEST - 1].rstrip('-')}-{digest}"
