"""What a schedule reads of its datasets: their sizes, the sources of a mixture, and the warnings that follow.

Sources of a mixture take turns at windows of the ladder's longest context. A stage that begins inside a window reads
the rest of it, from the source that it belongs to; its own weights hold from the next window on.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from growctl.ladder.controls import plan_controls
from growctl.ladder.stage_plans import StagePlan, first_sample, plan_run, plan_stages
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.data_block import DataBlock, shares
from growctl.text.formatting import byte_count
from stages.corpus.location import local_path, missing_text
from stages.corpus.prepared import prepared_datasets
from stages.counted import counted
from stages.data.dataset import REMOTE_NAME
from stages.data.errors import DataError
from stages.data.spec import SPLITS, SkippedRecords
from stages.images.dataset import ImageManifest, prepared_images
from stages.images.either import AnyManifest
from stages.spec import MixtureSpan

if TYPE_CHECKING:
    from stages.data.mixture import Mixture

ENOUGH_IMAGES = 1_000
ENOUGH_DOCUMENTS, ENOUGH_TOKENS = 50, 100_000
"""Of a validation set. With fewer, a difference between two losses may rest on a few documents."""


class DatasetSizes(NamedTuple):
    """What is known of the datasets of a schedule before a run."""

    is_prepared: bool
    """Whether all sizes are counted. Otherwise they are as approximate as the schedule's."""

    training_tokens: int | None
    sources: Mapping[str, int | None]
    """Training tokens of each source of a mixture."""

    validation_documents: int = 0
    validation_tokens: int = 0
    vocab_size: int = 0
    """Entries of the tokenizer."""

    remote_bytes: int = 0
    """Bytes of the training tokens that lie at URLs."""

    problem: str = ""
    """Why `prepare` will reject the text; empty if nothing is known against it."""


def known_sizes(schedule: Schedule, runs_dir: Path | None) -> DatasetSizes:
    """The sizes of the newest datasets in `runs_dir` that are prepared for `schedule`, from their manifests alone.

    Those of a local text that is not prepared are estimated, unless `runs_dir` is None.
    """
    datasets, data = RunsPaths(runs_dir).datasets if runs_dir else None, schedule.data
    if data.images:
        return _sizes_of_images(schedule, datasets)
    found = [next(prepared_datasets(spec, datasets), None) if datasets else None for spec in data.specs]
    trains = [each and each[1].splits["train"].num_tokens for each in found]
    sources = {
        source.name: source.approximate_tokens if tokens is None else tokens
        for source, tokens in zip(data.mixture, trains, strict=False)
    }
    prepared = [each for each in found if each]
    if len(prepared) < len(found):
        return estimated_sizes(data) if runs_dir else DatasetSizes(False, data.approximate_tokens, sources)
    validation = [manifest.splits["validation"] for _, manifest in prepared]
    remote = [manifest for path, manifest in prepared if (path / REMOTE_NAME).exists()]
    return DatasetSizes(
        is_prepared=True,
        training_tokens=sum(manifest.splits["train"].num_tokens for _, manifest in prepared),
        sources=sources,
        validation_documents=sum(split.num_documents for split in validation),
        validation_tokens=sum(split.num_tokens for split in validation),
        vocab_size=prepared[0][1].vocab_size,
        remote_bytes=sum(manifest.splits["train"].num_tokens * manifest.token_bytes for manifest in remote),
    )


def _sizes_of_images(schedule: Schedule, datasets: Path | None) -> DatasetSizes:
    assert schedule.data.images
    found = next(prepared_images(schedule.data.images.spec(), datasets), None) if datasets else None
    if found is None:
        return DatasetSizes(False, None, {})
    train, validation = (found[1].splits[split].num_images for split in SPLITS)
    length = schedule.longest_context
    return DatasetSizes(True, train * length, {}, validation, validation * length, schedule.vocab_size)


