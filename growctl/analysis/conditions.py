"""In what two runs differ, and whether a comparison allows it.

Every condition that a ledger records counts (growctl/ladder/conditions.py). What two runs may differ in follows from
the question: the seed, the swept keys, or, for a control, the ladder's shape.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from growctl.ledger.books import UNKNOWN
from growctl.runs.runs import RunReport, StageReport

SEED = "seed"
PEAK = "learning_rate.peak"
BEST_SCRATCH = "best-scratch"
UNGROWN = "ungrown"
"""The control that trains the start checkpoint on at its own size."""
EACH_SIZE = "scratch-of-each-size"
"""The control that trains every finished model of the ladder from scratch, at that model's own cost."""

SHAPE = ("attention_tokens", "ffn_tokens", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_width")
_BATCH = ("batch_size", "sequence_length")
WHEN = ("growth.when", "growth.slope", "growth.slope_window")
_OF_A_DECODER = (
    *(f"model.{key}" for key in ("family", "num_heads", "num_kv_heads", "head_width", "score_function")),
    *(f"model.routing.{key}" for key in ("groups", "read")),
)

MEASUREMENT = ("evaluation.max_sequences", "model.vocab_size", "data.document_mask")
"""Conditions without which two losses are not of the same thing."""


@dataclass(frozen=True)
class Difference:
    """A condition in which two runs, A and B, differ."""

    key: str
    a: Any
    """None where the run has no such condition."""
    b: Any

    def __str__(self) -> str:
        return f"{self.key} ({shown(self.a)} against {shown(self.b)})"


def shown(value: Any) -> str:
    """A value of a schedule, for a reader."""
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def differences(a: RunReport, b: RunReport) -> tuple[Difference, ...]:
    """All conditions of training and measuring in which `a` and `b` differ, by key.

    Launch does not change losses. Datasets are compared by their fingerprints, precision as it was used, stages also by
    the steps of their budgets.
    """
    values, others = (conditions_of(run) | _steps(run) for run in (a, b))
    return tuple(
        Difference(key, values.get(key), others.get(key))
        for key in sorted(values | others)
        if values.get(key) != others.get(key)
    )


def conditions_of(run: RunReport) -> dict[str, Any]:
    """The conditions of `run` by key, as `differences` compares them, without the steps of its stages."""
    values = {
        key: value
        for key, value in run.conditions.items()
        if not key.startswith("launch.") and key not in ("data.tokenizer", "data.mixture", "training.precision")
        if not (key.startswith("data.") and key.endswith("_text"))
    }
    values |= {"dataset": run.dataset_fingerprint[:12]}
    precisions = {precision for _, _, precision in run.machines} - {UNKNOWN}
    return values | ({"precision": " and ".join(sorted(precisions))} if precisions else {})


def _steps(run: RunReport) -> dict[str, Any]:
    return {f"stages.{number}.train_steps": stage.planned_steps for number, stage in enumerate(run.stages)}


def measured_alike(a: RunReport, b: RunReport) -> str | None:
    """Why the final losses of two runs are not of the same thing; None if they are."""
    if a.dataset_fingerprint != b.dataset_fingerprint:
        return "their datasets differ"
    for difference in (each for each in differences(a, b) if each.key in MEASUREMENT):
        return f"their losses were measured differently: {difference}"
    ends = [run.stages[-1] for run in (a, b) if run.stages]
    for what, values in (
        ("validation tokens", [end.evaluated_tokens for end in ends]),
        ("precision of the evaluation", [end.evaluation_precision for end in ends]),
        ("context", [stages[-1].get("sequence_length") for run in (a, b) if (stages := stages_of(run))]),
    ):
        if len({value for value in values if value is not None}) > 1:
            return f"their losses were measured differently: {what} {' against '.join(map(str, values))}"
    return None


def same_machines(runs: Sequence[RunReport]) -> str | None:
    """Why the time, money and energy of `runs` do not compare; None if devices, their number and launch agree."""
    machines = {tuple(sorted(set(run.machines))) for run in runs}
    if len(machines) > 1 or any(len(each) != 1 for each in machines):
        names = dict.fromkeys(
            f"{count} x {device} in {precision}" for run in runs for device, count, precision in run.machines
        )
        return f"they ran on different machines ({'; '.join(names) or 'not recorded'})"
    launches = [{key: value for key, value in run.conditions.items() if key.startswith("launch.")} for run in runs]
    keys = {key for one in launches for key in one if any(one.get(key) != other.get(key) for other in launches)}
    keys |= {key for run in runs for key in run.relaunched}
    return f"they were launched differently ({', '.join(sorted(keys))})" if keys else None


def control_differs(ladder: RunReport, control: RunReport, *, is_tuned: bool = False) -> list[str]:
    """In what a control differs from its ladder, beyond what its kind is there to differ in; `is_tuned`: in its peak
    too."""
    kind = control.control or ""
    differing = [each for each in differences(ladder, control) if not (is_tuned and each.key == PEAK)]
    found = [str(each) for each in differing if not _is_meant(each.key, kind, control)]
    return found + list(_misshapen(ladder, control, kind))


def grows_nothing(kind: str | None) -> bool:
    """Whether controls of that kind train one size all along, from scratch or on from a start checkpoint."""
    return kind == UNGROWN or is_scratch(kind)


def is_scratch(kind: str | None) -> bool:
    """Whether controls of that kind train one size from scratch."""
    return "scratch" in (kind or "")


def _is_meant(key: str, kind: str, control: RunReport) -> bool:
    if key.startswith("stages."):
        return True  # `_misshapen` compares these
    if is_scratch(kind):
        is_decoder = control.conditions.get("model.family") == "decoder"  # its stages have its heads
        return key.startswith(("growth.", "start.")) or (is_decoder and key in _OF_A_DECODER)
    return key in WHEN or (kind == "official-growth" and key.startswith("growth."))


def _misshapen(ladder: RunReport, control: RunReport, kind: str) -> Iterator[str]:
    """What is wrong with the stages of a control, as its kind derives them from those of its ladder."""
    yield from _missized(ladder, control, kind)
    ladders, its = stages_of(ladder), stages_of(control)
    if not ladders or not its:
        return
    if is_scratch(kind):
        if len(its) != 1:
            yield f"the number of its stages ({len(its)}, from scratch there is one)"
        last, meant = its[-1], [_only(stage, SHAPE) for stage in ladders]
        if kind == BEST_SCRATCH:
            meant.append(meant[-1] | _only(last, ("num_layers",)))
        if kind != "decoder-scratch" and _only(last, SHAPE) not in meant:
            shape = ", ".join(f"{key} {shown(value)}" for key, value in _only(last, SHAPE).items())
            yield f"its shape ({shape}), which is none of the ladder's"
        yield from _unlike(last, ladders[-1], _BATCH, "its stage")
        read = _weights(ladders)
        if _weights(its) != read[: len(_weights(its))] or (kind != EACH_SIZE and _weights(its) != read):
            yield "the mixture that it reads"
    elif kind == UNGROWN:
        if len(its) != 1:
            yield f"the number of its stages ({len(its)}; trained further without growth, there is one)"
        yield from _unlike(its[-1], ladders[-1], _BATCH, "its stage")
    elif kind == "single-jump":
        if len(its) != min(2, len(ladders)):
            yield f"the number of its stages ({len(its)}; a single jump has two)"
        yield from _unlike(its[0], ladders[0], (*SHAPE, *_BATCH, "mixture"), "its first stage")
        yield from _unlike(its[-1], ladders[-1], (*SHAPE, *_BATCH), "its last stage")
    else:
        if len(its) != len(ladders):
            yield f"the number of its stages ({len(its)}, the ladder has {len(ladders)})"
        for number, (stage, other) in enumerate(zip(its, ladders, strict=False)):
            yield from _unlike(stage, other, (*SHAPE, *_BATCH, "mixture"), f"its stage {number}")


def _missized(ladder: RunReport, control: RunReport, kind: str) -> Iterator[str]:
    sizes, own = ([stage.num_parameters for stage in run.stages] for run in (ladder, control))
    wanted = sizes
    if is_scratch(kind):
        wanted = own[-1:] if own[-1] in sizes or kind in ("decoder-scratch", BEST_SCRATCH) else sizes[-1:]
    elif kind == UNGROWN and ladder.base:
        wanted = [ladder.base.num_parameters]
    elif kind == "single-jump":
        wanted = [sizes[0], sizes[-1]] if len(sizes) > 1 else sizes
    if own != wanted:
        yield f"the parameters of its stages ({shown(own)}; {kind} has {shown(wanted)})"


def stages_of(run: RunReport) -> list[dict[str, Any]]:
    """The conditions of each stage of a run, by key; empty if its ledger records none."""
    stages: dict[int, dict[str, Any]] = {}
    for key, value in run.conditions.items():
        block, _, rest = key.partition(".")
        number, _, name = rest.partition(".")
        if block == "stages" and number.isdigit():
            stages.setdefault(int(number), {})[name] = value
    return [stages[number] for number in sorted(stages)]


def _only(stage: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: stage[key] for key in keys if stage.get(key) is not None}


def _unlike(stage: dict[str, Any], other: dict[str, Any], keys: Sequence[str], what: str) -> Iterator[str]:
    for key in keys:
        if stage.get(key) != other.get(key):
            yield f"{key} of {what} ({shown(stage.get(key))}, the ladder {shown(other.get(key))})"


def _weights(stages: Sequence[dict[str, Any]]) -> list[Any]:
    """The weights of a mixture that stages read with, one after another, each change once."""
    weights = [each for stage in stages for each in stage.get("mixture") or []]
    return [each for number, each in enumerate(weights) if not number or each != weights[number - 1]]


def recipe(run: RunReport, *, with_steps: bool = True, without: Sequence[str] = ()) -> str:
    """Text that is equal for runs that differ in nothing but their seed, their machines and the conditions `without`.

    A ladder that grows when its loss flattens trains another number of steps with each seed, and so do its controls:
    `with_steps` leaves these out.
    """
    start = (run.base.recipe or run.base.manifest) if run.base else None
    values = {key: value for key, value in conditions_of(run).items() if key not in (SEED, "start.manifest", *without)}
    parts = [_part(part, with_steps) for part in run.parts]
    recorded = {"control": run.control, "conditions": values, "data": run.dataset_fingerprint}
    return json.dumps(recorded | {"start": start, "parts": parts}, sort_keys=True, default=str)


def _part(part: StageReport, with_steps: bool) -> tuple[Any, ...]:
    """What a stage or a release is, apart from its name and how far it came."""
    return part.num_parameters, part.planned_steps if with_steps else None, bool(part.branch_of), part.decayed
