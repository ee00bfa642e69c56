"""Writes a prepared dataset as files for Megatron-LM and GPT-NeoX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stages.checkpoint.directory import publish_directory, whole_directory
from stages.checkpoint.disk_full import raise_when_full, require_space
from stages.checkpoint.files import write_file
from stages.data.corpus import SPLITS
from stages.data.dataset import check_dataset
from stages.data.dataset_documents import split_documents
from stages.data.progress import OnProgress, Progress
from stages.data.remote_reading import remote_reading
from stages.data.source_errors import DataError
from stages.stage_dir import TOKENIZER_NAME
from stages.token_files.megatron import write_megatron

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
    contents = manifest.splits
    num_bytes = sum(s.num_tokens * manifest.token_bytes + s.num_documents * INDEX_BYTES for s in contents.values())
    require_space(output, num_bytes, "")
    advance = progress.meter("writing tokens", sum(content.num_tokens for content in contents.values())).advance
    with raise_when_full(output), whole_directory(output) as staging:
        write_file(staging / TOKENIZER_NAME, (dataset / TOKENIZER_NAME).read_bytes())
        for split in SPLITS:
            write_megatron(staging / _name(split), split_documents(dataset, split), advance)
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
            split: ExportedSplit(
                prefix=output / _name(split),
                num_documents=content.num_documents,
                num_unended_documents=content.num_unended_documents,
                num_tokens=content.num_tokens,
                dtype="uint16" if manifest.token_bytes == 2 else "int32",
            )
            for split, content in contents.items()
        },
    )


def _name(split: str) -> str:
    """The name that Megatron's own tool gives to the text of a file, without an ending."""
    return f"{split}_text_document"
