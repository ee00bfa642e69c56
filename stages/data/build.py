"""Builds a dataset in a hidden directory beside its own. A killed process leaves it behind; the next goes on with it.

    .<name>-<key>.incomplete/
        plan.json           which files make up which shard
        tokenizer.json      written before the first shard
        records/            a file for every finished task
        train/, validation/, unshuffled/
        jobs/               scripts and logs of an executor on other machines

The directory is renamed once it has its manifest, and nothing besides the files of a dataset. If that fails, or the
process is killed before it, the next one checks the directory and renames it.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from stages.checkpoint.disk_full import NO_SPACE
from stages.checkpoint.files import hash_file, sync_path, write_file
from stages.counted import counted
from stages.data.bad_records import SkippedRecords
from stages.data.corpus import SPLITS, Corpus, DataError, DataSpec, SplitName
from stages.data.dataset import (
    FORMAT_VERSION,
    DatasetManifest,
    DatasetSplit,
    check_dataset,
    dataset_fingerprint,
    dataset_manifest_bytes,
    joined_splits,
)
from stages.data.progress import Progress
from stages.data.safe_cuts import why_uncuttable
from stages.data.shards import ShardTasks
from stages.data.shuffle import ShuffleTasks
from stages.data.source_errors import Interrupted, Unreadable
from stages.data.source_files import SourceFile
from stages.data.tasks import RECORDS, Execute, Record, Tasks
from stages.data.tokenizer import TrainingText, tokenizer_content, train_tokenizer
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME, staging_directory

SHARD_BYTES = 64 * 1024 * 1024
"""Source bytes per shard; one worker processes a whole shard. A larger file is one shard."""
LONG_DOCUMENT_BYTES = 8 * 1024 * 1024
"""A longer document takes more than a gigabyte if it is encoded as a whole."""
WHOLE_MEMORY = 150
"""Memory that encoding a document as a whole takes, in sizes of its text."""
PLAN_NAME = "plan.json"


def build(
    corpus: Corpus,
    contents: tuple[str, ...],
    given: Tokenizer | None,
    target: Path,
    progress: Progress,
    execute: Execute,
    alone: bool,
) -> None:
    """Builds the dataset `target` of `corpus`, whose files have `contents`, with the tokenizer `given` or its own.

    Goes on from what a killed process has left, if this one is `alone`, that is if the file system has locks. If the
    text is at fault, or the disk is full, or no part of the work is finished, nothing incomplete remains.
    """
    shards = tuple(corpus.shards(SHARD_BYTES))
    with _staging(target, alone) as staging:
        if not _is_complete(staging):
            _resume_or_start(staging, shards, given, progress)
            manifest = _write_dataset(corpus, contents, shards, given, staging, progress, execute)
            write_file(staging / MANIFEST_NAME, dataset_manifest_bytes(manifest))
        _publish(staging, target)
    progress.say(f"prepared {target.name}", 1.0)


def _publish(staging: Path, target: Path) -> None:
    """Gives a dataset that is complete its name, without what only the work needed."""
    (staging / PLAN_NAME).unlink(missing_ok=True)
    for folder in {path.name for path in staging.iterdir() if path.is_dir()}.difference(SPLITS):
        shutil.rmtree(staging / folder)
    for folder in (*SPLITS, "."):
        sync_path(staging / folder)
    try:
        os.rename(staging, target)
    except OSError:
        if not target.exists():
            raise
        check_dataset(target)  # another process was faster, on a file system without locks
    sync_path(target.parent)


def _is_complete(dataset: Path) -> bool:
    try:
        check_dataset(dataset)
    except DataError:
        return False
    return True


@contextmanager
def _staging(target: Path, alone: bool) -> Iterator[Path]:
    """The directory to build in, removed afterwards unless it is renamed or the same command can go on from it."""
    staging = staging_directory(target)
    if not alone:
        staging = staging.with_name(f"{staging.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield staging
    except (DataError, OSError) as error:
        if not (alone and _may_pass(error) and _has_finished(staging)):
            shutil.rmtree(staging, ignore_errors=True)
        raise
    if staging.exists():
        shutil.rmtree(staging)


def _may_pass(error: DataError | OSError) -> bool:
    """Whether the same command may succeed later with what is finished: the source or a disk failed, not the text."""
    if isinstance(error, OSError):
        return error.errno not in NO_SPACE and not isinstance(error, FileNotFoundError)
    return isinstance(error, Unreadable | Interrupted)


def _has_finished(staging: Path) -> bool:
    """Whether any part of the work is finished."""
    return (staging / MANIFEST_NAME).exists() or any(_finished(staging))


def _finished(staging: Path) -> list[Path]:
    """The records of the tasks that are finished."""
    return list((staging / RECORDS).glob("[!.]*"))


def _resume_or_start(
    staging: Path, shards: tuple[tuple[SourceFile, ...], ...], given: Tokenizer | None, progress: Progress
) -> None:
    """Makes the directory, or removes what does not belong to finished work from one that is there."""
    tokenizer = hashlib.sha256(given.to_str().encode()).hexdigest() if given else None
    plan = json.dumps({"tokenizer": tokenizer, "shards": [[file.name for file in shard] for shard in shards]}).encode()
    path = staging / PLAN_NAME
    if not (path.is_file() and path.read_bytes() == plan):
        shutil.rmtree(staging, ignore_errors=True)
        for folder in (*SPLITS, RECORDS):
            (staging / folder).mkdir(parents=True)
        write_file(path, plan)
        return
    for leftover in staging.glob("*/.*.tmp"):
        leftover.unlink()
    finished = len(_finished(staging))
    progress.say(f"resuming: {counted(finished, 'part')} of the work is done" if finished else "starting again")


def _write_dataset(
    corpus: Corpus,
    contents: tuple[str, ...],
    shards: tuple[tuple[SourceFile, ...], ...],
    given: Tokenizer | None,
    staging: Path,
    progress: Progress,
    execute: Execute,
) -> DatasetManifest:
    """Writes the tokenizer and the shards. Returns the manifest, which the caller writes."""
    spec = corpus.spec
    tokenizer = _tokenizer(corpus, shards, given, staging, progress)
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    token_bytes: Literal[2, 4] = 2 if vocab_size <= 2**16 else 4
    end_of_text_id = tokenizer.token_to_id(spec.end_of_text)
    assert end_of_text_id is not None  # training adds it; given_tokenizer rejects a tokenizer without it
    num_shuffled = max(len(shards), -(-corpus.num_bytes // SHARD_BYTES))
    tasks = ShardTasks(corpus, contents, shards, staging, token_bytes, end_of_text_id, num_shuffled)
    why_whole = why_uncuttable(tokenizer)
    if why_whole:
        progress.say(f"each document is encoded as a whole: {why_whole}")
    parts = _done(tasks, progress, execute)
    longest = max(part.longest_bytes for part in parts)
    if why_whole and longest > LONG_DOCUMENT_BYTES:
        progress.warn(
            f"the longest document has {longest:,} bytes, and the tokenizer encodes each document as a whole, which"
            f" takes about {WHOLE_MEMORY} times its size in memory: {why_whole}"
        )
    skipped = corpus.skipped()
    for part in parts:
        skipped.join(part.skipped)
    found = {split: [part.splits[split] for part in parts] for split in SPLITS}
    splits = {
        split: joined_splits(of, tuple(file for each in of for file in each.files)) for split, of in found.items()
    }
    if skipped.records.total:
        progress.say(f"skipped {skipped.records}")
    _require_documents(spec, splits, skipped.records)
    if spec.shuffle_seed is not None:
        num_tokens = tuple(part.splits["train"].num_tokens for part in parts)
        shuffle = ShuffleTasks(staging, num_tokens, num_shuffled, spec.shuffle_seed, token_bytes)
        files = tuple(file for part in _done(shuffle, progress, execute) for file in part.files)
        splits["train"] = splits["train"].model_copy(update={"files": files})
    tokenizer_sha256 = hash_file(staging / TOKENIZER_NAME)
    return DatasetManifest(
        format_version=FORMAT_VERSION,
        spec=spec,
        vocab_size=vocab_size,
        token_bytes=token_bytes,
        tokenizer_sha256=tokenizer_sha256,
        end_of_text_id=end_of_text_id,
        splits=splits,
        source_sha256=corpus.sha256(contents),
        skipped=skipped.records,
        fingerprint=dataset_fingerprint(tokenizer_sha256, splits),
    )


def _tokenizer(
    corpus: Corpus,
    shards: tuple[tuple[SourceFile, ...], ...],
    given: Tokenizer | None,
    staging: Path,
    progress: Progress,
) -> Tokenizer:
    """The tokenizer of the dataset, whose file it writes; the one that an earlier process has trained if there is."""
    path = staging / TOKENIZER_NAME
    if path.is_file():
        return Tokenizer.from_file(str(path))
    tokenizer = given or train_tokenizer([TrainingText(corpus, shards)], progress)
    write_file(path, tokenizer_content(tokenizer))
    return tokenizer


def _done(tasks: Tasks[Record], progress: Progress, execute: Execute) -> list[Record]:
    """The records of all tasks, which are run unless they are finished."""
    meter = progress.meter(tasks.title, sum(map(tasks.num_bytes, range(len(tasks)))))
    pending = set(tasks.pending())
    meter.skip(sum(tasks.num_bytes(number) for number in range(len(tasks)) if number not in pending))
    if pending:
        execute(tasks, meter)
    return tasks.records()


def _require_documents(spec: DataSpec, splits: dict[SplitName, DatasetSplit], skipped: SkippedRecords) -> None:
    num_documents = sum(split.num_documents for split in splits.values())
    left_out = f". growctl skipped {skipped}" if skipped.total else ""
    if not num_documents:
        raise DataError(
            f"data.source: {spec.source!r} has no text: each of its documents is empty or white space{left_out}"
        )
    if num_documents < 2:
        raise DataError(
            f"data.source: {spec.source!r} has {counted(num_documents, 'document')}, but training and validation need"
            f" one each; use more text, or set a data.document_separator that splits it{left_out}"
        )
    for name, split in splits.items():
        if not split.num_documents:
            fraction = max(5 / num_documents, 2 * spec.validation_fraction if name == "validation" else 0)
            raise DataError(
                f"data.validation_fraction: {spec.validation_fraction} of the {counted(num_documents, 'document')} in"
                f" {spec.source!r} leaves none for {name}; try about {min(0.5, fraction):.2g} (documents with"
                " the same text stay together)"
            )
