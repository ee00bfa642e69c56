"""Writes a prepared dataset as files for Megatron-LM and GPT-NeoX."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from stages.checkpoint.directory import publish_directory, whole_directory
from stages.checkpoint.disk_full import raise_when_full, require_space
from stages.checkpoint.files import write_file
from stages.corpus.tasks import OnProgress, Progress
from stages.corpus.token_files import TokenFiles, write_megatron
from stages.data.dataset import check_dataset
from stages.data.documents import DocumentEnds
from stages.data.errors import DataError
from stages.data.remote import remote_reading
from stages.data.spec import SPLITS, SplitName
from stages.data.tokens import Int64Array, TokenSplit
from stages.stage_dir import TOKENIZER_NAME

INDEX_BYTES = 20
"""Bytes of a Megatron index for each document."""


@dataclass(frozen=True)
class ExportedSplit:
    """One split of the dataset, as a pair of files."""

    prefix: Path
    """What Megatron's and GPT-NeoX's data paths take: the files' path without `.bin` and `.idx`."""

    num_documents: int
    num_unended_documents: int
    """Documents that do not end in the end of text, as an imported dataset may have."""

    num_tokens: int
    """Including ends of text."""

    dtype: Literal["uint16", "int32"]
    """The type of the stored tokens."""


@dataclass(frozen=True)
class DataExportDocument:
    """A dataset that was written for another program."""

    path: Path
    to: Literal["megatron"]
    dataset: Path
    fingerprint: str
    """The dataset's."""

    vocab_size: int
    """One more than the tokenizer's largest id."""

    end_of_text: str
    """What Megatron calls the end of document."""

    end_of_text_id: int
    splits: dict[str, ExportedSplit]
    """By `train` and `validation`."""


def export_megatron(dataset: Path, output: Path, on_progress: OnProgress | None = None) -> DataExportDocument:
    """Writes the splits of `dataset`, a .bin and a .idx each, and its tokenizer into the new directory `output`.

    Raises DataError if the dataset is damaged, CheckpointError if `output` exists, DiskFull if it does not fit. Nothing
    incomplete remains.
    """
    progress = Progress(None, on_progress)
    manifest = check_dataset(dataset, progress.say)
    if manifest.sources:
        paths = ", ".join(str(source.dataset(dataset)) for source in manifest.sources)
        raise DataError(f"{dataset} is a mixture, which has no tokens of its own; export its sources: {paths}")
    if reading := remote_reading(dataset):
        raise DataError(
            f"the tokens of {dataset} lie at {reading.url}, and an export needs them on disk; download that dataset and"
            " give its directory"
        )
    splits = manifest.splits.values()
    require_space(output, sum(s.num_tokens * manifest.token_bytes + s.num_documents * INDEX_BYTES for s in splits), "")
    advance = progress.meter("writing tokens", sum(split.num_tokens for split in splits)).advance
    with raise_when_full(output), whole_directory(output) as staging:
        write_file(staging / TOKENIZER_NAME, (dataset / TOKENIZER_NAME).read_bytes())
        for name in SPLITS:
            write_megatron(_prefix(staging, name), split_documents(dataset, name, manifest.token_bytes), advance)
        publish_directory(output)
    return DataExportDocument(
        path=output,
        to="megatron",
        dataset=dataset,
        fingerprint=manifest.fingerprint,
        vocab_size=manifest.vocab_size,
        end_of_text=manifest.spec.end_of_text,
        end_of_text_id=manifest.end_of_text_id,
        splits={
            name: ExportedSplit(
                prefix=_prefix(output, name),
                num_documents=split.num_documents,
                num_unended_documents=split.num_unended_documents,
                num_tokens=split.num_tokens,
                dtype="uint16" if manifest.token_bytes == 2 else "int32",
            )
            for name, split in manifest.splits.items()
        },
    )


def split_documents(dataset: Path, split: SplitName, token_bytes: int) -> TokenFiles:
    """The documents of a split. Raises DataError if its indices do not hold all of them."""
    ends, tokens = DocumentEnds(dataset, split), TokenSplit(dataset, split)

    def all_ends() -> Iterator[Int64Array]:
        last = 0
        for lengths in ends.lengths():
            yield last + np.cumsum(lengths)
            last += int(lengths.sum())

    return TokenFiles(dataset / split, (), np.dtype(f"<u{token_bytes}"), tokens.numbers, all_ends)


def _prefix(folder: Path, split: str) -> Path:
    """The path that Megatron's own tool gives to the text of a file, without an ending."""
    return folder / f"{split}_text_document"
