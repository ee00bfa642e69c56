"""Groups ladders that differ in nothing but their seed, each with the controls that count against it.

What a ledger records decides, so runs that were started one by one belong together as well as those of `--seeds`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from growctl.analysis.conditions import PEAK, SEED, control_differs, grows_nothing, measured_alike, recipe, shown
from growctl.analysis.costs import FLOPS, Currency
from growctl.runs.runs import RunReport
from growctl.runs_dir import CONTROL_INFIX
from growctl.text.formatting import short_count
from growctl.text.suggestion import nearest
from model.errors import UserError

SCHEDULE = "schedule"
"""What --group-by takes beside `seed` and the keys of the conditions."""

_PEAK = re.compile(r"-peak[0-9.]+x$")
"""The peak at the end of a control's name."""

DIVERGED = "diverged"
UNFINISHED = "not finished"
UNDECAYED = "no finished model: its learning rate never decays"


class GroupByError(UserError):
    """There is nothing to group by that name."""


@dataclass(frozen=True)
class Arm:
    """A ladder, or one of its controls at one budget, with every seed."""

    name: str
    """`ladder`, or the end of the control's name, such as `tokenformer-scratch-0.5x`."""
    control: str | None
    """Kind of control; None for the ladder."""
    num_parameters: int | None
    runs: Mapping[int, RunReport]
    """The runs that count, by seed."""
    absent: Mapping[int, str]
    """Why the others do not count, by seed."""
    diverged_flops: float | None = None
    """What the runs that diverged cost, in the mean; None if none did, or if that is not known."""
    peaks: tuple[float, ...] = ()
    """The peaks of the learning rate at which its kind and size were trained, ascending."""
    tuning_flops: float = 0.0
    """FLOPs of the runs at peaks that lost, in the mean over its seeds."""

    @property
    def losses(self) -> dict[int, float]:
        """Final losses in nats per token, by seed."""
        return {seed: loss for seed, run in self.runs.items() if (loss := run.final_loss) is not None}

    @property
    def flops(self) -> float:
        """The mean FLOPs of its models; 0 if any is not known."""
        return self.mean_cost(FLOPS) or 0.0

    def mean_cost(self, currency: Currency) -> float | None:
        """The mean cost of its models over the seeds; None if any is not known."""
        costs = [currency.of(run.stages) for run in self.runs.values()]
        known = [cost for cost in costs if cost is not None]
        return fmean(known) if known and len(known) == len(costs) else None

    @property
    def diverged(self) -> tuple[int, ...]:
        """The seeds with which it diverged."""
        return tuple(seed for seed, why in self.absent.items() if why == DIVERGED)


@dataclass(frozen=True)
class Group:
    """Ladders that differ in nothing but their seed, with their controls."""

    name: str
    ladder: Arm
    controls: tuple[Arm, ...]
    first: RunReport
    """The ladder with the first seed. In all but losses and costs it speaks for the others."""
    names: tuple[str, ...] = ()
    """The names of the ladders, also of those that repeat a seed."""
    notes: tuple[str, ...] = ()
    """Runs that repeat another one, one sentence each."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values of the swept keys, or of the keys of --group-by."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the ladders, finished or not."""
        return tuple(sorted({*self.ladder.runs, *self.ladder.absent}))


def groups(runs: Sequence[RunReport], keys: Sequence[str] = ()) -> list[Group]:
    """The ladders among `runs`, grouped; the order of `runs` does not matter.

    `keys`: runs with different values of these, such as `seed`, `schedule` or `learning_rate.peak`, stay apart. Raises
    GroupByError for a key that no run has.
    """
    ladders = sorted((run for run in runs if run.control is None), key=lambda run: run.name)
    known = dict.fromkeys([SEED, SCHEDULE, *(key for run in ladders for key in run.conditions | run.overrides)])
    for key in keys:
        if ladders and key not in known:
            raise GroupByError(
                f"--group-by {key!r}: must be {SEED}, {SCHEDULE} or a dotted key of the schedules of these runs; "
                f"{nearest(key, known)}"
            )
    alike: dict[str, list[RunReport]] = {}
    for run in ladders:
        alike.setdefault(f"{recipe(run)} {sorted(_values(run, keys).items(), key=str)}", []).append(run)
    made = [_group(members, runs, _values(members[0], keys) or None) for members in alike.values()]
    return sorted(made, key=lambda group: ([_order(value) for value in group.values.values()], group.name))


def values_text(values: Mapping[str, Any]) -> str:
    """`learning_rate.peak=0.002, seed=1`."""
    return ", ".join(f"{key}={shown(value)}" for key, value in values.items())


