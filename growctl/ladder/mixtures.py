"""What a schedule reads of each source of a mixture: the weights along a run, and whether the sources last that long.

Sources take turns at windows of the ladder's longest context. A stage that begins inside a window reads the rest of it,
from the source that it belongs to; its own weights hold from the next window on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from growctl.ladder.budgets import first_sample, stage_weights
from growctl.ladder.controls import plan_controls
from growctl.ladder.releases import plan_run
from growctl.ladder.stage_plans import StagePlan, plan_stages
from growctl.schedule.blocks import Schedule, longest_context, stage_batch
from growctl.schedule.data_block import shares
from stages.data.errors import DataError
from stages.spec import MixtureSpan

if TYPE_CHECKING:
    from stages.data.mixture import Mixture

_UNKNOWN_TOKENS = 2**60


def mixture_spans(
    schedule: Schedule, positions: Sequence[int], before: Sequence[MixtureSpan] = ()
) -> tuple[MixtureSpan, ...]:
    """The weights from window 0 on, for the stages that begin at `positions` (`budgets.stage_positions`).

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
        above_zero = {name: weight for name, weight in weights.items() if weight}
        spans.append(MixtureSpan(first_window=first, weights=above_zero))
    return tuple(spans)


def _changes(schedule: Schedule, positions: Sequence[int]) -> Iterator[tuple[int, Mapping[str, float]]]:
    for index, position in enumerate(positions):
        batch = stage_batch(schedule, index)
        begin = first_sample(position, batch.sequence_length) * batch.sequence_length
        for step, weights in stage_weights(schedule, index):
            yield begin + step * batch.tokens, weights


@dataclass(frozen=True)
class MixturePart:
    """What a stage or a release reads of one source."""

    stage: str
    """The stage's name; for a release, STAGE/release."""

    source: str
    share: float
    """Of the stage's samples, between 0 and 1."""

    budget_tokens: int
    epochs: float | None
    """Passes over the source from the run's start to the stage's end; None before its size is known."""


def mixture_parts(schedule: Schedule, sizes: Mapping[str, int | None]) -> Iterator[MixturePart]:
    """What each stage and release of `schedule` reads of each source, if every stage trains as long as planned.

    `sizes` are the training tokens of each source. A plan for which the sources do not last reads on in them.
    """
    plans, used_up = plan_stages(schedule), exhausted(schedule, sizes) is not None
    for part in plan_run(schedule) if schedule.data.mixture else ():
        mixture, length = _mixture(schedule, part, plans, sizes, limited=not used_up), part.batch.sequence_length
        per_window = longest_context(schedule) // length
        ends = (part.first_sample, part.first_sample + part.num_samples)
        before, after = (mixture.counts_of_pieces(end, per_window) for end in ends)
        for source, was, now in zip(mixture.sources, before, after, strict=True):
            yield MixturePart(
                stage=part.name,
                source=source.name,
                share=(now - was) / part.num_samples,
                budget_tokens=(now - was) * length,
                epochs=None if source.num_tokens == _UNKNOWN_TOKENS else now / per_window / source.num_windows,
            )


def exhausted(schedule: Schedule, sizes: Mapping[str, int | None]) -> str | None:
    """The message for a mixture whose sources may not be read as often as `schedule` needs; None if they last.

    Sources of unknown size last. The last stage or release comes first: it says how much the whole run needs.
    """
    plans = plan_stages(schedule)
    for part in reversed(plan_run(schedule)) if schedule.data.mixture else ():
        end = part.first_token + part.budget_tokens
        try:
            _mixture(schedule, part, plans, sizes).require(-(-end // longest_context(schedule)))
        except DataError as error:
            return str(error)
    return None


def exhausted_run(schedule: Schedule, sizes: Mapping[str, int | None], with_controls: bool = True) -> str | None:
    """As `exhausted`, for a ladder and then for its controls, which may read more than it does."""
    if used_up := exhausted(schedule, sizes):
        return used_up
    for control in plan_controls(schedule) if with_controls and schedule.data.mixture else ():
        if used_up := exhausted(control.schedule, sizes):
            return f"{control.name}: {used_up}; or leave the controls out (--no-controls)"
    return None


def _mixture(
    schedule: Schedule, part: StagePlan, plans: list[StagePlan], sizes: Mapping[str, int | None], limited: bool = True
) -> "Mixture":
    """The order of the sources up to a stage. Raises DataError for a limit of less than one sample."""
    from stages.data.mixture import Mixture, MixtureSource, MixtureStage  # slow: numpy

    sources = []
    for source in schedule.data.mixture:
        tokens = sizes.get(source.name)
        most = source.epochs_at_most if limited and tokens is not None else None
        num_tokens = _UNKNOWN_TOKENS if tokens is None else tokens
        sources.append(MixtureSource(source.name, num_tokens, longest_context(schedule), most))
    spans = mixture_spans(schedule, [plan.first_token for plan in plans[: part.index + 1]])
    stages = [MixtureStage(span.first_window, span.weights) for span in spans]
    return Mixture(sources, stages, schedule.data.when_exhausted)
