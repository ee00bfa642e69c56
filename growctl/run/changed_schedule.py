"""Explains why a run cannot go on with another schedule, and shows the command that trains that schedule."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from growctl.ladder.stage_plans import plan_stages
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import SHOWN_CHARACTERS, shorten

_NO_EFFECT = {
    "data": (
        *("workers", "approximate_tokens", "attended_tokens", "tokenizer_vocab_size"),
        *("cache_bytes", "cache_dir", "retry_seconds"),
    ),
    "checkpoint": ("keep", "keep_every", "keep_trunk", "check_space"),
}
"""By block: the keys that do not affect the result. `launch`, `controls`, `samples` and `trackers` do not affect it
either."""
_LONGEST_NAME = 100


def first_difference(old: Schedule, new: Schedule) -> str | None:
    """The first setting that affects the result and differs, as a clause; None if there is none."""
    for key, was, now in _differences(_comparable(old), _comparable(new)):
        if key == "stages":
            return _other_stages(was, now)
        return f"{key} = {_as_yaml(now)}, but it was started with {_as_yaml(was)}"
    return None


def kept_ramp(old: Schedule, new: Schedule) -> list[str]:
    """The override that keeps the ramp of the first longer or shorter stage as it was; empty if none is needed.

    The ramp of a stage is a share of its steps by default, so a longer stage would ramp differently from its first
    update on, and could take over nothing.
    """
    for before, after in zip(plan_stages(old), plan_stages(new), strict=False):
        if before.num_steps != after.num_steps:
            ramp = before.ramp_steps or before.anneal_steps
            is_same = (before.ramp_steps, before.anneal_steps) == (after.ramp_steps, after.anneal_steps)
            is_chosen = new.stages[after.index].ramp_steps is not None or old.growth != new.growth
            if not ramp or is_same or is_chosen or before.name != after.name or ramp >= after.num_steps:
                return []
            return [f"stages.{after.index}.ramp_steps={ramp}"]
    return []


def free_name(name: str, runs_dir: Path) -> str:
    """The first of NAME-2, NAME-3, ... that no file in `runs_dir` has."""
    number = 2
    while True:
        suffix = f"-{number}"
        candidate = name[: _LONGEST_NAME - len(suffix)] + suffix
        if not RunsPaths(runs_dir).run(candidate).directory.exists():
            return candidate
        number += 1


def advice(reuses: bool, overrides: list[str], command: list[str]) -> str:
    """How to train the other schedule, with the command on a line of its own. `reuses`: whether it may take over what
    other runs have trained."""
    if not reuses:
        promise = "Under another name it trains anew"
    else:
        promise = "Under another name, stages that another run has trained in the same way are taken over"
        promise += f" ({overrides[0].partition('=')[0]} keeps the ramp as long as it was)" if overrides else ""
    return f"{promise}:\n  {shlex.join(command)}"


def _other_stages(was: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    """What differs between two lists of stages that are not equally long."""
    old, new = ([stage["name"] for stage in stages] for stages in (was, now))
    if new[: len(old)] == old:
        return f"this schedule adds {', '.join(new[len(old) :])} after its last stage, {old[-1]}"
    if new[-len(old) :] == old:
        return (
            f"this schedule adds {', '.join(new[: -len(old)])} before its first stage, {old[0]}, so nothing of the run "
            "fits: a ladder grows at its end"
        )
    return f"it has the stages {', '.join(old)}; this schedule has {', '.join(new)}"


def _comparable(schedule: Schedule) -> dict[str, Any]:
    """The settings that affect the result, as plain data. Paths of the same files are equal."""
    schedule = schedule.model_copy(update={"data": schedule.data.in_one_spelling()})
    data = schedule.model_dump(mode="json", exclude={"launch", "controls", "samples", "trackers"})
    for block, keys in _NO_EFFECT.items():
        for key in keys:
            data[block].pop(key, None)
    for source in data["data"]["mixture"]:
        del source["approximate_tokens"]
    return data


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, f"{path}.{i}")
    elif old != new:
        yield path, old, new


def _as_yaml(value: Any) -> str:
    """A value as a schedule writes it, on one line, shortened."""
    import yaml

    text = yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, sort_keys=False, width=10**6)
    return shorten(text.strip()[1:-1], SHOWN_CHARACTERS)
