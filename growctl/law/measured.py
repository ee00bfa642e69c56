"""Reads the finished models that a law is fitted on: their sizes, tokens, axes of growth, costs and losses."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from growctl.analysis.conditions import PEAK, SHAPE, WHEN, Difference, conditions_of, measured_alike, stages_of
from growctl.analysis.family import finished_models
from growctl.law.formula import Recipe, Segment
from growctl.runs.runs import RunReport, StageReport
from model.errors import UserError

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

    `known`: runs that may have trained their start checkpoints, or be the ladders of controls.
    """
    trainers = {f"{run.name}, stage {stage.name}": (run, stage) for run in known for stage in run.stages}
    models: dict[tuple[tuple[Segment, ...], int], Model] = {}
    left_out = []
    for run in sorted(runs, key=lambda run: run.name):
        try:
            if _is_another_method(run, known):
                raise UserError(f"{run.control} is another method")
            for model in _models(run, trainers):
                other = models.setdefault((model.path, model.seed), model)
                models[model.path, model.seed] = min(other, model, key=lambda each: each.loss)
        except UserError as why:
            left_out.append(f"{run.name}: {why}.")
    return sorted(models.values(), key=lambda model: model.name), left_out


def _is_another_method(run: RunReport, known: Sequence[RunReport]) -> bool:
    """Whether `run` is a control whose method no law of its ladder holds for: official growth, or a decoder where the
    ladder, one of `known`, is none."""
    if run.control != "decoder-scratch":
        return run.control == "official-growth"
    families = [ladder.conditions.get("model.family") for ladder in known if ladder.name == run.control_of]
    return "decoder" not in families


def _models(run: RunReport, trainers: Trainers) -> Iterator[Model]:
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
        width = tuple(repr(shape.get(key)) for key in ("hidden_size", "attention_tokens", "ffn_tokens", "num_heads"))
        embedding, tokens = run.conditions["model.vocab_size"] * shape["hidden_size"], float(stage.train_tokens)
        if path and path[-1].num_parameters == stage.num_parameters:
            tokens += path.pop().tokens
        path.append(Segment(stage.num_parameters, embedding, shape["num_layers"], width, tokens))
    return tuple(path), flops


def shared_conditions(values: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions of a run that all runs of a law share: not its peak, its seed, the sizes and steps of stages, and
    those of growth only if it grows. `stages.batch_size` and the like are lists of the values that stages have."""
    shared, grows = dict[str, Any](), any(key.startswith(("start.", "stages.1.")) for key in values)
    for key, value in values.items():
        block, name = key.split(".")[0], key.split(".")[-1]
        if block == "stages" and name not in SHAPE:
            found = shared.setdefault(f"stages.{name}", [])
            found += [value] * (value not in found)
        elif block not in ("stages", "start", "seed") and key not in (PEAK, *WHEN) and (grows or block != "growth"):
            shared[key] = value
    return shared


def unlike(own: Mapping[str, Any], values: Mapping[str, Any]) -> Difference | None:
    """The first of the shared conditions `values` in which they differ from a law's own."""
    return next((Difference(key, own[key], each) for key, each in values.items() if own.get(key, each) != each), None)


def check_alike(runs: Sequence[RunReport]) -> None:
    """Raises UserError, with the first difference, unless one law can hold for all of `runs`."""
    runs = [run for run in sorted(runs, key=lambda run: run.name) if not _is_another_method(run, runs)]
    values: dict[str, Any] = {}
    for run in runs:
        shared = shared_conditions(conditions_of(run))
        if why := measured_alike(runs[0], run) or unlike(values, shared):
            raise UserError(f"no law fits {run.name} and the runs before it, {runs[0].name} and so on: {why}")
        values = shared | values


def read_recipe(runs: Sequence[RunReport], models: Sequence[Model]) -> Recipe:
    """How `models` of `runs` were trained, with the shape of the first grown one."""
    grown, best = next(each for each in models if len(each.path) > 1), min(models, key=lambda model: model.loss)
    run = next(run for run in runs if run.name == grown.run)
    last = stages_of(run)[-1]
    rate = [run.conditions.get(f"learning_rate.{key}", usual) for key, usual in (("shape", "wsd"), ("span", "ladder"))]
    layers = [segment.num_layers for model in models for segment in model.path]
    return Recipe(
        dataset_fingerprint=run.dataset_fingerprint,
        peak=best.peak,
        decay=float(run.conditions["learning_rate.decay"]) if rate == ["wsd", "ladder"] else 0.0,
        **{key: last[key] for key in ("hidden_size", "sequence_length", "batch_size")},
        num_heads=last.get("num_heads") or run.conditions["model.num_heads"],  # a decoder's stages have theirs
        vocab_size=run.conditions["model.vocab_size"],
        layers=(min(layers), max(layers)),
        conditions=shared_conditions(conditions_of(run)),
    )
