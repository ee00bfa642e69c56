"""Training samples as they are read, cut where documents end, with their text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from model.errors import UserError
from stages.corpus.tokenizer import open_tokenizer
from stages.data.dataset import data_parts, read_dataset_manifest
from stages.data.documents import DocumentEnds
from stages.data.samples import EndlessSamples
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
    starts_document: bool
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
    num_tokens: int
    pieces: tuple[ShownPiece, ...]


def read_samples(dataset_dir: Path, samples: EndlessSamples, first_index: int, count: int = 1) -> Iterator[SampleEntry]:
    """Samples `first_index` to `first_index + count` of those opened from `dataset_dir`, one at a time.

    Raises UserError beyond MOST_INDEX, DataError if the dataset is damaged.
    """
    if first_index + count > MOST_INDEX:
        raise UserError(f"sample {first_index}: samples are endless, but growctl counts them to 2**62 only")
    tokenizer = open_tokenizer(dataset_dir / TOKENIZER_NAME)
    sources = [
        (name, DocumentEnds(path, "train"), read_dataset_manifest(path).splits["train"].num_tokens)
        for name, path in data_parts(dataset_dir)
    ]

    def pieces(ends: DocumentEnds, num_tokens: int, ids: list[int], position: int) -> Iterator[ShownPiece]:
        """`ids`, which start at `position` of the stream, cut where documents end. Its end joins its start."""
        taken = 0
        while taken < len(ids):
            at = (position + taken) % num_tokens
            number, start, end = ends.document_at(at)
            part = ids[taken : taken + end - at]
            yield ShownPiece(
                document=number,
                first_token=at - start,
                starts_document=at == start,
                ends_document=at + len(part) == end,
                ids=tuple(part),
                text=tokenizer.decode(part, skip_special_tokens=False),
            )
            taken += len(part)

    for index in range(first_index, first_index + count):
        ids, parts = samples.batch(index, 1)[0].tolist(), samples.pieces(index)
        source, window = samples.turn(index)
        name, ends, num_tokens = sources[source]
        cut: list[ShownPiece] = []
        place = 0
        for position, length in parts:
            cut += pieces(ends, num_tokens, ids[place : place + length], position)
            place += length
        epoch = window // samples.epoch_windows(source)
        yield SampleEntry(index, name, epoch, parts[0][0], len(ids), tuple(cut))


def sample_lines(sample: SampleEntry, with_ids: bool) -> Iterator[tuple[str, bool]]:
    """A sample for people, in lines, each with whether it is text of the sample; the others describe it."""
    source = "" if sample.source is None else f" of {sample.source}"
    yield (
        f"sample {sample.index:,}: epoch {sample.epoch + 1:,}{source}, {sample.num_tokens:,} tokens from token "
        f"{sample.position:,} of {'train' if sample.source is None else 'its train split'}",
        False,
    )
    for piece in sample.pieces:
        start = "starts" if piece.starts_document else f"from its token {piece.first_token:,}"
        yield f"--- document {piece.document:,} {start} ---", False
        yield piece.text, True
        if with_ids:
            yield f"ids: {' '.join(map(str, piece.ids))}", False
        if piece.ends_document:
            yield f"--- document {piece.document:,} ends ---", False