def seeds_text(seeds: Sequence[int]) -> str:
    """`seed 0`, `seeds 0, 1, 2` or `seeds 0 to 9`."""
    ordered = sorted(seeds)
    if len(ordered) > 3 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"seeds {ordered[0]} to {ordered[-1]}"
    return f"seed{'s' if len(ordered) != 1 else ''} {', '.join(map(str, ordered))}"


def label(control: str) -> str:
    """What a control's name says beside its ladder's: kind, stage and budget."""
    return control.partition(CONTROL_INFIX)[2] or control


def reason_not_to_count(ladder: RunReport, control: RunReport, *, is_tuned: bool = False) -> str | None:
    """Why a comparison of `ladder` with `control` would be unfair or must wait; None if it is fair.

    `is_tuned`: other peaks of the learning rate than the ladder's were tried beside it.
    """
    if control.ladder_id not in (None, ladder.run_id):
        return f"it belongs to another run of the name {control.control_of}"
    if why := _why_no_loss(control):
        return why
    if control.seed != ladder.seed:
        return f"its seed is {control.seed}, the ladder's {ladder.seed}"
    if why := measured_alike(ladder, control):
        return why
    differing = control_differs(ladder, control, is_tuned=is_tuned)
    return f"it differs from the ladder in {', '.join(differing)}" if differing else None


def _values(run: RunReport, keys: Sequence[str]) -> dict[str, Any]:
    known = run.conditions | run.overrides | {SEED: run.seed, SCHEDULE: run.schedule}
    return {key: known.get(key) for key in keys}


def _group(members: Sequence[RunReport], runs: Sequence[RunReport], values: Mapping[str, Any] | None) -> Group:
    """One ladder for each seed: a finished one before an unfinished one, one with controls, the worst."""
    chosen: dict[int, RunReport] = {}
    notes = []
    with_controls = {run.control_of for run in runs}
    for run in sorted(
        members,
        key=lambda run: (not run.finished, run.name not in with_controls, -(run.final_loss or math.inf), run.name),
    ):
        first = chosen.setdefault(run.seed, run)
        if first is not run:
            notes.append(f"{run.name} repeats seed {run.seed}, so that only {first.name} counts.")
    ladders = dict(sorted(chosen.items()))
    controls, repeated = _controls(ladders, runs)
    name = _name(list(ladders.values()))
    absent = {seed: why for seed, run in ladders.items() if (why := _why_no_loss(run))}
    first = next(iter(ladders.values()))
    size = first.stages[-1].num_parameters if first.stages else None
    counting = {seed: run for seed, run in ladders.items() if seed not in absent}
    ladder = Arm("ladder", None, size, counting, absent)
    return Group(
        name=name,
        ladder=ladder,
        controls=controls,
        first=first,
        names=tuple(run.name for run in members),
        notes=(*sorted(notes), *repeated),
        values=first.swept if values is None else values,
    )


def _why_no_loss(run: RunReport) -> str | None:
    if not all(stage.cost_is_whole for stage in run.stages):
        return "of unknown cost, because its ledger lacks rows that its final checkpoint has"
    if run.final_loss is None:
        return DIVERGED if run.finished else UNFINISHED
    return None if run.decays else UNDECAYED


def _is_pending(run: RunReport) -> bool:
    """Whether a run may still end: it is not finished, and no anomaly has stopped it."""
    return not run.finished and not any(anomaly.action == "stop" for _, anomaly in run.anomalies)


