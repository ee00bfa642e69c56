"""Reads the finished models that a law is fitted on: their sizes, tokens, axes of growth, costs and losses."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from growctl.analysis.conditions import (
    PEAK,
    SHAPE,
    WHEN,
    Difference,
    measured_alike,
    stages_of,
    training_conditions,
)
from growctl.analysis.family import finished_models
from growctl.law.formula import Recipe, Segment
from growctl.runs.runs import RunReport, StageReport
from model.errors import UserError

_OTHERS = ("official-growth", "transformer-scratch")  # controls of other methods
Trainers = Mapping[str, tuple[RunReport, StageReport]]  # of start checkpoints, by `RUN, stage STAGE`


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


def read_models(runs: Sequence[RunReport], known: Sequence[RunReport]) -> tuple[list[Model], list[str]]:
    """The finished models of `runs` by name, each with its best peak; and why others do not count.

    `known`: runs that may have trained their start checkpoints.
    """
    trainers = {f"{run.name}, stage {stage.name}": (run, stage) for run in known for stage in run.stages}
    models: dict[tuple[tuple[Segment, ...], int], Model] = {}
    left_out = []
    for run in sorted(runs, key=lambda run: run.name):
        try:
            for model in _models(run, trainers):
                other = models.setdefault((model.path, model.seed), model)
                models[model.path, model.seed] = min(other, model, key=lambda each: each.loss)
        except UserError as why:
            left_out.append(f"{run.name}: {why}.")
    return sorted(models.values(), key=lambda model: model.name), left_out


def _models(run: RunReport, trainers: Trainers) -> Iterator[Model]:
    if run.control in _OTHERS:
        raise UserError(f"{run.control} is another method")
    for model in finished_models(run):
        loss = model.stages[-1].validation_loss
        if model.finished and loss is not None and math.isfinite(loss):
            path, flops = _path(model, trainers)
            yield Model(model.name, run.name, run.seed, path, flops, loss, float(run.conditions["learning_rate.peak"]))


def _path(run: RunReport, trainers: Trainers) -> tuple[tuple[Segment, ...], float]:
    """The training of a run at each size, that of its start checkpoint included, and its FLOPs. Raises UserError if the
    start checkpoint's is not known."""
    path, flops = list[Segment](), sum((stage.flops for stage in run.stages), 0.0)
    if run.base:
        if (run.base.run or "") not in trainers:
            raise UserError(f"it starts from {run.base.run or run.base.path}, which is not among these runs")
        trainer, end = trainers[run.base.run or ""]
        before, paid = _path(replace(trainer, stages=trainer.path(end)), trainers)
        if not math.isclose(run.base.flops or 0.0, paid, rel_tol=0.01):
            raise UserError(f"it starts from a checkpoint that is not the end of {run.base.run}")
        path, flops = [*before], paid + flops
    shapes = stages_of(run)
    for number, stage in enumerate(run.stages):
        shape = shapes[number - (stage.branch_of is not None)]  # a release has the shape of its stage
        width = tuple(repr(shape.get(key)) for key in ("hidden_size", "attention_tokens", "ffn_tokens", "ffn_size"))
        embedding, tokens = run.conditions["model.vocab_size"] * shape["hidden_size"], float(stage.train_tokens)
        if path and path[-1].num_parameters == stage.num_parameters:
            tokens += path.pop().tokens
        path.append(Segment(stage.num_parameters, embedding, shape["num_layers"], width, tokens))
    return tuple(path), flops


def shared_conditions(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run's conditions that all runs of a law share: all but the peak, the seed, and the sizes and steps of
    stages. Under `stages.batch_size` and the like are the values that any stage has."""
    shared: dict[str, Any] = {}
    for key, value in values.items():
        block, name = key.split(".")[0], key.split(".")[-1]
        if block == "stages" and name not in SHAPE:
            found = shared.setdefault(f"stages.{name}", [])
            found += [value] * (value not in found)
        elif block not in ("stages", "start", "seed") and key not in (PEAK, *WHEN):
            shared[key] = value
    return shared


def unlike(a: Mapping[str, Any], b: Mapping[str, Any], *, grow: bool) -> Difference | None:
    """The first shared condition in which two runs differ; those of growth only count if both runs `grow`."""
    keys = (key for key in sorted({*a, *b}) if grow or not key.startswith("growth."))
    return next((Difference(key, a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)), None)


def grows(run: RunReport) -> bool:
    """Whether any model of `run` may have grown."""
    return run.base is not None or len({stage.num_parameters for stage in run.stages}) > 1


def check_alike(runs: Sequence[RunReport]) -> None:
    """Raises UserError, with the first difference, unless one law can hold for all of `runs`."""
    runs = [run for run in sorted(runs, key=lambda run: run.name) if run.control not in _OTHERS]
    values = {run.name: shared_conditions(training_conditions(run)) for run in runs}
    for members, grow in ((runs, False), ([run for run in runs if grows(run)], True)):
        for run in members[1:]:
            first = members[0]
            why = measured_alike(first, run) or unlike(values[first.name], values[run.name], grow=grow)
            if why:
                raise UserError(f"no law fits both {first.name} and {run.name}: {why}")


def read_recipe(runs: Sequence[RunReport], models: Sequence[Model]) -> Recipe:
    """How `models` of `runs` were trained, with the shape of the first grown one."""
    grown, best = next(each for each in models if len(each.path) > 1), min(models, key=lambda model: model.loss)
    run = next(run for run in runs if run.name == grown.run)
    shape = {key: stages_of(run)[-1][key] for key in ("hidden_size", "sequence_length", "batch_size")}
    shape |= {key: run.conditions[f"model.{key}"] for key in ("num_heads", "vocab_size")}
    layers = [segment.num_layers for model in models for segment in model.path]
    return Recipe(
        dataset_fingerprint=run.dataset_fingerprint,
        optimizer=run.conditions["optimizer.name"],
        peak=best.peak,
        decay=float(run.conditions["learning_rate.decay"] or 0.2),  # a cosine has none
        shape=shape | {"fewest_layers": min(layers), "most_layers": max(layers)},
    )
