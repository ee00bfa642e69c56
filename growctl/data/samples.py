"""A training sample as it is read, cut where documents end, with its text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from growctl.ladder.budgets import stage_positions
from growctl.ladder.datasets import mixture_spans
from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.blocks import Schedule, longest_context
from model.errors import UserError
from stages.corpus.tokenizer import open_tokenizer
from stages.data.dataset import DatasetManifest, dataset_parts
from stages.data.documents import DocumentEnds
from stages.data.samples import TrainingSamples
from stages.stage_dir import TOKENIZER_NAME

MOST_INDEX = 2**62
"""No training reads so far; beyond, 64-bit indices overflow."""


@dataclass(frozen=True)
class ShownPiece:
    """A part of a sample that belongs to one document."""

    document: int
    """The document's number in the split, counted from 0."""
    first_token: int
    """The first token of the piece, counted from 0 in its document."""
    ends_document: bool
    ids: tuple[int, ...]
    text: str
    """The ids decoded on their own. A character that is cut at an end of the sample becomes a replacement character."""


@dataclass(frozen=True)
class SampleEntry:
    """A training sample: the tokens that a model reads, and one more, the target of the last."""

    index: int
    source: str | None
    """The source of a mixture that it is from; None for a dataset that is not a mixture."""
    epoch: int
    """Counted from 0; of a mixture, the source's."""
    position: int
    """Of its first token in the train split; of a mixture, in the source's."""
    pieces: tuple[ShownPiece, ...]


def sample_of(schedule: Schedule, dataset: Path, manifest: DatasetManifest, index: int, runs_dir: Path) -> SampleEntry:
    """The sample that `schedule` reads at `index`: a window of its longest context. Raises UserError beyond MOST_INDEX.

    A stage that ends early, by its slope or after a rollback, makes a run read others than planned of a mixture.
    """
    begin = 0
    if schedule.base is not None:
        from growctl.run.start import Start  # slow

        begin = Start(schedule, schedule.base, runs_dir).position(manifest)[0]
    plans, longest = plan_stages(schedule), longest_context(schedule)
    positions = stage_positions([plan.batch for plan in plans], [plan.num_steps for plan in plans], begin)
    spans = mixture_spans(schedule, positions, schedule.base.mixture if schedule.base and begin else ())
    data = schedule.data
    samples = TrainingSamples(dataset, longest, schedule.seed, spans, data.when_exhausted, data.packing)
    return read_sample(dataset, samples, index)


def read_sample(dataset_dir: Path, samples: TrainingSamples, index: int) -> SampleEntry:
    """A sample of those opened from `dataset_dir`. Raises UserError beyond MOST_INDEX, DataError for damage."""
    if index >= MOST_INDEX:
        raise UserError(f"sample {index}: samples are endless, but growctl counts them to 2**62 only")
    tokenizer = open_tokenizer(dataset_dir / TOKENIZER_NAME)
    ids, (source, epoch, parts) = samples[index].tolist(), samples.origin(index)
    part = dataset_parts(dataset_dir)[source]
    ends, num_tokens = DocumentEnds(part.directory, "train"), part.manifest.splits["train"].num_tokens
    pieces: list[ShownPiece] = []
    taken = 0
    for position, length in parts:
        stop = taken + length
        while taken < stop:
            number, start, end = ends.document_at(position % num_tokens)  # the stream's end joins its start
            at = position % num_tokens
            piece = ids[taken : min(stop, taken + end - at)]
            text = tokenizer.decode(piece, skip_special_tokens=False)
            pieces.append(ShownPiece(number, at - start, at + len(piece) == end, tuple(piece), text))
            taken, position = taken + len(piece), position + len(piece)
    return SampleEntry(index, part.name, epoch, parts[0][0], tuple(pieces))


def sample_lines(sample: SampleEntry) -> Iterator[str]:
    """A sample for people, in lines."""
    source = "" if sample.source is None else f" of {sample.source}"
    yield f"sample {sample.index:,}: epoch {sample.epoch + 1:,}{source}, from token {sample.position:,} of train"
    for piece in sample.pieces:
        start = f"from its token {piece.first_token:,}" if piece.first_token else "starts"
        yield f"--- document {piece.document:,} {start} ---"
        yield piece.text
        if piece.ends_document:
            yield f"--- document {piece.document:,} ends ---"
