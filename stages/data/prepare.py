"""Text or documents -> a dataset: its directory, with token shards, their tokenizer and a manifest, made once.

    <datasets_dir>/<name>-<key>/
        tokenizer.json
        train/00000.ds, 00000.ds.index, ...    tokens; where documents end (uint64, in tokens)
        train/00000.ds.ranges, ...             sha256 of each range of the tokens
        validation/00000.ds, ...
        manifest.json                          written last

The key is a hash of everything that determines the result, so each dataset is prepared once and then reused. A dataset
is built under a temporary name and then renamed, so a directory with its final name is complete. The shards depend only
on the source, so the number of workers changes nothing but the time.
"""

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from tokenizers import Tokenizer

from stages.checkpoint.directory import set_aside
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import hash_file, sync_path, write_file
from stages.counted import counted
from stages.data.corpus import NOT_CONTENT, SPLITS, Corpus, DataError, DataSpec, SplitName, joined_hash, open_corpus
from stages.data.dataset import (
    FORMAT_VERSION,
    LAYOUT_VERSION,
    DatasetManifest,
    DatasetSplit,
    check_dataset,
    dataset_fingerprint,
    dataset_manifest_bytes,
)
from stages.data.prepared import given_dataset, prepared_datasets
from stages.data.progress import OnProgress, Progress
from stages.data.remote_dataset import remote_dataset
from stages.data.shards import ShardTask, write_shards
from stages.data.source_errors import Unreadable
from stages.data.source_hashes import REMEMBERED_BYTES, SourceHashes
from stages.data.tokenizer import given_tokenizer, tokenizer_file, train_tokenizer
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME, preparation_lock, staging_directory

SHARD_BYTES = 64 * 1024 * 1024
"""Source bytes per shard; one worker processes a whole shard. A larger file is one shard."""
LONGEST_NAME = 100
"""The most characters of the source's name that a dataset's name contains."""

CHOICE_VERSION = 3
"""Version of the rules that cut and split documents. It is part of a dataset's key."""


