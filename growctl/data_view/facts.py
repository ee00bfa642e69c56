"""Reads what `growctl data show` shows of a dataset: the manifest, every document's length, and the ids that occur."""

from collections.abc import Iterator
from pathlib import Path

from growctl.data_view.counts import IdCounter, Lengths, UsedIds, count_lengths
from growctl.data_view.document import DataShowDocument, SampleEntry, SourceEntry, SplitEntry
from growctl.data_view.target import Target
from growctl.schedule.blocks import longest_context
from growctl.text.progress import Advance
from stages.data.dataset import HASHED_BYTES, data_parts, read_dataset_manifest
from stages.data.documents import DocumentEnds
from stages.data.packing import Cuts, count_cuts
from stages.data.spec import SPLITS, SplitName
from stages.data.tokens import Int64Array, TokenSplit

_TOKENS_AT_ONCE = 1 << 20


def describe(
    target: Target,
    on_progress: Advance,
    *,
    count_ids: bool | None = None,
    samples: tuple[SampleEntry, ...] = (),
    sequence_length: int | None = None,
) -> DataShowDocument:
    """Everything about the dataset. With `samples`, its documents and ids are not read.

    `count_ids`: whether to read all tokens of train for the ids; by default of datasets up to `HASHED_BYTES`.
    `sequence_length`: of training, if no schedule says it. Raises DataError for a damaged file.
    """
    manifest, spec = target.manifest, target.manifest.spec
    length = longest_context(target.schedule) if target.schedule else sequence_length
    num_bytes = sum(read_dataset_manifest(path).num_file_bytes for _, path in data_parts(target.directory))
    counts_ids = num_bytes <= HASHED_BYTES if count_ids is None else count_ids
    return DataShowDocument(
        path=target.directory,
        fingerprint=manifest.fingerprint,
        source=spec.source,
        include=spec.include,
        source_sha256=manifest.source_sha256,
        tokenizer=spec.tokenizer,
        tokenizer_sha256=manifest.tokenizer_sha256,
        tokenizer_size=manifest.vocab_size,
        token_bytes=manifest.token_bytes,
        end_of_text=spec.end_of_text,
        end_of_text_id=manifest.end_of_text_id,
        skipped=manifest.skipped,
        sources=tuple(_sources(target)),
        splits={split: _split(target, split, None if samples else on_progress) for split in SPLITS},
        ids=_used_ids(target, on_progress) if counts_ids and not samples else None,
        passes=target.passes(),
        mixture=target.mixture_parts(),
        cuts=_cuts(target.directory, length) if length and not samples else None,
        samples=samples,
    )


def _split(target: Target, split: SplitName, on_progress: Advance | None) -> SplitEntry:
    """The entry of a split; without its documents' lengths if `on_progress` is None."""
    described = target.manifest.splits[split]
    tokens = described.num_tokens
    parts = [read_dataset_manifest(path).splits[split] for _, path in data_parts(target.directory)]
    files = [file for part in parts for file in part.files]
    return SplitEntry(
        num_tokens=tokens,
        num_documents=described.num_documents,
        num_unended_documents=described.num_unended_documents,
        num_bytes=described.num_bytes,
        bytes_per_token=described.num_bytes / tokens if tokens else None,
        num_shards=sum(file.name.endswith(".ds") for file in files),
        file_bytes=sum(file.bytes for file in files),
        text_hash=described.text_hash,
        lengths=_lengths(target, split, on_progress) if on_progress else None,
    )


def _lengths(target: Target, split: SplitName, on_progress: Advance) -> Lengths:
    done, total = 0, target.manifest.splits[split].num_documents

    def parts() -> Iterator[Int64Array]:
        nonlocal done
        for _, path in data_parts(target.directory):
            for part in DocumentEnds(path, split).lengths():
                yield part
                done += len(part)
                on_progress(done, total, f"reading the documents of {split}")

    return count_lengths(parts())


def _cuts(directory: Path, sequence_length: int) -> Cuts:
    """The documents that sequences cut; of a mixture, those of all its sources."""
    found = Cuts(sequence_length)
    for _, path in data_parts(directory):
        part = count_cuts(DocumentEnds(path, "train").lengths(), sequence_length)
        found.num_longer += part.num_longer
        found.concatenated += part.concatenated
        found.packed += part.packed
    return found


def _sources(target: Target) -> Iterator[SourceEntry]:
    entries = target.manifest.sources
    total = sum(entry.weight for entry in entries)
    for entry in entries:
        path = entry.dataset(target.directory)
        splits = read_dataset_manifest(path).splits
        yield SourceEntry(
            name=entry.name,
            path=path,
            fingerprint=entry.fingerprint,
            weight=entry.weight,
            share=entry.weight / total,
            epochs_at_most=entry.epochs_at_most,
            train_tokens=splits["train"].num_tokens,
            train_documents=splits["train"].num_documents,
            validation_tokens=splits["validation"].num_tokens,
            validation_documents=splits["validation"].num_documents,
        )


def _used_ids(target: Target, on_progress: Advance) -> UsedIds:
    counter, done = IdCounter(target.manifest.vocab_size, target.vocab_size), 0
    total = target.manifest.splits["train"].num_tokens
    for _, path in data_parts(target.directory):
        tokens = TokenSplit(path, "train")
        for start in range(0, tokens.num_tokens, _TOKENS_AT_ONCE):
            ids = tokens.read(start, min(_TOKENS_AT_ONCE, tokens.num_tokens - start))
            counter.add(ids)
            on_progress(done, total, "counting the ids of train")
            done += len(ids)
    return counter.result()