def _controls(ladders: Mapping[int, RunReport], runs: Sequence[RunReport]) -> tuple[tuple[Arm, ...], list[str]]:
    """The controls of `ladders` as arms, by what they are, not by their names. Of two that repeat each other, or tune
    the peak of the learning rate, the better one counts: the strictest opponent decides."""
    names = {ladder.name: seed for seed, ladder in ladders.items()}
    by_recipe: dict[str, dict[int, list[RunReport]]] = {}
    peaks: dict[str, set[float]] = {}
    ended: set[tuple[str, int, float]] = set()
    for run in sorted(runs, key=lambda run: run.name):
        if run.control is not None and run.control_of in names and run.stages:
            seed = names[run.control_of]
            by_recipe.setdefault(_what(run, ladders[seed]), {}).setdefault(seed, []).append(run)
            peaks.setdefault(_size(run), set()).add(peak(run))
            if not _is_pending(run):
                ended.add((_size(run), seed, peak(run)))
    arms, notes = [], []
    for by_seed in by_recipe.values():
        counting: dict[int, RunReport] = {}
        absent: dict[int, str] = {}
        spent: list[float] = []
        shown_run = next(iter(by_seed.values()))[0]
        tried = peaks[_size(shown_run)]
        tuning_flops, name = 0.0, label(shown_run.recorded_name)
        tunes = any(len({peak(run) for run in candidates}) > 1 for candidates in by_seed.values())
        for seed, candidates in by_seed.items():
            own = (_size(shown_run), seed, peak(ladders[seed]))
            is_tuned = grows_nothing(shown_run.control) and own in ended
            whys = {run.name: reason_not_to_count(ladders[seed], run, is_tuned=is_tuned) for run in candidates}
            fair = sorted((run for run in candidates if not whys[run.name]), key=lambda run: run.final_loss or 0.0)
            diverged = {peak(run): run.cumulative_flops for run in candidates if whys[run.name] == DIVERGED}
            costs = {peak(run): run.cumulative_flops for run in candidates}
            begun = {run.name for run in candidates}
            to_come = [
                planned.name
                for planned in ladders[seed].controls_to_come
                if _PEAK.sub("", label(planned.name)) == _PEAK.sub("", name) and planned.name not in begun
            ]
            is_short = bool(to_come) or own[2] not in costs or any(map(_is_pending, candidates))
            if is_short and (tunes or to_come):
                absent[seed] = "not tuned to the end"
            elif fair:
                counting[seed] = fair[0]
                again = [run for run in fair[1:] if peak(run) == peak(fair[0])]
                notes += [f"{run.name} repeats {fair[0].name}; the better of the two counts." for run in again]
                tuning_flops += (sum(costs.values()) - costs[peak(fair[0])]) / len(by_seed)
            elif len(diverged) == len(costs):
                absent[seed] = DIVERGED
                spent += diverged.values()
            else:
                absent[seed] = next(why for why in whys.values() if why and why != DIVERGED)
        absent |= {
            seed: _state_to_come(ladder, name) or "no such run"
            for seed, ladder in ladders.items()
            if seed not in by_seed
        }
        size = shown_run.stages[-1].num_parameters
        arm = Arm(
            name, shown_run.control, size, counting, dict(sorted(absent.items())), fmean(spent) if spent else None
        )
        arms.append(replace(arm, peaks=tuple(sorted(tried)), tuning_flops=tuning_flops))
    begun = {arm.name for arm in arms}
    for ladder in ladders.values():
        for planned in ladder.controls_to_come:
            if (name := label(planned.name)) not in begun:
                begun.add(name)
                states = {seed: _state_to_come(each, name) or "no such run" for seed, each in ladders.items()}
                arms.append(Arm(name, planned.kind, planned.num_parameters, {}, states))
    return tuple(sorted(arms, key=lambda arm: (arm.control or "", arm.num_parameters or 0, arm.name))), notes


def _what(control: RunReport, ladder: RunReport) -> str:
    """Equal for the controls of two seeds that are otherwise alike. Where slopes end the ladder's stages, each seed has
    budgets of its own, which only the name of the control tells."""
    by_slope = ladder.conditions.get("growth.when") == "slope"
    tuned = (PEAK,) if grows_nothing(control.control) else ()
    name = _PEAK.sub("", label(control.recorded_name)) if by_slope else ""
    return recipe(control, with_steps=not by_slope, without=tuned) + name


def _size(control: RunReport) -> str:
    """What is tuned together: the kind and the size of a control, with every budget and seed."""
    return f"{control.control} {control.stages[-1].num_parameters}"


def peak(run: RunReport) -> float:
    """The peak of a run's learning rate; 0 if its ledger does not record it."""
    return float(run.conditions.get(PEAK) or 0.0)


def _state_to_come(ladder: RunReport, name: str) -> str | None:
    return next((planned.state for planned in ladder.controls_to_come if label(planned.name) == name), None)


def _name(ladders: Sequence[RunReport]) -> str:
    """A name for ladders that differ in their seeds: of one, its own; of a set, the set's; else what names share."""
    first = ladders[0]
    if len(ladders) == 1:
        return first.name
    if first.group is not None and all(run.group == first.group for run in ladders):
        return f"{first.group} ({values_text(first.swept)})" if first.swept else first.group
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


def size_text(num_parameters: int | None) -> str:
    """`262k parameters`."""
    return f"{short_count(num_parameters or 0)} parameters"


def lone(run: RunReport) -> Group:
    """A single run, whatever it is, as a group of its own."""
    why = _why_no_loss(run)
    size = run.stages[-1].num_parameters if run.stages else None
    runs, absent = ({}, {run.seed: why}) if why else ({run.seed: run}, {})
    return Group(run.name, Arm("ladder", None, size, runs, absent), (), run)
