"""The conditions under which a run trained: every key of its resolved schedule, except those known not to matter.

growctl/analysis/conditions.py says which of them two runs may differ in. And how far two runs train alike, so that one
takes over the checkpoints of the other.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from model.errors import UserError
from model.shapes import HEADS, model_shape
from model.tokenformer_config import TokenformerConfig

if TYPE_CHECKING:
    from growctl.ladder.stage_plans import StagePlan
    from growctl.schedule.blocks import Schedule
    from stages.images.either import AnyManifest

READING = ("data.document_mask", "data.packing", "data.when_exhausted")
"""How training reads documents. The other keys of `data` say what the dataset is, whose fingerprint counts instead."""

_HARMLESS: dict[str, Any] = {
    **dict.fromkeys(("name", "controls", "samples", "checkpoint", "trackers", "releases"), True),
    **dict.fromkeys(("seed", "data", "start", "stages"), True),  # written out below
    "evaluation": {"every"},
    "training": {"log_every", "ladder_tokens", "ladder_flops", "batch_size", "sequence_length"},
    "model": {"num_layers", "hidden_size", "ffn_tokens", *HEADS},
    "launch": {"environment", "grace", "hang_timeout", "max_restarts", "cluster", "hostfile", "slurm", "hardware"},
}
"""Keys that change neither an update nor a measurement, or that the resolved stages hold. Costs say how long a run
trained."""


def comparison_conditions(schedule: "Schedule") -> dict[str, Any]:
    """The conditions of `schedule`, by dotted path, as JSON values.

    A stage's shape, batch, context, ramp and mixture are written out, whether the schedule inherits them or not, and so
    are the heads of a Tokenformer, which all stages share. The dataset is missing: see `data_conditions`.
    """
    from growctl.ladder.stage_plans import plan_stages

    plans = plan_stages(schedule)
    values = dict(_leaves(schedule.model_dump(mode="json", exclude=_HARMLESS)))
    values |= {"seed": schedule.seed, "model.vocab_size": schedule.vocab_size}
    values |= {path: getattr(schedule.data, path.removeprefix("data.")) for path in READING}
    if isinstance(plans[0].model, TokenformerConfig):
        values |= {f"model.{key}": getattr(plans[0].model, key) for key in HEADS}
    if images := schedule.data.images:
        values |= _leaves(images.augmentation.model_dump(mode="json"), "data.images.augmentation.")
    if schedule.base:
        values["start.manifest"] = schedule.base.manifest
    return dict(sorted((values | _stages(schedule, plans)).items()))


def _stages(schedule: "Schedule", plans: Sequence["StagePlan"]) -> dict[str, Any]:
    from growctl.schedule.data_block import shares

    values: dict[str, Any] = {}
    for plan in plans:
        stage = schedule.stages[plan.index]
        values |= {f"stages.{plan.index}.{key}": value for key, value in model_shape(plan.model).items()}
        values |= {
            f"stages.{plan.index}.batch_size": plan.batch.batch_size,
            f"stages.{plan.index}.sequence_length": plan.batch.sequence_length,
            f"stages.{plan.index}.ramp_steps": stage.ramp_steps,
            f"stages.{plan.index}.mixture": [
                {name: round(float(share), 9) for name, share in shares(weights).items()}
                for _, weights in schedule.weights_of(plan.index)
            ],
        }
    return values


_READING_ALONE = ("workers", "approximate_tokens", "attended_tokens", "tokenizer_vocab_size")
_CACHING = ("cache_bytes", "cache_dir", "retry_seconds")
SAME_SAMPLES: dict[str, Any] = dict.fromkeys((*_READING_ALONE, *_CACHING), True)
"""The keys of `data` that change no sample, as pydantic's `exclude`."""
SAME_SAMPLES["images"] = {"workers"}
SAME_SAMPLES["mixture"] = {"__all__": {"approximate_tokens"}}


class Trained(NamedTuple):
    """A run whose checkpoints another one may take over."""

    schedule: "Schedule"
    plans: Sequence["StagePlan"]
    checkpoints: Sequence[Collection[int]]
    """The steps of the checkpoints of each plan."""


def earlier_runs(runs_dir: Path) -> Iterator[Trained]:
    """The runs in `runs_dir`."""
    from growctl.ladder.load import load_resolved
    from growctl.ladder.stage_plans import paths_of, plan_run
    from growctl.runs_dir import RunsPaths

    for run in RunsPaths(runs_dir).all_runs():
        with suppress(UserError, OSError):  # the run reports what is broken
            schedule = load_resolved(run.schedule)
            stages = [(plan, paths_of(run, plan)) for plan in plan_run(schedule)]
            ends = [[plan.num_steps] * stage.final.exists() for plan, stage in stages]
            steps = [[*stage.checkpoints(), *end] for (_, stage), end in zip(stages, ends, strict=True)]
            yield Trained(schedule, [plan for plan, _ in stages], steps)


