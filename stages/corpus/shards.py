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
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from stages.checkpoint.files import sync_path, write_file
from stages.corpus.corpus import Corpus, Skipped
from stages.corpus.encoding import encode_documents
from stages.corpus.files import SourceFile
from stages.corpus.tasks import Meter, ShardRecord, Tasks
from stages.data.dataset import DatasetFile, DatasetSplit, joined_hash
from stages.data.order import UInt64Array
from stages.data.spec import SPLITS, SplitName
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

    def add(self, tokens: npt.NDArray[Any], ends_document: bool) -> None:
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


@dataclass(frozen=True)
class Shards:
    """Writes the shards of a dataset from a source. Can be pickled."""

    corpus: Corpus
    files: tuple[tuple[SourceFile, ...], ...]
    """The files of each shard."""
    num_shuffled: int
    """How many shards the train documents are shuffled into afterwards, if `data.shuffle_seed` is set."""
    directory: Path
    """The dataset that is being prepared, with its tokenizer."""
    token_bytes: int
    begin_of_text_id: int | None
    end_of_text_id: int

    def tasks(self) -> Tasks:
        """Tokenises the documents of the source, a shard at a time."""
        sizes = (sum(file.num_bytes for file in files) for files in self.files)
        return Tasks("tokenising", self.directory, tuple(sizes), self._tokenise)

    def _tokenise(self, number: int, meter: Meter) -> ShardRecord:
        """Writes the tokens of both splits. Raises Interrupted if a local file has changed since the start."""
        seed, begin, end = self.corpus.spec.shuffle_seed, self.begin_of_text_id, self.end_of_text_id
        dtype = f"<u{self.token_bytes}"
        tokenizer = Tokenizer.from_file(str(self.directory / TOKENIZER_NAME))
        skipped, files = Skipped(self.corpus.spec), self.files[number]
        num_bytes, num_ends = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
        text_hashes = dict.fromkeys(SPLITS, joined_hash(()))
        documents = ((each, each.text) for each in self.corpus.documents(files, None, meter.advance, skipped))
        with (
            TokenWriter(self.directory, "train" if seed is None else UNSHUFFLED, number) as train,
            TokenWriter(self.directory, "validation", number) as validation,
        ):
            writers: dict[SplitName, TokenWriter] = {"train": train, "validation": validation}
            for document, tokens, left in encode_documents(tokenizer, documents, begin, end, dtype):
                split = document.split
                writers[split].add(tokens, left == 0)
                num_ends[split] += int(np.count_nonzero(tokens == end))
                meter.advance(0, len(tokens))
                if left == 0:
                    num_bytes[split] += document.num_bytes
                    text_hashes[split] = joined_hash((text_hashes[split], document.content))
            self.corpus.require_unchanged(files)
            written = {split: writer.finish() for split, writer in writers.items()}
        if seed is not None:
            self._sort_into_buckets(number, seed)
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

    def shuffling(self, seed: int, train: DatasetSplit) -> Tasks:
        """Collects the documents of each bucket of train in random order, after all `tasks`."""
        size = train.num_tokens * self.token_bytes // self.num_shuffled  # on average
        return Tasks("shuffling", self.directory, (size,) * self.num_shuffled, partial(self._shuffle, seed))

    def _shuffle(self, seed: int, number: int, meter: Meter) -> ShardRecord:
        """Writes one shuffled shard."""
        unshuffled = sorted((self.directory / UNSHUFFLED).glob("*.buckets"))
        documents = [document for path in unshuffled for document in self._bucket(path, number)]
        with TokenWriter(self.directory, "train", number) as writer:
            for place in np.argsort(_draws(seed, _ORDERS + number, len(documents)), kind="stable").tolist():
                writer.add(documents[place], True)
            files = writer.finish()
        split = DatasetSplit(num_tokens=writer.num_tokens, num_bytes=0, num_documents=writer.num_documents, files=files)
        meter.advance(split.num_tokens * self.token_bytes)
        return ShardRecord(splits={"train": split})

    def _bucket(self, path: Path, number: int) -> Iterator[npt.NDArray[Any]]:
        """The documents of an unshuffled shard that belong to the bucket `number`."""
        first, stop = np.fromfile(path, "<u8", 2, offset=8 * number).tolist()
        if first == stop:
            return
        before = max(0, first - 1)
        ends = np.fromfile(path.with_suffix(".ds.index"), "<u8", stop - before, offset=8 * before)
        bounds = ends if first else np.concatenate((np.zeros(1, "<u8"), ends))
        start, num_tokens = int(bounds[0]), int(bounds[-1] - bounds[0])
        dtype = f"<u{self.token_bytes}"
        tokens = np.fromfile(path.with_suffix(".ds"), dtype, num_tokens, offset=start * self.token_bytes)
        yield from np.split(tokens, (bounds[1:-1] - bounds[0]).astype(np.int64))

    def _sort_into_buckets(self, shard: int, seed: int) -> None:
        """Sorts the documents of an unshuffled shard by their bucket, and writes where each bucket begins."""
        path, num_buckets = self.directory / UNSHUFFLED / f"{shard:05d}.ds", self.num_shuffled
        if not path.exists():
            return  # it has no documents of train
        tokens = np.memmap(path, f"<u{self.token_bytes}", mode="r")
        ends = np.fromfile(path.with_suffix(".ds.index"), "<u8").astype(np.int64)
        buckets = _draws(seed, shard, len(ends)) % np.uint64(num_buckets)
        with TokenWriter(self.directory, UNSHUFFLED, shard) as writer:
            for document in np.argsort(buckets, kind="stable").tolist():
                writer.add(tokens[ends[document - 1] if document else 0 : ends[document]], True)
            writer.finish()
        counts = np.bincount(buckets.astype(np.int64), minlength=num_buckets)
        write_file(path.with_suffix(".buckets"), np.concatenate(([0], np.cumsum(counts))).astype("<u8").tobytes())


def _draws(seed: int, stream: int, count: int) -> UInt64Array:
    """Random numbers, the same for ever: of a generator's raw numbers, numpy guarantees that."""
    return np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(count)
