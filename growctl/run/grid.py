"""The points of a sweep, from overrides in hydra's sweep syntax: `learning_rate.peak=2e-3,4e-3 seed=range(0,3)`.

hydra's own parser reads them, and a key's values are those that hydra's own sweeper would try.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from growctl.schedule.errors import shown
from model.errors import UserError

MOST_RUNS = 100
"""A larger sweep needs --yes: it is more often a slip than a wish."""

MOST_RUNS_EVER = 10_000

SEED = "seed"
"""The key of a schedule that --seeds sets."""

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
    swept: dict[str, list[_Choice]] = {}
    columns: list[tuple[str | None, list[_Choice]]] = []
    for text in overrides:
        parsed = _parsed(text)
        if parsed is None or not parsed.is_sweep_override():
            columns.append((None, [_Choice(text, None)]))
            continue
        where, key = f"override {shown(text)}", parsed.key_or_group
        if key == "name":
            raise SweepError(f"{where}: the runs are named after the swept keys; name them all with --name")
        if key in swept:
            raise SweepError(f"{where}: {key} is swept twice; give all its values at once")
        swept[key] = _choices(parsed, where)
        columns.append((key, swept[key]))
    if not swept:
        raise SweepError(
            "no key has several values; write learning_rate.peak=2e-3,4e-3 or seed=range(0,3), or train a single run "
            "with growctl run"
        )
    _check_number(math.prod(map(len, swept.values())), large)
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
    for text in overrides:
        if (override := _parsed(text)) and override.key_or_group == SEED:
            raise SweepError(f"--seeds {seeds} and the override {shown(text)} contradict each other; give one of them")
    parsed = _parsed(f"{SEED}={seeds}")
    where = f"--seeds {seeds!r}"
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


def _choices(parsed: Override, where: str) -> list[_Choice]:
    """The values of a swept key; raises SweepError, with a message that begins with `where`, if they are no list."""
    if parsed.value_type == ValueType.INTERVAL_SWEEP:
        raise SweepError(f"{where}: interval() names no values to train; list them, or use range(START,STOP,STEP)")
    if parsed.value_type == ValueType.GLOB_CHOICE_SWEEP:
        raise SweepError(f"{where}: glob() is not supported; list the values")
    key = parsed.get_key_element()
    try:
        texts = list(islice(parsed.sweep_string_iterator(), MOST_RUNS_EVER + 1))
    except _UNREADABLE as error:
        raise SweepError(f"{where}: the values cannot be listed: {error}") from None
    _check_number(len(texts), large=True)
    if not texts:
        raise SweepError(f"{where}: gives no values")
    chosen: dict[str, _Choice] = {}
    for text in texts:
        if text in chosen:
            raise SweepError(f"{where}: {parsed.key_or_group} = {text} is given twice")
        one = _parsed(f"{key}={text}")
        assert one is not None, f"hydra cannot read its own {key}={text}"
        chosen[text] = _Choice(f"{key}={text}", one.value())
    return list(chosen.values())


def _check_number(number: int, large: bool) -> None:
    """Raises SweepError for more runs than anyone means."""
    if number > MOST_RUNS_EVER:
        raise SweepError(f"more than {MOST_RUNS_EVER:,} runs are too many for one sweep; give fewer values")
    if number > MOST_RUNS and not large:
        raise SweepError(
            f"this would train {number:,} runs; give fewer values, or train more than {MOST_RUNS} with "
            "growctl sweep --yes"
        )
