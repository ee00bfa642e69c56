"""Reads what `growctl data show` shows of a dataset: the manifest, every document's length, and the ids that occur."""

from collections.abc import Iterator

from growctl.data_view.counts import IdCounter, Lengths, UsedIds, count_lengths
from growctl.data_view.document import DataShowDocument, SampleEntry, SplitEntry
from growctl.data_view.target import Target
from growctl.text.progress import Advance
from stages.data.corpus import SPLITS, SplitName
from stages.data.dataset import HASHED_BYTES, Int64Array, TokenSplit
from stages.data.document_ends import DocumentEnds
from stages.data.packing import count_cuts

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
    length = target.schedule.training.sequence_length if target.schedule else sequence_length
    counts_ids = manifest.num_file_bytes <= HASHED_BYTES if count_ids is None else count_ids
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
        splits={split: _split(target, split, None if samples else on_progress) for split in SPLITS},
        ids=_used_ids(target, on_progress) if counts_ids and not samples else None,
        passes=target.passes(),
        cuts=count_cuts(DocumentEnds(target.directory, "train").lengths(), length) if length and not samples else None,
        samples=samples,
    )


def _split(target: Target, split: SplitName, on_progress: Advance | None) -> SplitEntry:
    """The entry of a split; without its documents' lengths if `on_progress` is None."""
    described = target.manifest.splits[split]
    tokens = described.num_tokens
    return SplitEntry(
        num_tokens=tokens,
        num_documents=described.num_documents,
        num_bytes=described.num_bytes,
        bytes_per_token=described.num_bytes / tokens if tokens else None,
        num_shards=sum(file.name.endswith(".ds") for file in described.files),
        file_bytes=sum(file.bytes for file in described.files),
        text_hash=described.text_hash,
        lengths=_lengths(target, split, on_progress) if on_progress else None,
    )


def _lengths(target: Target, split: SplitName, on_progress: Advance) -> Lengths:
    ends, done = DocumentEnds(target.directory, split), 0

    def parts() -> Iterator[Int64Array]:
        nonlocal done
        for part in ends.lengths():
            yield part
            done += len(part)
            on_progress(done, ends.num_documents, f"reading the documents of {split}")

    return count_lengths(parts())


def _used_ids(target: Target, on_progress: Advance) -> UsedIds:
    tokens = TokenSplit(target.directory, "train")
    counter = IdCounter(target.manifest.vocab_size, target.vocab_size)
    for start in range(0, tokens.num_tokens, _TOKENS_AT_ONCE):
        counter.add(tokens.read(start, min(_TOKENS_AT_ONCE, tokens.num_tokens - start)))
        on_progress(start, tokens.num_tokens, "counting the ids of train")
    return counter.result()
