"""Reads the finished models that a law is fitted on: their sizes, tokens, axes of growth, costs and losses."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from growctl.analysis.conditions import differences, measured_alike, stages_of
from growctl.analysis.family import finished_models
from growctl.law.formula import Recipe, Segment
from growctl.runs.runs import RunReport, StageReport
from model.errors import UserError

_OTHERS = ("official-growth", "transformer-scratch")  # controls of other methods
_SAME = ("model.family", "optimizer.name", "learning_rate.shape", "learning_rate.decay")
_SAME_GROWTH = tuple(f"growth.{key}" for key in ("init", "tau", "depth", "moments", "old_tokens"))
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

    @property
    def setting(self) -> tuple[Any, ...]:
        """Equal for the seeds of a setting."""
        return self.path, self.peak


def read_models(runs: Sequence[RunReport], known: Sequence[RunReport]) -> tuple[list[Model], list[str]]:
    """The finished models of `runs`, each training once, by name; and why others do not count.

    `known`: runs that may have trained their start checkpoints.
    """
    trainers = {f"{run.name}, stage {stage.name}": (run, stage) for run in known for stage in run.stages}
    models: dict[tuple[Any, ...], Model] = {}
    left_out = []
    for run in sorted(runs, key=lambda run: run.name):
        try:
            for model in _models(run, trainers):
                models.setdefault((model.setting, model.seed, model.loss), model)
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
        shape = shapes[min(number, len(shapes) - 1)]  # a release has the shape of its stage
        width = tuple(repr(shape.get(key)) for key in ("hidden_size", "attention_tokens", "ffn_tokens", "ffn_size"))
        embedding, tokens = run.conditions["model.vocab_size"] * shape["hidden_size"], float(stage.train_tokens)
        if path and path[-1].num_parameters == stage.num_parameters:
            tokens += path.pop().tokens
        path.append(Segment(stage.num_parameters, embedding, shape["num_layers"], width, tokens))
    return tuple(path), flops


def check_alike(runs: Sequence[RunReport]) -> None:
    """Raises UserError, with the first difference, unless one law can hold for all of `runs`."""
    runs = [run for run in sorted(runs, key=lambda run: run.name) if run.control not in _OTHERS]
    grown = [run for run in runs if run.base or len({stage.num_parameters for stage in run.stages}) > 1]
    for members, keys in ((runs, _SAME), (grown, _SAME_GROWTH)):
        for run in members[1:]:
            unlike = (str(each) for each in differences(members[0], run) if each.key in keys)
            if why := measured_alike(members[0], run) or next(unlike, None):
                raise UserError(f"no law fits both {members[0].name} and {run.name}: {why}")


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
