"""Shuffles the train documents of a dataset across its shards, in bounded memory.

Each document draws one of the new shards, its bucket. Whoever tokenises some files of the source leaves their documents
sorted by bucket. Then each new shard collects its documents from all of them, one range of each, and draws their order.
Every order of all documents is equally likely, and it depends only on the seed and on the source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from model.strict import Strict
from stages.checkpoint.files import write_file
from stages.data.dataset import DatasetFile
from stages.data.encoding import Tokens
from stages.data.progress import Meter
from stages.data.tasks import Tasks
from stages.data.token_writer import TokenWriter

UNSHUFFLED = "unshuffled"
"""The folder of the documents that are sorted by bucket, below a dataset that is being prepared."""

_ORDERS = 2**63
"""Added to a bucket's number: its order is drawn from another stream than the buckets of the shard of that number."""

UInt64s = npt.NDArray[np.uint64]


class ShuffledRecord(Strict):
    """The files of one shuffled shard."""

    files: tuple[DatasetFile, ...]


@dataclass(frozen=True)
class ShuffleTasks(Tasks[ShuffledRecord]):
    """Collects the documents of each bucket in random order."""

    directory: Path
    num_tokens: tuple[int, ...]
    """Train tokens of each shard before shuffling."""
    num_shuffled: int
    seed: int
    token_bytes: int
    title = "shuffling"
    record_type = ShuffledRecord

    def __len__(self) -> int:
        return self.num_shuffled

    def num_bytes(self, number: int) -> int:
        """The bytes of a shard's tokens, on average."""
        return sum(self.num_tokens) * self.token_bytes // self.num_shuffled

    def work(self, number: int, meter: Meter) -> ShuffledRecord:
        """Writes one shuffled shard."""
        documents = [
            document
            for shard, num_tokens in enumerate(self.num_tokens)
            if num_tokens
            for document in self._bucket(shard, number)
        ]
        with TokenWriter(self.directory, "train", number) as writer:
            for place in np.argsort(_draws(self.seed, _ORDERS + number, len(documents)), kind="stable").tolist():
                writer.add(documents[place], True)
            files = writer.finish()
        meter.advance(self.num_bytes(number))
        return ShuffledRecord(files=files)

    def _bucket(self, shard: int, number: int) -> Iterator[Tokens]:
        """The documents of `shard` that belong to the bucket `number`."""
        path = self.directory / UNSHUFFLED / f"{shard:05d}.ds"
        first, stop = np.fromfile(path.with_suffix(".buckets"), "<u8", 2, offset=8 * number).tolist()
        if first == stop:
            return
        before = max(0, first - 1)
        ends = np.fromfile(path.with_suffix(".ds.index"), "<u8", stop - before, offset=8 * before)
        bounds = ends if first else np.concatenate((np.zeros(1, "<u8"), ends))
        start, num_tokens = int(bounds[0]), int(bounds[-1] - bounds[0])
        tokens = np.fromfile(path, f"<u{self.token_bytes}", num_tokens, offset=start * self.token_bytes)
        yield from np.split(tokens, (bounds[1:-1] - bounds[0]).astype(np.int64))


def sort_into_buckets(
    directory: Path, shard: int, seed: int, num_buckets: int, token_bytes: int, num_tokens: int
) -> None:
    """Sorts the documents of an unshuffled shard by their bucket, and writes where each bucket begins."""
    if not num_tokens:
        return
    path = directory / UNSHUFFLED / f"{shard:05d}.ds"
    tokens = np.memmap(path, f"<u{token_bytes}", mode="r")
    ends = np.fromfile(path.with_suffix(".ds.index"), "<u8").astype(np.int64)
    buckets = _draws(seed, shard, len(ends)) % np.uint64(num_buckets)
    with TokenWriter(directory, UNSHUFFLED, shard) as writer:
        for document in np.argsort(buckets, kind="stable").tolist():
            writer.add(tokens[ends[document - 1] if document else 0 : ends[document]], True)
        writer.finish()
    counts = np.bincount(buckets.astype(np.int64), minlength=num_buckets)
    write_file(path.with_suffix(".buckets"), np.concatenate(([0], np.cumsum(counts))).astype("<u8").tobytes())


def _draws(seed: int, stream: int, count: int) -> UInt64s:
    """Random numbers, the same for ever: of a generator's raw numbers, numpy guarantees that."""
    return np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)
