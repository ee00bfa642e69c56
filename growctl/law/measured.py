"""Reads the finished models that a law is fitted on: their sizes, tokens, axes of growth, costs and losses."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from growctl.analysis.conditions import differences, measured_alike, stages_of
from growctl.analysis.family import finished_models
from growctl.law.formula import Recipe, Segment
from growctl.runs.runs import RunReport
from model.errors import UserError

_SAME = ("model.family", "optimizer.name", "learning_rate.shape", "learning_rate.decay")
_SAME_GROWTH = tuple(f"growth.{key}" for key in ("init", "tau", "depth", "moments", "old_tokens"))
_OTHER_METHODS = ("official-growth", "transformer-scratch")  # controls that a ladder may have


@dataclass(frozen=True)
class Model:
    """A finished model."""

    name: str
    run: str
    seed: int
    path: tuple[Segment, ...]
    flops: float
    """Training FLOPs, the start checkpoint's included."""
    loss: float
    """Nats per token."""
    peak: float

    @property
    def setting(self) -> tuple[Any, ...]:
        """Equal for seeds of one setting."""
        return self.path, self.peak


def read_models(runs: Sequence[RunReport], known: Sequence[RunReport]) -> tuple[list[Model], list[str]]:
    """The finished models of `runs`, each training once, by name; and why others do not count.

    `known`: runs that may have trained their start checkpoints.
    """
    trainers = {f"{run.name}, stage {stage.name}": (run, stage.name) for run in known for stage in run.stages}
    models: dict[tuple[Any, ...], Model] = {}
    left_out = []
    for run in sorted(runs, key=lambda run: run.name):
        try:
            for model in _models(run, trainers):
                models.setdefault((model.setting, model.seed, model.loss), model)
        except UserError as why:
            left_out.append(f"{run.name}: {why}.")
    return sorted(models.values(), key=lambda model: model.name), left_out


def _models(run: RunReport, trainers: Mapping[str, tuple[RunReport, str]]) -> Iterator[Model]:
    if run.control in _OTHER_METHODS:
        raise UserError(f"{run.control} is another method")
    start, paid = _start(run, trainers)
    for model in finished_models(run):
        loss = model.stages[-1].validation_loss
        if model.finished and loss is not None and math.isfinite(loss):
            path, peak = _joined([*start, *_segments(model)]), run.conditions["learning_rate.peak"]
            flops = paid + sum(stage.flops for stage in model.stages)
            yield Model(model.name, run.name, run.seed, path, flops, loss, float(peak))


def _segments(run: RunReport) -> Iterator[Segment]:
    """The training of each stage; a release has the shape of its stage."""
    shapes = stages_of(run)
    for number, stage in enumerate(run.stages):
        shape = shapes[min(number, len(shapes) - 1)]
        width = tuple(repr(shape.get(key)) for key in ("hidden_size", "attention_tokens", "ffn_tokens", "ffn_size"))
        embedding = run.conditions["model.vocab_size"] * shape["hidden_size"]
        yield Segment(stage.num_parameters, embedding, shape["num_layers"], width, stage.train_tokens)


def _joined(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Neighbours of one size as one."""
    joined = [segments[0]]
    for segment in segments[1:]:
        if segment.num_parameters == joined[-1].num_parameters:
            joined[-1] = replace(segment, tokens=joined[-1].tokens + segment.tokens)
        else:
            joined.append(segment)
    return tuple(joined)


def _start(run: RunReport, trainers: Mapping[str, tuple[RunReport, str]]) -> tuple[tuple[Segment, ...], float]:
    """The training of a run's start checkpoint, and its FLOPs. Raises UserError if they are not known."""
    if run.base is None:
        return (), 0.0
    if run.base.run is None or run.base.run not in trainers:
        raise UserError(f"it starts from {run.base.run or run.base.path}, which is not among these runs")
    trainer, name = trainers[run.base.run]
    stages = trainer.path(next(stage for stage in trainer.stages if stage.name == name))
    start, paid = _start(trainer, trainers)
    paid += sum(stage.flops for stage in stages)
    if run.base.flops is None or not math.isclose(run.base.flops, paid, rel_tol=0.01):
        raise UserError(f"it starts from a checkpoint that is not the end of {run.base.run}")
    return (*start, *_segments(replace(trainer, stages=stages))), paid


def check_alike(runs: Sequence[RunReport]) -> None:
    """Raises UserError, with the first difference, unless one law can hold for all of `runs`."""
    runs = [run for run in sorted(runs, key=lambda run: run.name) if run.control not in _OTHER_METHODS]
    grown = [run for run in runs if run.base or len({stage.num_parameters for stage in run.stages}) > 1]
    for members, keys in ((runs, _SAME), (grown, _SAME_GROWTH)):
        for run in members[1:]:
            unlike = (str(each) for each in differences(members[0], run) if each.key in keys)
            if why := measured_alike(members[0], run) or next(unlike, None):
                raise UserError(f"no law fits both {members[0].name} and {run.name}: {why}")


def read_recipe(runs: Sequence[RunReport], models: Sequence[Model]) -> Recipe:
    """How `models` of `runs` were trained, with the shape of the first grown one."""
    grown = next(model for model in models if len(model.path) > 1)
    run = next(run for run in runs if run.name == grown.run)
    best = {str(model.path[-1].num_parameters): model.peak for model in sorted(models, key=lambda model: -model.loss)}
    shape = {key: stages_of(run)[-1][key] for key in ("hidden_size", "sequence_length", "batch_size")}
    shape |= {key: run.conditions[f"model.{key}"] for key in ("num_heads", "vocab_size")}
    return Recipe(
        dataset_fingerprint=run.dataset_fingerprint,
        optimizer=run.conditions["optimizer.name"],
        peaks={size: best[size] for size in sorted(best, key=int)},
        decay=float(run.conditions["learning_rate.decay"]),
        ramp=float(run.conditions["growth.ramp"]),
        shape=shape | {"most_layers": max(segment.num_layers for model in models for segment in model.path)},
    )
