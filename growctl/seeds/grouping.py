"""Groups ladders that differ in nothing but their seed, each with its controls; `--group-by` splits further.

What a ledger records decides, so runs that were started one by one belong together as well as those of `--seeds`.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from growctl.analysis.runs import RunReport, StageReport
from growctl.ladder.conditions import DOCUMENT_KEYS

SEED, SCHEDULE = "seed", "schedule"
"""What --group-by takes beside the dotted keys of a schedule."""

_RECORDED = frozenset({"seed", "model", "stages", "start", "training", "optimizer", "learning_rate", "growth", "data"})
"""Blocks of a schedule that the conditions, the stages or the dataset's fingerprint stand for."""


@dataclass(frozen=True)
class Grouping:
    """What --group-by asks for: runs with different values of a key never belong together."""

    keys: tuple[str, ...] = ()
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The values of the keys, by the name of the ladder (growctl/seeds/group_by.py reads them)."""

    def of(self, ladder: RunReport) -> dict[str, Any]:
        """The values of the keys in a ladder."""
        return {key: self.values.get(ladder.name, {}).get(key) for key in self.keys}


BY_SCHEDULE = Grouping()
"""The default: everything but the seed keeps runs apart."""


@dataclass(frozen=True)
class Member:
    """One seed: a ladder and the controls that were trained with the same seed for it."""

    ladder: RunReport
    controls: tuple[RunReport, ...]

    @property
    def seed(self) -> int:
        """The seed of all of them; a control with another one does not count against the ladder."""
        return self.ladder.seed


@dataclass(frozen=True)
class Replicates:
    """Ladders that differ in nothing but their seed."""

    name: str
    members: tuple[Member, ...]
    """One for each seed, in the order of the seeds."""
    repeated: tuple[str, ...] = ()
    """Ladders that repeat a seed and do not count again, one sentence each."""
    values: dict[str, Any] = field(default_factory=dict)
    """The values of the keys of --group-by."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in order."""
        return tuple(member.seed for member in self.members)

    @property
    def first(self) -> RunReport:
        """The ladder with the first seed. In all but losses and costs it speaks for the others."""
        return self.members[0].ladder

    @property
    def swept(self) -> dict[str, Any]:
        """The values of the swept keys that set them apart in a sweep, without the seed."""
        return {key: value for key, value in self.first.overrides.items() if key != SEED}


def replicates(runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE) -> list[Replicates]:
    """The ladders among `runs`, grouped, each with its controls among `runs`; the order of `runs` does not matter."""
    alike: dict[str, list[RunReport]] = {}
    for run in sorted(runs, key=lambda run: run.name):
        if run.control is None:
            alike.setdefault(recipe(run, grouping), []).append(run)
    found = [_replicates(ladders, runs, grouping) for same in alike.values() for ladders in _of_one_precision(same)]
    often = Counter(group.name for group in found)
    named = [group if often[group.name] == 1 else replace(group, name=group.first.name) for group in found]
    return sorted(named, key=lambda group: ([*map(_order, (group.values | group.swept).values())], group.name))


def recipe(run: RunReport, grouping: Grouping = BY_SCHEDULE, with_steps: bool = True) -> str:
    """Text that is equal for runs that differ in nothing but their seed, as far as their ledgers record it.

    A ladder that grows when its loss flattens trains another number of steps with each seed, and so do its controls;
    their recipes are compared without the steps.
    """
    recorded = {
        "control": run.control,
        "conditions": {key: value for key, value in run.conditions.items() if key != SEED and not of_data(key)},
        "data": run.dataset_fingerprint,
        "start": run.base.manifest if run.base else None,
        "stages": [_shape(part, with_steps) for part in run.parts],
        "overrides": {key: value for key, value in run.overrides.items() if key.partition(".")[0] not in _RECORDED},
        "values": {} if run.control else grouping.of(run),
    }
    return json.dumps(recorded, sort_keys=True, default=str)


def of_data(condition: str) -> bool:
    """Whether a condition is of the dataset, which runs share if they share its fingerprint."""
    return condition.startswith("data.") and condition not in DOCUMENT_KEYS


def shown(value: Any) -> str:
    """A value of a schedule, for a reader."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def values_text(values: Mapping[str, Any]) -> str:
    """`learning_rate.peak=0.002, seed=1`."""
    return ", ".join(f"{key}={shown(value)}" for key, value in values.items())


def seeds_text(seeds: Sequence[int]) -> str:
    """`seed 0`, `seeds 0, 1, 2` or `seeds 0 to 9`."""
    ordered = sorted(seeds)
    if len(ordered) > 3 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"seeds {ordered[0]} to {ordered[-1]}"
    return f"seed{'s' if len(ordered) != 1 else ''} {', '.join(map(str, ordered))}"


def _shape(part: StageReport, with_steps: bool) -> tuple[Any, ...]:
    """What a stage or a release is, apart from how far it came."""
    steps = part.planned_steps if with_steps else None
    return part.name, part.num_parameters, steps, part.branch_of, part.decayed


def _of_one_precision(ladders: Sequence[RunReport]) -> list[list[RunReport]]:
    """`ladders`, split by the precision that they were trained in; one that has not begun stays with the first."""
    split: dict[frozenset[str], list[RunReport]] = {}
    for run in ladders:
        if run.precisions:
            split.setdefault(run.precisions, []).append(run)
    waiting = [run for run in ladders if not run.precisions]
    first, *others = split.values() or [[]]
    return [[*first, *waiting], *others]


def _replicates(ladders: Sequence[RunReport], runs: Sequence[RunReport], grouping: Grouping) -> Replicates:
    """One ladder for each seed: a finished one before an unfinished one, then the first by name."""
    chosen: dict[int, RunReport] = {}
    repeated = []
    for run in sorted(ladders, key=lambda run: (run.final_loss is None, not run.finished, run.name)):
        first = chosen.setdefault(run.seed, run)
        if first is not run:
            repeated.append(f"{run.name} repeats seed {run.seed}, so that only {first.name} counts.")
    members = [
        Member(ladder, tuple(sorted(_controls(ladder, runs), key=lambda run: run.name)))
        for _, ladder in sorted(chosen.items())
    ]
    return Replicates(_name(list(chosen.values())), tuple(members), tuple(sorted(repeated)), grouping.of(ladders[0]))


def _controls(ladder: RunReport, runs: Sequence[RunReport]) -> list[RunReport]:
    return [run for run in runs if run.control is not None and run.control_of == ladder.name and run.stages]


def _name(ladders: Sequence[RunReport]) -> str:
    """A name for ladders that differ in their seeds: of one, its own; of a set, the set's; else what names share."""
    if len(ladders) == 1:
        return ladders[0].name
    first = ladders[0]
    if first.group is not None and all(run.group == first.group for run in ladders):
        swept = {key: value for key, value in first.overrides.items() if key != SEED}
        return f"{first.group} ({values_text(swept)})" if swept else first.group
    names = sorted(run.name for run in ladders)
    shared = []
    for words in zip(*(name.split("-") for name in names), strict=False):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    if shared[-1:] == [SEED]:
        shared.pop()
    return "-".join(shared) or f"{names[0]} and {len(names) - 1} more"


def _order(value: Any) -> tuple[str, float, str]:
    """Sorts numbers by size and all else by name."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return ("", float(value), "") if is_number else (type(value).__name__, 0.0, shown(value))
