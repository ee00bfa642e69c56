"""Training samples as they are read, cut where documents end, with their text."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from growctl.data_view.document import Piece, SampleEntry
from model.errors import UserError
from stages.data.dataset import data_parts, read_dataset_manifest
from stages.data.documents import DocumentEnds
from stages.data.errors import DataError, reason
from stages.data.mixture import WhenExhausted
from stages.data.samples import TrainingSamples, open_samples
from stages.spec import MixtureSpan, Packing
from stages.stage_dir import TOKENIZER_NAME

MOST_INDEX = 2**62
"""No training reads so far; beyond, 64-bit indices overflow."""


class _Stream(NamedTuple):
    """The train split of a dataset, or of a source of a mixture."""

    name: str | None
    """Of the source."""

    ends: DocumentEnds
    num_tokens: int

    @classmethod
    def open(cls, name: str | None, dataset_dir: Path) -> "_Stream":
        num_tokens = read_dataset_manifest(dataset_dir).splits["train"].num_tokens
        return cls(name, DocumentEnds(dataset_dir, "train"), num_tokens)


class SampleReader:
    """Reads the samples that training reads, in its order."""

    def __init__(
        self,
        dataset_dir: Path,
        sequence_length: int,
        seed: int,
        packing: Packing = "concatenate",
        mixture: Sequence[MixtureSpan] = (),
        when_exhausted: WhenExhausted = "stop",
        window_length: int | None = None,
    ) -> None:
        """Opens the train split. `mixture`, `when_exhausted` and `window_length`: as `open_samples` has them.

        Raises DataError if it is damaged or shorter than one sample.
        """
        self._samples = open_samples(
            dataset_dir, sequence_length, seed, mixture, when_exhausted, packing, window_length
        )
        self._streams = [_Stream.open(name, path) for name, path in data_parts(dataset_dir)]
        try:
            self._tokenizer = Tokenizer.from_file(str(dataset_dir / TOKENIZER_NAME))
        except Exception as error:  # the library raises plain Exceptions
            raise DataError(f"{dataset_dir / TOKENIZER_NAME} is not a tokenizer.json ({reason(error)})") from error

    def read(self, first_index: int, count: int = 1) -> Iterator[SampleEntry]:
        """Samples `first_index` to `first_index + count`, one at a time. Raises UserError beyond MOST_INDEX."""
        if first_index + count > MOST_INDEX:
            raise UserError(f"sample {first_index}: samples are endless, but growctl counts them to 2**62 only")
        for index in range(first_index, first_index + count):
            ids = self._samples.batch(index, 1)[0].tolist()
            stream, number, num_windows = self._turn(index)
            parts = self._samples.pieces(index)
            yield SampleEntry(
                index=index,
                source=stream.name,
                epoch=number // num_windows,
                position=parts[0][0],
                num_tokens=len(ids),
                pieces=tuple(self._pieces(stream, ids, parts)),
            )

    def _turn(self, index: int) -> "tuple[_Stream, int, int]":
        """The stream that a sample is from, its window's number among the stream's, and their number in an epoch."""
        if isinstance(self._samples, TrainingSamples):
            return self._streams[0], index // self._samples.per_window, self._samples.num_windows
        source, number = self._samples.turn(index)
        return self._streams[source], number, self._samples.mixture.sources[source].num_windows

    def _pieces(self, stream: "_Stream", ids: Sequence[int], parts: Sequence[tuple[int, int]]) -> Iterator[Piece]:
        """`ids`, of `parts` of the stream, cut where documents end."""
        place = 0
        for position, length in parts:
            yield from self._documents(stream, ids[place : place + length], position)
            place += length

    def _documents(self, stream: "_Stream", ids: Sequence[int], position: int) -> Iterator[Piece]:
        """`ids`, which start at `position` of the stream, cut where documents end. The stream's end joins its start."""
        taken = 0
        while taken < len(ids):
            at = (position + taken) % stream.num_tokens
            number, start, end = stream.ends.document_at(at)
            part = ids[taken : taken + end - at]
            yield Piece(
                document=number,
                first_token=at - start,
                starts_document=at == start,
                ends_document=at + len(part) == end,
                ids=tuple(part),
                text=self._tokenizer.decode(list(part), skip_special_tokens=False),
            )
            taken += len(part)


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