def estimated_sizes(data: DataBlock) -> DatasetSizes:
    """The sizes that the dataset of a local text will have, from reading the text or a part of it.

    Of a text elsewhere, and of a mixture, it knows what the schedule says.
    """
    sources = {source.name: source.approximate_tokens for source in data.mixture}
    sizes = DatasetSizes(False, data.approximate_tokens, sources)
    if data.source is None or local_path(data.source) is None or missing_text(data):
        return sizes
    from stages.corpus.corpus import measure_text, require_documents  # slow: numpy, tokenizers
    from stages.corpus.tokenizer import bytes_per_token

    try:
        text = measure_text(data)
        splits = {split: text.split(split, data.validation_fraction) for split in SPLITS}
        if text.share == 1:
            require_documents(data, {split: splits[split][0] for split in SPLITS}, SkippedRecords())
        if data.approximate_tokens:
            per_token: float | None = splits["train"][1] / data.approximate_tokens
        else:
            per_token = bytes_per_token(text.sample, data)
    except DataError as error:
        return sizes._replace(problem=str(error))
    if not per_token:
        return sizes
    train, validation = (round(num_bytes / per_token) for _, num_bytes in splits.values())
    return sizes._replace(
        training_tokens=train, validation_documents=splits["validation"][0], validation_tokens=validation
    )


def counted_in(schedule: Schedule, manifest: AnyManifest) -> dict[str, int]:
    """What a run records of its dataset's size. Documents and tokens of images are images and their patches."""
    if isinstance(manifest, ImageManifest):
        train, validation = (manifest.splits[split].num_images for split in SPLITS)
        counts = validation, *(number * schedule.longest_context for number in (validation, train))
    else:
        split = manifest.splits["validation"]
        counts = split.num_documents, split.num_tokens, manifest.splits["train"].num_tokens
    return dict(zip(("validation_documents", "validation_tokens", "training_tokens"), counts, strict=True))


def dataset_warnings(schedule: Schedule, sizes: DatasetSizes) -> Iterator[str]:
    """A warning for each size of the dataset, prepared or estimated, that does not fit `schedule`."""
    data, most = schedule.data, schedule.evaluation.max_sequences
    if data.images:
        if sizes.is_prepared and (warning := few_images(sizes.validation_documents, most)):
            yield warning
        return
    if not (sizes.is_prepared or sizes.validation_documents):
        return
    warning = small_validation(
        sizes.validation_documents,
        sizes.validation_tokens,
        max_sequences=most and max(most, len(data.mixture)),  # one of each source at least
        sequence_length=schedule.evaluation_length,
    )
    if warning:
        yield warning if sizes.is_prepared else f"{warning} (Estimated; `growctl prepare` counts.)"
    if not sizes.is_prepared:
        return
    asked = data.num_tokens or 0
    if asked > sizes.vocab_size and not sizes.remote_bytes and schedule.model.vocab_size is None:
        yield (
            f"data.vocab_size is {asked:,}, but the tokenizer trained on this text has {sizes.vocab_size:,} entries: "
            "the embedding's other rows are never trained."
        )
    if sizes.remote_bytes > data.cache_bytes:
        yield (
            f"data.cache_bytes is {byte_count(data.cache_bytes)}, but the training tokens at "
            f"{data.source or 'the URLs of data.mixture'} take {byte_count(sizes.remote_bytes)}: about "
            f"{1 - data.cache_bytes / sizes.remote_bytes:.0%} of the samples fetch a whole shard, which takes far "
            "longer than training on them."
        )


def few_images(num_images: int, most: int | None) -> str | None:
    """A warning if an evaluation reads few images: `most` of `num_images`, or all; None if it reads enough."""
    read = min(num_images, most or num_images)
    if read >= ENOUGH_IMAGES:
        return None
    return (
        f"An evaluation reads {counted(read, 'image')}: with fewer than {ENOUGH_IMAGES:,}, the standard error of the "
        f"share that is classified right may be above {0.5 / math.sqrt(ENOUGH_IMAGES):.1%}."
    )


def small_validation(
    num_documents: int, num_tokens: int, *, max_sequences: int | None = None, sequence_length: int = 1
) -> str | None:
    """A warning if a validation set of that size, or what an evaluation reads of it, is small; None if it is not.

    An evaluation reads `max_sequences` of `sequence_length` tokens, or all.
    """
    read = num_tokens if max_sequences is None else min(num_tokens, max_sequences * sequence_length)
    if num_documents >= ENOUGH_DOCUMENTS and read >= ENOUGH_TOKENS:
        return None
    advice = []
    if read < min(num_tokens, ENOUGH_TOKENS):
        advice = [f"Set evaluation.max_sequences to {enough_sequences(sequence_length):,} or more."]
    if num_documents < ENOUGH_DOCUMENTS or num_tokens < ENOUGH_TOKENS:
        advice += ["Use more text, or a larger data.validation_fraction."]
    return (
        f"Validation has {counted(num_documents, 'document')} with {counted(num_tokens, 'token')}, and an evaluation "
        f"reads {read:,} of them: with fewer than {ENOUGH_DOCUMENTS} documents or {ENOUGH_TOKENS:,} tokens, a "
        f"difference of 0.05 nats per token between two losses may rest on a few documents. {' '.join(advice)}"
    )


