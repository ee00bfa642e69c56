"""How much of each source of a mixture a schedule reads, and whether the sources last that long."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from growctl.ladder.controls import plan_controls
from growctl.ladder.mixture_spans import planned_spans
from growctl.ladder.releases import plan_run
from growctl.ladder.stage_plans import StagePlan, plan_stages
from growctl.runs_dir import RunsPaths
from growctl.schedule.batches import longest_context
from growctl.schedule.blocks import Schedule
from growctl.schedule.data_block import DataBlock
from stages.data.corpus import DataSpec
from stages.data.prepared import prepared_datasets
from stages.data.source_errors import DataError

if TYPE_CHECKING:
    from stages.data.dataset import DatasetManifest
    from stages.data.mixture import Mixture

_UNKNOWN_TOKENS = 2**60


@dataclass(frozen=True)
class MixturePart:
    """What a stage or a release reads of one source."""

    stage: str
    """The stage's name; for a release, STAGE/release."""

    source: str
    share: float
    """Of the stage's samples, between 0 and 1."""

    train_tokens: int
    epochs: float | None
    """Passes over the source from the run's start to the stage's end; null before its size is known."""


def known_sizes(data: DataBlock, runs_dir: Path | None) -> tuple[dict[str, int | None], bool]:
    """The training tokens of each source, and whether all of them are counted: prepared in `runs_dir`.

    Otherwise they are `approximate_tokens`, or None.
    """
    sizes: dict[str, int | None] = {}
    counted = True
    for source, spec in zip(data.mixture, data.specs, strict=True) if data.mixture else ():
        prepared = _prepared_tokens(spec, runs_dir)
        counted = counted and prepared is not None
        sizes[source.name] = source.approximate_tokens if prepared is None else prepared
    return sizes, counted


def sizes_of(manifest: "DatasetManifest", directory: Path) -> dict[str, int | None]:
    """The training tokens of each source of the mixture in `directory`; empty for an ordinary dataset."""
    from stages.data.dataset import read_dataset_manifest

    sources = [(entry.name, read_dataset_manifest(entry.dataset(directory))) for entry in manifest.sources]
    return {name: source.splits["train"].num_tokens for name, source in sources}


def mixture_parts(schedule: Schedule, sizes: Mapping[str, int | None]) -> Iterator[MixturePart]:
    """What each stage and release of `schedule` reads of each source, if every stage trains as long as planned.

    A plan for which the sources do not last reads on in them.
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
                train_tokens=(now - was) * length,
                epochs=None if source.num_tokens == _UNKNOWN_TOKENS else now / per_window / source.num_windows,
            )


def exhausted(schedule: Schedule, sizes: Mapping[str, int | None]) -> str | None:
    """The message for a mixture whose sources may not be read as often as `schedule` needs; None if they last.

    Sources of unknown size last. The last stage or release comes first: it says how much the whole run needs.
    """
    plans = plan_stages(schedule)
    for part in reversed(list(plan_run(schedule))) if schedule.data.mixture else ():
        end = part.first_token + part.train_tokens
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
    stages = [MixtureStage(span.first_window, span.weights) for span in planned_spans(schedule, part, plans)]
    return Mixture(sources, stages, schedule.data.when_exhausted)


def _prepared_tokens(spec: DataSpec, runs_dir: Path | None) -> int | None:
    """The training tokens of the newest prepared dataset; None if there is none."""
    for _, document in prepared_datasets(spec, RunsPaths(runs_dir).datasets) if runs_dir else ():
        try:
            return int(document["splits"]["train"]["num_tokens"])
        except (ValueError, LookupError, TypeError, OverflowError):
            continue  # damaged: `prepare` sets it aside with a message
    return None
