"""The weights of a mixture along a run: those of each stage from its first window on.

Sources take turns at windows of the ladder's longest context. A stage that begins inside a window reads the rest of it,
from the source that it belongs to; its own weights hold from the next window on.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from growctl.ladder.data_position import first_sample
from growctl.ladder.stage_plans import StagePlan
from growctl.schedule.batches import longest_context, stage_batch
from growctl.schedule.blocks import Schedule
from growctl.schedule.mixture_block import shares
from stages.spec import MixtureSpan


def stage_weights(schedule: Schedule, index: int) -> list[tuple[int, dict[str, float]]]:
    """(step of the stage, weights from there on) in a stage: one entry, unless a control follows its ladder's stages.

    Empty without a mixture.
    """
    if not schedule.data.mixture:
        return []
    stage = schedule.stages[index]
    if stage.followed:
        return [(each.first_step, each.weights) for each in stage.followed]
    return [(0, stage.mixture or schedule.data.base_weights)]


def stage_shares(schedule: Schedule, index: int) -> list[tuple[int, dict[str, Fraction]]]:
    """The same as exact shares, which are equal if two stages read the same."""
    return [(step, shares(weights)) for step, weights in stage_weights(schedule, index)]


def mixture_spans(
    schedule: Schedule, positions: Sequence[int], before: Sequence[MixtureSpan] = ()
) -> tuple[MixtureSpan, ...]:
    """The weights from window 0 on, for the stages that begin at `positions` (growctl/ladder/data_position.py).

    Empty without a mixture. `before` is what a start checkpoint has read. Without it, a run that begins at a later
    position counts as if it had read what lies before with the weights of its first stage. A stage with the shares of
    the one before begins no span of its own.
    """
    spans, window = list(before), longest_context(schedule)
    for position, weights in _changes(schedule, positions):
        first = first_sample(position, window) if spans else 0
        if spans and shares(spans[-1].weights) == shares(weights):
            continue
        while spans and spans[-1].first_window >= first:
            spans.pop()
        spans.append(MixtureSpan(first_window=first, weights=_above_zero(weights)))
    return tuple(spans)


def planned_spans(schedule: Schedule, plan: StagePlan, plans: Sequence[StagePlan]) -> tuple[MixtureSpan, ...]:
    """The spans for one of `plans`, or a release of one, if every stage trains as many steps as planned."""
    return mixture_spans(schedule, [each.first_token for each in plans[: plan.index + 1]])


def _changes(schedule: Schedule, positions: Sequence[int]) -> Iterator[tuple[int, Mapping[str, float]]]:
    for index, position in enumerate(positions):
        batch = stage_batch(schedule, index)
        begin = first_sample(position, batch.sequence_length) * batch.sequence_length
        for step, weights in stage_weights(schedule, index):
            yield begin + step * batch.tokens, weights


def _above_zero(weights: Mapping[str, float]) -> dict[str, float]:
    return {name: weight for name, weight in weights.items() if weight}
