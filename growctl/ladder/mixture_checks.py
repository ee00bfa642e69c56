"""Checks the text of a schedule: one source, or a mixture whose stages weight known sources."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from growctl.schedule.blocks import Schedule
from growctl.schedule.data_block import DataBlock
from growctl.schedule.errors import shown
from growctl.schedule.mixture_block import FollowedWeights
from growctl.text.suggestion import did_you_mean
from stages.data.spec import SourceSpec

_OF_A_SOURCE = (*(key for key in SourceSpec.model_fields if key != "source"), "approximate_tokens")
"""The keys of `data` that describe its source. The sources of a mixture have their own."""


def check_text_block(schedule: Schedule) -> Iterator[str]:
    """One line per mistake in `data` and in the weights of the stages."""
    data = schedule.data
    if data.shared_tokenizer is not None:
        yield "data.shared_tokenizer: growctl computes it; leave it out"
    if data.mixture:
        yield from _check_mixture(data)
    elif not data.source:
        yield "data.source: is missing; set it to a text, or name several in data.mixture"
    elif data.when_exhausted != "stop":
        yield f"data.when_exhausted = {data.when_exhausted!r}: is for data.mixture; leave it out"
    for index, stage in enumerate(schedule.stages):
        if stage.mixture is not None:
            yield from _check_weights(data, stage.mixture, f"stages.{index}.mixture")
        if stage.followed is not None:
            yield from _check_followed(data, stage.followed, f"stages.{index}.followed")


def _check_mixture(data: DataBlock) -> Iterator[str]:
    if data.source:
        yield (
            f"data.source = {shown(data.source)}: data.mixture names sources too; drop one of the two (as an override: "
            "~data.source)"
        )
    for key in _OF_A_SOURCE:
        if (value := getattr(data, key)) != DataBlock.model_fields[key].default:
            yield (
                f"data.{key} = {shown(value)}: is for data.source; with data.mixture, set it in the entries that need "
                f"it (as an override: ~data.{key} data.mixture.0.{key}=...)"
            )
    names = [source.name for source in data.mixture]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield (
                f"data.mixture.{index}.name = {name!r}: another source has that name; give it another name, or one "
                "entry with the summed weight"
            )


def _check_followed(data: DataBlock, followed: Sequence[FollowedWeights], here: str) -> Iterator[str]:
    steps = [each.first_step for each in followed]
    if steps[:1] != [0] or any(after <= before for before, after in pairwise(steps)):
        yield f"{here}: growctl writes this key into controls, with steps that rise from 0; leave it out"
    for number, each in enumerate(followed):
        yield from _check_weights(data, each.weights, f"{here}.{number}.weights")


def _check_weights(data: DataBlock, weights: Mapping[str, float], here: str) -> Iterator[str]:
    if not data.mixture:
        yield f"{here}: data.mixture names no sources to weight; leave it out, or set data.mixture"
        return
    names = list(data.base_weights)
    for name, weight in weights.items():
        if name not in names:
            yield (
                f"{here}.{name} = {weight:g}: data.mixture has no such source; its sources are "
                f"{', '.join(names)}{did_you_mean(name, names)}"
            )
    if not any(weights.values()):
        yield f"{here} = {shown(weights)}: all weights are 0, so no source would be read; set at least one above 0"