def enough_sequences(sequence_length: int) -> int:
    """The fewest sequences with ENOUGH_TOKENS."""
    return math.ceil(ENOUGH_TOKENS / sequence_length)


_UNKNOWN_TOKENS = 2**60


def mixture_spans(
    schedule: Schedule, positions: Sequence[int], before: Sequence[MixtureSpan] = ()
) -> tuple[MixtureSpan, ...]:
    """The weights from window 0 on, for the stages that begin at `positions` (`stage_positions`).

    Empty without a mixture. `before` is what a start checkpoint has read. Without it, a run that begins at a later
    position counts as if it had read what lies before with the weights of its first stage. A stage with the shares of
    the one before begins no span of its own.
    """
    spans, window = list(before), schedule.longest_context
    for index, position in enumerate(positions):
        batch = schedule.batch_of(index)
        begin = first_sample(position, batch.sequence_length) * batch.sequence_length
        for step, weights in schedule.weights_of(index):
            first = first_sample(begin + step * batch.tokens, window) if spans else 0
            if spans and shares(spans[-1].weights) == shares(weights):
                continue
            while spans and spans[-1].first_window >= first:
                spans.pop()
            above_zero = {name: weight for name, weight in weights.items() if weight}
            spans.append(MixtureSpan(first_window=first, weights=above_zero))
    return tuple(spans)


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
        per_window = schedule.longest_context // length
        num_samples = part.num_steps * part.batch.batch_size
        ends = (part.first_sample, part.first_sample + num_samples)
        before, after = (mixture.counts(end, per_window) for end in ends)
        for source, was, now in zip(mixture.sources, before, after, strict=True):
            yield MixturePart(
                stage=part.name,
                source=source.name,
                share=(now - was) / num_samples,
                budget_tokens=(now - was) * length,
                epochs=None if source.num_tokens == _UNKNOWN_TOKENS else now / per_window / source.num_windows,
            )


def epochs_after(plan: StagePlan, parts: Sequence[MixturePart], sizes: DatasetSizes) -> float | None:
    """Passes over the training data from the run's start to the end of a stage, which reads `parts` of a mixture: those
    over the source that is read most often. None if a size is not known."""
    if not parts:
        return (plan.first_token + plan.budget_tokens) / sizes.training_tokens if sizes.training_tokens else None
    epochs = [part.epochs for part in parts if part.epochs is not None]
    return max(epochs) if len(epochs) == len(parts) else None


def exhausted(schedule: Schedule, sizes: Mapping[str, int | None], with_controls: bool = False) -> str | None:
    """The message for a mixture whose sources may not be read as often as `schedule`, or then one of its controls,
    needs; None if they last.

    Sources of unknown size last. The last stage or release comes first: it says how much the whole run needs.
    """
    if not schedule.data.mixture:
        return None
    plans = plan_stages(schedule)
    for part in reversed(plan_run(schedule)):
        end = part.first_token + part.budget_tokens
        try:
            _mixture(schedule, part, plans, sizes).require(-(-end // schedule.longest_context))
        except DataError as error:
            return str(error)
    for control in plan_controls(schedule) if with_controls else ():
        if used_up := exhausted(control.schedule, sizes):
            return f"{control.name}: {used_up}; or leave the controls out (--no-controls)"
    return None


def _mixture(
    schedule: Schedule, part: StagePlan, plans: list[StagePlan], sizes: Mapping[str, int | None], limited: bool = True
) -> "Mixture":
    """The order of the sources up to a stage. Raises DataError for a limit of less than one sample."""
    from stages.data.mixture import Mixture, MixtureSource  # slow: numpy

    sources = []
    for source in schedule.data.mixture:
        tokens = sizes.get(source.name)
        most = source.epochs_at_most if limited and tokens is not None else None
        num_tokens = _UNKNOWN_TOKENS if tokens is None else tokens
        sources.append(MixtureSource(source.name, num_tokens, schedule.longest_context, most))
    spans = mixture_spans(schedule, [plan.first_token for plan in plans[: part.index + 1]])
    return Mixture(sources, spans, schedule.data.when_exhausted)