def prepare(
    spec: DataSpec,
    datasets_dir: Path,
    *,
    log_path: Path | None = None,
    on_progress: OnProgress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Prepares the dataset that `spec` describes, or finds it. Returns its directory in `datasets_dir`.

    A damaged dataset is set aside, never deleted, and prepared again. A second process that needs the same dataset
    waits for the first. Paths that name the same files describe the same dataset. `on_progress` receives a description
    of the work and the fraction done (None if unknown). Messages go to `log_path`; nothing is printed.

    If the source or the tokenizer cannot be opened, the newest dataset that was prepared for the same `spec` is enough;
    `tell` gets a line that says so. Raises DataError for every error that the user can fix, DiskFull if the disk is
    full; nothing incomplete remains then. If the source cannot be opened, nothing has been written.

    A source that is a dataset itself is checked and used where it is. If it lies at a URL, its directory in
    `datasets_dir` has all but the tokens, which are fetched on use.
    """
    if given := given_dataset(spec) or remote_dataset(spec, datasets_dir, Progress(None, on_progress), tell):
        return _checked(given, spec, on_progress)
    spec = spec.in_one_spelling()
    with raise_when_full(datasets_dir):
        try:
            source = _Source.read(spec, datasets_dir, Progress(None, on_progress))
        except Unreadable as error:
            found = (path for path, _ in prepared_datasets(spec, datasets_dir) if _damage(path, on_progress) is None)
            if dataset := next(found, None):
                tell(f"{dataset} was prepared with these settings and is used; its text could not be compared: {error}")
                return dataset
            raise
        return _found_or_built(source, datasets_dir, log_path, on_progress)


def _checked(given: Path, spec: DataSpec, on_progress: OnProgress | None) -> Path:
    """`given` if it is whole and `spec` asks for nothing else. Raises DataError otherwise."""
    try:
        manifest = check_dataset(given, on_progress)
    except DataError as error:
        raise DataError(f"data.source: {error}") from error
    made = manifest.spec.model_copy(update={"vocab_size": manifest.vocab_size})
    for name, field in DataSpec.model_fields.items():
        wanted, has = getattr(spec, name), getattr(made, name)
        if name not in ("source", *NOT_CONTENT) and wanted not in (field.default, has):
            raise DataError(
                f"data.{name}: {wanted}, but data.source {spec.source!r} is a prepared dataset, which was made with"
                f" {'null' if has is None else has}; leave the key out (as an override: '~data.{name}')"
            )
    return given


class _Source(NamedTuple):
    """The opened source of a dataset."""

    corpus: Corpus
    hashes: SourceHashes
    contents: tuple[str, ...]
    """An identifier of the content of each file of the corpus."""
    tokenizer: str | None
    """The hash of the file of a given tokenizer; None for one on the hub or one to train."""

    @classmethod
    def read(cls, spec: DataSpec, datasets_dir: Path, progress: Progress) -> "_Source":
        """Opens the source of `spec` and hashes its files. Raises Unreadable if it or the tokenizer is not there."""
        progress.say("reading the source")
        corpus = open_corpus(spec)
        hashes = remembered_hashes(corpus, datasets_dir)
        contents = tuple(corpus.contents(hashes, progress.meter("reading the source", corpus.num_bytes)))
        tokenizer = tokenizer_file(spec)
        return cls(corpus, hashes, contents, hash_file(tokenizer) if tokenizer else None)


def _found_or_built(source: _Source, datasets_dir: Path, log_path: Path | None, on_progress: OnProgress | None) -> Path:
    """The dataset of `source`."""
    spec = source.corpus.spec
    target = datasets_dir / f"{_name(spec.source)}-{_key(source)}"
    if _damage(target, on_progress) is None:
        source.hashes.save()
        return target
    source.corpus.check_separator()
    given = given_tokenizer(spec) if spec.tokenizer else None
    datasets_dir.mkdir(parents=True, exist_ok=True)
    progress = Progress(log_path, on_progress)
    with _lock(preparation_lock(target), progress) as alone:
        if damage := _damage(target, on_progress):
            if target.exists():
                progress.say(f"{damage}; moved to {set_aside(target)}, preparing it again")
            if alone:
                for leftover in datasets_dir.glob(f"{staging_directory(target).name}-*"):
                    shutil.rmtree(leftover)
            _build(source, given, target, progress)
            source.hashes.save()
    return target


def _damage(dataset_dir: Path, on_progress: OnProgress | None = None) -> str | None:
    """What is wrong with a dataset, or None if it is complete."""
    try:
        check_dataset(dataset_dir, on_progress)
    except DataError as error:
        return str(error)
    return None


def _name(source: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", source.rstrip("/").rpartition("/")[2])
    return plain[:LONGEST_NAME].strip("-.") or "data"


def remembered_hashes(corpus: Corpus, datasets_dir: Path) -> SourceHashes:
    """The hashes of the source's files, cached in a file of `datasets_dir` unless hashing them again takes no time."""
    if not corpus.is_local or corpus.num_bytes < REMEMBERED_BYTES:
        return SourceHashes(None)
    place = hashlib.sha256(corpus.spec.source.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return SourceHashes(datasets_dir / f".{_name(corpus.spec.source)}-{place}.hashes.json")


def source_sha256(corpus: Corpus, contents: Iterable[str]) -> str:
    """A hash of the source's files: their names and sizes, and the `contents` that `corpus.contents` gives."""
    return hashlib.sha256(json.dumps(_files(corpus, contents)).encode()).hexdigest()


def _files(corpus: Corpus, contents: Iterable[str]) -> list[tuple[str, int, str]]:
    return [(file.name, file.num_bytes, content) for file, content in zip(corpus.files, contents, strict=True)]


def _key(source: _Source) -> str:
    """A short hash of what determines a dataset: the spec without `workers`, the files' content, the tokenizer's."""
    determining = {
        "format_version": LAYOUT_VERSION,
        "choice_version": CHOICE_VERSION,
        "spec": source.corpus.spec.model_dump(include=DataSpec.model_fields.keys() - {*NOT_CONTENT}),
        "tokenizer": source.tokenizer,
        "files": _files(source.corpus, source.contents),
    }
    return hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest()[:12]


def _build(source: _Source, given: Tokenizer | None, target: Path, progress: Progress) -> None:
    """Writes the dataset beside `target`, then renames it. If anything fails, nothing incomplete remains."""
    beside = staging_directory(target)
    staging = beside.with_name(f"{beside.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        for split in SPLITS:
            (staging / split).mkdir(parents=True)
        manifest = _write_dataset(source, given, staging, progress)
        write_file(staging / MANIFEST_NAME, dataset_manifest_bytes(manifest))
        for folder in (*(staging / split for split in SPLITS), staging):
            sync_path(folder)
        try:
            os.rename(staging, target)
        except OSError:  # another process was faster, on a file system without locks
            if _damage(target) is not None:
                raise
        sync_path(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    progress.say(f"prepared {target.name}", 1.0)


def _write_dataset(source: _Source, given: Tokenizer | None, staging: Path, progress: Progress) -> DatasetManifest:
    """Writes the tokenizer and the shards. Returns the manifest, which the caller writes.

    Validation comes first: it is small, so errors in the source show up before the long work on train. A new tokenizer
    is trained before that, on all documents of train.
    """
    corpus = source.corpus
    spec, shards = corpus.spec, corpus.shards(SHARD_BYTES)
    tokenizer = given or train_tokenizer(corpus, shards, progress)
    tokenizer_sha256 = write_file(staging / TOKENIZER_NAME, tokenizer.to_str(pretty=True).encode()).sha256
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    token_bytes: Literal[2, 4] = 2 if vocab_size <= 2**16 else 4
    end_of_text_id = tokenizer.token_to_id(spec.end_of_text)
    assert end_of_text_id is not None  # training adds it; given_tokenizer rejects a tokenizer without it
    splits: dict[SplitName, DatasetSplit] = {}
    for split in reversed(SPLITS):
        tasks = [ShardTask(split, i, files, corpus, staging, token_bytes) for i, files in enumerate(shards)]
        skipped = corpus.skipped()  # both splits meet every bad record
        parts = []
        for part in write_shards(tasks, progress):
            skipped.join(part.skipped)
            parts.append(part)
        splits[split] = _joined([part.content for part in parts])
    if skipped.records.total:
        progress.say(f"skipped {skipped.records}")
    _require_documents(spec, splits)
    return DatasetManifest(
        format_version=FORMAT_VERSION,
        spec=spec,
        vocab_size=vocab_size,
        token_bytes=token_bytes,
        tokenizer_sha256=tokenizer_sha256,
        end_of_text_id=end_of_text_id,
        splits={split: splits[split] for split in SPLITS},
        source_sha256=source_sha256(corpus, source.contents),
        skipped=skipped.records,
        fingerprint=dataset_fingerprint(tokenizer_sha256, splits),
    )


def _joined(parts: list[DatasetSplit]) -> DatasetSplit:
    """The whole split, from its shards."""
    return DatasetSplit(
        num_tokens=sum(part.num_tokens for part in parts),
        num_bytes=sum(part.num_bytes for part in parts),
        num_documents=sum(part.num_documents for part in parts),
        text_hash=joined_hash(bytes.fromhex(part.text_hash or "") for part in parts).hex(),
        files=tuple(file for part in parts for file in part.files),
    )


def _require_documents(spec: DataSpec, splits: dict[SplitName, DatasetSplit]) -> None:
    num_documents = sum(split.num_documents for split in splits.values())
    if num_documents < 2:
        raise DataError(
            f"data.source: {spec.source!r} has {counted(num_documents, 'document')}, but training and validation need"
            " one each; use more text, or set a data.document_separator that splits it"
        )
    for name, split in splits.items():
        if not split.num_documents:
            raise DataError(
                f"data.validation_fraction: {spec.validation_fraction} of the {counted(num_documents, 'document')} in"
                f" {spec.source!r} leaves none for {name}; try about {min(0.5, 5 / num_documents):.2g} (documents with"
                " the same text stay together)"
            )


@contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[bool]:
    """Waits until no other process locks `path`, then locks it. Yields False if the file system has no locks.

    The lock of a process ends with the process.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("waiting for another process that is preparing the same dataset")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True
