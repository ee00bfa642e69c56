"""The `start` of a schedule: described before the schedule is checked, and compared with its model and stages."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from growctl.runs_dir import RunPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.describe_start import describe_start
from growctl.schedule.start_block import BaseBlock, StartBlock
from model.config import PATTENTIONS, TokenformerConfig
from model.errors import UserError

_KEPT = ("num_layers", "hidden_size", "num_heads", "score_function", "rotary_fraction", "rotary_base")
"""Keys of `model` that must be those of the start checkpoint."""


def with_base(data: Any, runs_dir: Path, run: RunPaths, load: Callable[[Path], Schedule]) -> Any:
    """A schedule's plain data, with `start.base` if it has a `start`; an invalid block stays as it is.

    A run that has begun keeps the checkpoint that it started from, even if that has changed or is gone since. Its own
    schedule is read with `load`. Raises UserError if there is no such checkpoint.
    """
    if not isinstance(data, dict) or not isinstance(data.get("start"), dict):
        return data
    block = {key: value for key, value in data["start"].items() if key != "base"}
    try:
        start = StartBlock.model_validate(block)
    except ValidationError:
        return data | {"start": block}
    base = _begun_from(start, run, load) or describe_start(start, runs_dir)
    return data | {"start": block | {"base": base.model_dump(mode="json")}}


def _begun_from(start: StartBlock, run: RunPaths, load: Callable[[Path], Schedule]) -> BaseBlock | None:
    """The checkpoint that the run began with, if it began with this `start`."""
    if not run.has_begun() or not run.schedule.is_file():
        return None
    with suppress(UserError, OSError):  # the runner reports a schedule that cannot be read
        own = load(run.schedule).start
        if own and (own.checkpoint, own.run, own.stage) == (start.checkpoint, start.run, start.stage):
            return own.base
    return None


def check_start(schedule: Schedule) -> Iterator[str]:
    """One line per property of the start checkpoint that does not fit the schedule's model."""
    if schedule.start is None:
        return
    base, block = schedule.start.base, schedule.model
    if base is None:
        yield "start.base: is missing; growctl writes it when it loads a schedule from a file"
        return
    if block.family != "tokenformer":
        yield f"model.family = {block.family!r}: goes without start; only a tokenformer can start from a checkpoint"
        return
    model = base.model
    if not isinstance(model, TokenformerConfig):
        yield f"start: {base.path} is a {model.family}; a run can only start from a tokenformer"
        return
    for key in _KEPT:
        wanted, has = getattr(block, key), getattr(model, key)
        if wanted != has:
            advice = "; to add layers to it, set stages.0.num_layers" if key == "num_layers" and wanted > has else ""
            yield f"model.{key} = {wanted!r}: must be {has!r}, as in the start checkpoint {base.path}{advice}"
    key = "model.vocab_size" if block.vocab_size or schedule.data.tokenizer_vocab_size else "data.vocab_size"
    vocab_size = block.vocab_size or schedule.data.num_tokens
    if vocab_size not in (None, model.vocab_size):
        yield f"{key} = {vocab_size}: must be {model.vocab_size}, as in the start checkpoint {base.path}"
    for layer, sizes in enumerate(block.pattentions() for block in model.blocks):
        if len({sizes[name].num_tokens for name in PATTENTIONS if name != "ffn"}) > 1:
            yield f"start: Q, K, V and O differ in size in layer {layer} of {base.path}; a schedule has one for all"
            return
