"""Training samples as they are read, cut where documents end, with their text."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from growctl.data_view.document import Piece, SampleEntry
from model.errors import UserError
from stages.data.dataset import TrainingSamples, read_dataset_manifest
from stages.data.document_ends import DocumentEnds
from stages.data.packed_samples import PackedSamples
from stages.data.source_errors import DataError, reason
from stages.spec import Packing
from stages.stage_dir import TOKENIZER_NAME

MOST_INDEX = 2**62
"""No training reads so far; beyond, 64-bit indices overflow."""


class SampleReader:
    """Reads the samples that training reads, in its order."""

    def __init__(self, dataset_dir: Path, sequence_length: int, seed: int, packing: Packing = "concatenate") -> None:
        """Opens the train split. Raises DataError if it is damaged or shorter than one sample."""
        packed = packing == "best_fit"
        self._samples = (PackedSamples if packed else TrainingSamples)(dataset_dir, sequence_length, seed)
        self._ends = DocumentEnds(dataset_dir, "train")
        self._num_tokens = read_dataset_manifest(dataset_dir).splits["train"].num_tokens
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
            parts = self._samples.pieces(index)
            pieces = tuple(self._pieces(ids, parts))
            yield SampleEntry(index, index // self._samples.num_windows, parts[0][0], len(ids), pieces)

    def _pieces(self, ids: Sequence[int], parts: Sequence[tuple[int, int]]) -> Iterator[Piece]:
        """`ids`, of `parts` of the stream, cut where documents end."""
        place = 0
        for position, length in parts:
            yield from self._documents(ids[place : place + length], position)
            place += length

    def _documents(self, ids: Sequence[int], position: int) -> Iterator[Piece]:
        """`ids`, which start at `position` of the stream, cut where documents end. The stream's end joins its start."""
        taken = 0
        while taken < len(ids):
            at = (position + taken) % self._num_tokens
            number, start, end = self._ends.document_at(at)
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
    yield (
        f"sample {sample.index:,}: epoch {sample.epoch + 1:,}, {sample.num_tokens:,} tokens from token "
        f"{sample.position:,} of train",
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