def reused_steps(schedule: "Schedule", plans: Sequence["StagePlan"], earlier: Sequence[Trained]) -> list[int]:
    """How many steps of each of `plans`, all that `schedule` trains, its run takes over from `earlier` ones.

    A run compares histories instead (growctl/run/reuse.py), which need its prepared dataset.
    """
    taken = [0] * len(plans)
    for other in earlier:
        theirs = {(plan.index, plan.branch_of is None): number for number, plan in enumerate(other.plans)}
        same_ends = {-1}  # the stages after which both have the same model
        for number, plan in enumerate(plans):
            match, start = theirs.get((plan.index, plan.branch_of is None)), plan.index - (plan.branch_of is None)
            if match is not None and start in same_ends:
                twin = other.plans[match]
                shared = _shared_steps((schedule, plan), (other.schedule, twin))
                taken[number] = max([taken[number], *(step for step in other.checkpoints[match] if step <= shared)])
                same_ends |= {plan.index} if shared == plan.num_steps == twin.num_steps else set()
    return taken


def _shared_steps(*two: tuple["Schedule", "StagePlan"]) -> int:
    """The steps in which two stages that start from the same model make the same updates."""
    if _updates(*two[0]) != _updates(*two[1]):
        return 0
    ends, rates = [plan.num_steps for _, plan in two], [plan.learning_rate for _, plan in two]
    for rate in rates if rates[0] != rates[1] else ():
        undecayed = rate.total_steps if rate.shape == "wsd" else 0
        ends.append(undecayed if rate.undecayed_steps is None else rate.undecayed_steps)
    return max(0, min(ends))


def _updates(schedule: "Schedule", plan: "StagePlan") -> list[Any]:
    """What determines the updates of a stage, except the model that it starts from and how long it lasts."""
    from growctl.ladder.stage_plans import slope_trigger

    rate, start = plan.learning_rate, None if plan.index else schedule.base and schedule.base.manifest
    return [
        (schedule.seed, start, plan.model, plan.batch, plan.first_sample, schedule.longest_context),
        (plan.growth, schedule.growth.policy()) if plan.is_grown else None,
        (rate.shape, rate.peak, rate.warmup_steps, rate.first_step, rate.scale),
        (plan.generations, plan.ramp_steps, plan.anneal_steps, schedule.optimizer, schedule.training.precision),
        (schedule.data.in_one_spelling().model_dump(exclude=SAME_SAMPLES), schedule.weights_of(plan.index)),
        (schedule.anomalies.model_dump(exclude={"most"}), slope_trigger(schedule, plan)),
        (schedule.training.log_every, schedule.checkpoint.every, schedule.evaluation.every)
        if schedule.anomalies.spikes != "ignore"
        else None,  # where they decide what is a spike
    ]


def data_conditions(dataset: "AnyManifest") -> dict[str, Any]:
    """What tells in which way two datasets of different fingerprints differ: hashes of the tokenizer and of each text.

    Of a mixture, the base weights too, which its texts' hashes include, and how often its sources may be read.

    Of images there is only the fingerprint itself, which the ledger stores in a separate column.
    """
    from stages.images.dataset import ImageManifest

    if isinstance(dataset, ImageManifest):
        return {}
    texts = {f"data.{name}_text": split.text_hash for name, split in dataset.splits.items()}
    values: dict[str, Any] = {"data.tokenizer": dataset.tokenizer_sha256, **texts}
    if not dataset.sources:
        return values
    weights = {source.name: source.weight for source in dataset.sources}
    if limits := {source.name: source.epochs_at_most for source in dataset.sources if source.epochs_at_most}:
        values["data.epochs_at_most"] = limits  # the fingerprint leaves them out
    return values | {name: _weighted(text, weights) for name, text in texts.items()} | {"data.mixture": weights}


def _weighted(text: str | None, weights: dict[str, float]) -> str | None:
    """A hash of a mixture's text and of the shares of its sources, because losses and samples depend on both."""
    total = sum(weights.values())
    shares = {name: f"{weight / total:.9f}" for name, weight in weights.items()}
    return text and hashlib.sha256(json.dumps([text, shares], sort_keys=True).encode()).hexdigest()


def _leaves(block: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
