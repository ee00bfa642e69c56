"""The shards of a dataset: written from the documents in some consecutive files of the source, and then shuffled.

To shuffle in bounded memory, each document draws one of the new shards, its bucket. Whoever tokenises some files of the
source leaves their documents sorted by bucket. Then each new shard collects its documents from all of them, one range
of each, and draws their order. Every order of all documents is equally likely, and it depends only on the seed and on
the source.
"""

import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from tokenizers import Tokenizer

from model.strict import Strict
from stages.checkpoint.files import sync_path, write_file
from stages.corpus.corpus import Corpus, Skipped
from stages.corpus.encoding import Encoder, Tokens
from stages.corpus.files import SourceFile
from stages.corpus.tasks import Meter, Tasks
from stages.data.dataset import DatasetFile, DatasetSplit, joined_hash
from stages.data.order import UInt64Array
from stages.data.spec import SPLITS, SkippedRecords, SplitName
from stages.stage_dir import TOKENIZER_NAME

ENDINGS = ("ds", "ds.index")
"""The tokens; where documents end (uint64, in tokens)."""
UNSHUFFLED = "unshuffled"
"""The folder of the documents that are sorted by bucket, below a dataset that is being prepared."""
_ORDERS = 2**63
"""Added to a bucket's number: its order is drawn from another stream than the buckets of the shard of that number."""


class TokenWriter:
    """Writes `FOLDER/NUMBER.ds` and its index below a dataset. Removes what it has not finished."""

    def __init__(self, dataset: Path, folder: str, number: int) -> None:
        """Opens temporary files: two processes that write the same shard do not disturb each other."""
        (dataset / folder).mkdir(exist_ok=True)
        own = f"{os.getpid()}-{secrets.token_hex(4)}.tmp"
        self._names = [f"{folder}/{number:05d}.{ending}" for ending in ENDINGS]
        self._paths = [dataset / name for name in self._names]
        self._temporary = [path.with_name(f".{path.name}.{own}") for path in self._paths]
        self._files = [path.open("wb") for path in self._temporary]
        self._hashes = [hashlib.sha256() for _ in ENDINGS]
        self.num_tokens = self.num_documents = 0

    def add(self, tokens: Tokens, ends_document: bool) -> None:
        """Writes tokens of a document; with `ends_document`, the document ends after them."""
        self.num_tokens += len(tokens)
        self._write(0, tokens.tobytes())
        if ends_document:
            self.num_documents += 1
            self._write(1, np.uint64(self.num_tokens).tobytes())

    def _write(self, which: int, content: bytes) -> None:
        self._files[which].write(content)
        self._hashes[which].update(content)

    def finish(self) -> tuple[DatasetFile, ...]:
        """Syncs the files and gives them their names. A shard without documents has none."""
        finished = []
        for number, (file, temporary, path) in enumerate(zip(self._files, self._temporary, self._paths, strict=True)):
            file.close()
            if size := temporary.stat().st_size:
                sync_path(temporary)
                temporary.rename(path)
                sha256 = self._hashes[number].hexdigest()
                finished.append(DatasetFile(name=self._names[number], bytes=size, sha256=sha256))
        sync_path(self._paths[0].parent)
        return tuple(finished)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file, path in zip(self._files, self._temporary, strict=True):
            file.close()
            path.unlink(missing_ok=True)


class ShardRecord(Strict):
    """One written shard."""

    splits: dict[SplitName, DatasetSplit]
    """Its documents of each split. Train has no files yet if the documents are to be shuffled."""

    skipped: SkippedRecords
    """The bad records in its files."""


@dataclass(frozen=True)
class ShardTasks(Tasks[ShardRecord]):
    """Tokenises the documents of a source, a shard at a time."""

    corpus: Corpus
    shards: tuple[tuple[SourceFile, ...], ...]
    """The files of each shard."""
    directory: Path
    token_bytes: int
    end_of_text_id: int
    num_shuffled: int
    """How many shards the train documents are shuffled into afterwards, if `data.shuffle_seed` is set."""
    title = "tokenising"
    record_type = ShardRecord

    def __len__(self) -> int:
        return len(self.shards)

    def num_bytes(self, number: int) -> int:
        """The size of a shard's files as stored."""
        return sum(file.num_bytes for file in self.shards[number])

    @property
    def shares_memory(self) -> bool:
        """Other processes cannot see the files of fsspec's memory."""
        return "memory" in self.corpus.fs.protocol

    def work(self, number: int, meter: Meter) -> ShardRecord:
        """Writes the tokens of both splits. Raises Interrupted if a local file has changed since the start."""
        seed, end = self.corpus.spec.shuffle_seed, self.end_of_text_id
        encoder = Encoder(Tokenizer.from_file(str(self.directory / TOKENIZER_NAME)), end, self.token_bytes)
        skipped, files = Skipped(self.corpus.spec), self.shards[number]
        num_bytes, num_ends = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
        text_hashes = dict.fromkeys(SPLITS, joined_hash(()))
        documents = self.corpus.documents(files, None, meter.advance, skipped)
        with (
            TokenWriter(self.directory, "train" if seed is None else UNSHUFFLED, number) as train,
            TokenWriter(self.directory, "validation", number) as validation,
        ):
            writers: dict[SplitName, TokenWriter] = {"train": train, "validation": validation}
            for document, tokens, is_last in encoder.documents((each, each.text) for each in documents):
                split = document.split
                writers[split].add(tokens, is_last)
                num_ends[split] += int(np.count_nonzero(tokens == end))
                meter.advance(0, len(tokens))
                if is_last:
                    num_bytes[split] += document.num_bytes
                    text_hashes[split] = joined_hash((text_hashes[split], document.content))
            self.corpus.require_unchanged(files)
            written = {split: writer.finish() for split, writer in writers.items()}
        if seed is not None:
            _sort_into_buckets(self.directory, number, seed, self.num_shuffled, self.token_bytes, train.num_tokens)
            written["train"] = ()
        splits = {
            split: DatasetSplit(
                num_tokens=writer.num_tokens,
                num_bytes=num_bytes[split],
                num_documents=writer.num_documents,
                num_inner_ends=num_ends[split] - writer.num_documents,
                text_hash=text_hashes[split].hex(),
                files=written[split],
            )
            for split, writer in writers.items()
        }
        return ShardRecord(splits=splits, skipped=skipped.records)


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
        filled = [shard for shard, num_tokens in enumerate(self.num_tokens) if num_tokens]
        documents = [document for shard in filled for document in self._bucket(shard, number)]
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


def _sort_into_buckets(
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


def _draws(seed: int, stream: int, count: int) -> UInt64Array:
    """Random numbers, the same for ever: of a generator's raw numbers, numpy guarantees that."""
    return np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)
