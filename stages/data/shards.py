"""The shards of a dataset: each is the tokens of the documents in some consecutive files of the source."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from model.strict import Strict
from stages.data.bad_records import SkippedRecords
from stages.data.corpus import SPLITS, Corpus, Document, SplitName, joined_hash
from stages.data.dataset import DatasetSplit
from stages.data.encoding import Encoder
from stages.data.progress import Meter
from stages.data.shuffle import UNSHUFFLED, sort_into_buckets
from stages.data.source_files import SourceFile
from stages.data.tasks import Tasks
from stages.data.token_writer import TokenWriter
from stages.stage_dir import TOKENIZER_NAME


class ShardRecord(Strict):
    """One written shard."""

    splits: dict[SplitName, DatasetSplit]
    """Its documents of each split. Train has no files yet if the documents are to be shuffled."""

    longest_bytes: int
    """Of its longest document, in UTF-8."""

    skipped: SkippedRecords
    """The bad records in its files."""


@dataclass(frozen=True)
class ShardTasks(Tasks[ShardRecord]):
    """Tokenises the documents of a source, a shard at a time."""

    corpus: Corpus
    contents: tuple[str, ...]
    """An identifier of the content of each file of the corpus, as of the start."""
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
        spec = self.corpus.spec
        tokenizer = Tokenizer.from_file(str(self.directory / TOKENIZER_NAME))
        encoder = Encoder(tokenizer, self.end_of_text_id, self.token_bytes)
        shuffled = spec.shuffle_seed is not None
        folders = {split: UNSHUFFLED if shuffled and split == "train" else split for split in SPLITS}
        skipped, counts = self.corpus.skipped(), {split: _Counts() for split in SPLITS}
        waiting: list[SplitName] = []
        """The splits of the documents that the encoder has and the writers have not."""

        def texts() -> Iterator[str]:
            for document in self.corpus.documents(self.shards[number], None, meter.advance, skipped):
                counts[document.split].add(document)
                waiting.append(document.split)
                yield document.text

        with (
            TokenWriter(self.directory, folders["train"], number) as train,
            TokenWriter(self.directory, folders["validation"], number) as validation,
        ):
            writers: dict[SplitName, TokenWriter] = {"train": train, "validation": validation}
            done = 0
            for tokens, is_last in encoder.documents(texts()):
                counts[waiting[done]].num_ends += int(np.count_nonzero(tokens == self.end_of_text_id))
                writers[waiting[done]].add(tokens, is_last)
                meter.advance(0, len(tokens))
                done += is_last
                if done == len(waiting):
                    waiting.clear()
                    done = 0
            self.corpus.require_unchanged(self.shards[number], self.contents)
            files = {split: writer.finish() for split, writer in writers.items()}
        if spec.shuffle_seed is not None:
            seed, num_tokens = spec.shuffle_seed, writers["train"].num_tokens
            sort_into_buckets(self.directory, number, seed, self.num_shuffled, self.token_bytes, num_tokens)
            files["train"] = ()
        splits = {
            split: DatasetSplit(
                num_tokens=writers[split].num_tokens,
                num_bytes=counts[split].num_bytes,
                num_documents=writers[split].num_documents,
                num_inner_ends=counts[split].num_ends - writers[split].num_documents,
                text_hash=counts[split].text_hash.hex(),
                files=files[split],
            )
            for split in SPLITS
        }
        longest = max(count.longest_bytes for count in counts.values())
        return ShardRecord(splits=splits, longest_bytes=longest, skipped=skipped.records)


class _Counts:
    """Sums over the documents of one split."""

    def __init__(self) -> None:
        self.num_bytes = self.longest_bytes = self.num_ends = 0
        self.text_hash = joined_hash(())

    def add(self, document: Document) -> None:
        self.num_bytes += document.num_bytes
        self.longest_bytes = max(self.longest_bytes, document.num_bytes)
        self.text_hash = joined_hash((self.text_hash, document.content))
