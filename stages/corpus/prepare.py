"""Text or documents -> a dataset: its directory, with token shards, their tokenizer and a manifest, made once.

    <datasets_dir>/<name>-<key>/
        tokenizer.json
        train/00000.ds, 00000.ds.index, ...    tokens; where documents end (uint64, in tokens)
        validation/00000.ds, ...
        manifest.json                          written last

The key is a hash of everything that determines the result, so each dataset is prepared once and then reused. A dataset
is built in a hidden directory beside its own. The shards depend only on the source, so whoever writes them changes
nothing but the time. A killed process leaves the hidden directory behind; the next goes on with it.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from tokenizers import Tokenizer

from stages.checkpoint.directory import set_aside
from stages.checkpoint.disk_full import NO_SPACE, raise_when_full
from stages.checkpoint.files import hash_file, sync_path, write_file
from stages.corpus.corpus import CHOICE_VERSION, Corpus, open_corpus, plain_name
from stages.corpus.encoding import why_uncuttable
from stages.corpus.location import in_one_spelling, tokenizer_file
from stages.corpus.prepared import given_dataset, locked, prepared_datasets, remote_dataset, require_usable
from stages.corpus.shards import ShardTasks, ShuffleTasks
from stages.corpus.tasks import RECORDS, Execute, OnProgress, OnWork, Progress, run_locally
from stages.corpus.tokenizer import given_tokenizer, tokenizer_content, train_tokenizer
from stages.counted import counted
from stages.data.dataset import (
    FORMAT_VERSION,
    LAYOUT_VERSION,
    DatasetManifest,
    DatasetSplit,
    check_dataset,
    dataset_fingerprint,
    dataset_manifest_bytes,
    joined_splits,
)
from stages.data.errors import DataError, Interrupted, Unreadable
from stages.data.spec import NOT_CONTENT, SPLITS, DataSpec, SkippedRecords, SplitName
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME, staging_directory

LONG_DOCUMENT_BYTES = 8 * 1024 * 1024
"""A longer document takes more than a gigabyte if it is encoded as a whole."""
WHOLE_MEMORY = 150
"""Memory that encoding a document as a whole takes, in sizes of its text."""
PLAN_NAME = "plan.json"


class PreparingOptions(TypedDict, total=False):
    """The optional arguments of `prepare` that are the same for every source of a mixture."""

    log_path: Path | None
    on_progress: OnProgress | None
    on_work: OnWork | None
    tell: Callable[[str], None]
    execute: Execute | None


def prepare(
    spec: DataSpec,
    datasets_dir: Path,
    *,
    log_path: Path | None = None,
    on_progress: OnProgress | None = None,
    on_work: OnWork | None = None,
    tell: Callable[[str], None] = lambda line: None,
    execute: Execute | None = None,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Prepares the dataset that `spec` describes, or finds it. Returns its directory in `datasets_dir`.

    A damaged dataset is set aside, never deleted, and prepared again. A second process that needs the same dataset
    waits for the first. What a killed process has finished is kept, and the next one goes on from there. Paths that
    name the same files describe the same dataset. `on_progress` receives a description of the work and the fraction
    done (None if unknown), `on_work` figures once a second. Messages go to `log_path`; nothing is printed. `execute`
    runs the work; by default, processes on this machine do, one per core. `tokenizer` is the one that the sources of a
    mixture share, for a spec that has a `shared_tokenizer`.

    If the source or the tokenizer cannot be opened, the newest dataset that was prepared for the same `spec` is enough;
    `tell` gets a line that says so. Raises DataError for every error that the user can fix, DiskFull if the disk is
    full; nothing incomplete remains then, except what the same command resumes from if the source could not be read to
    its end. If the source cannot be opened, nothing has been written.

    A source that is a dataset itself is checked and used where it is. If it lies at a URL, its directory in
    `datasets_dir` has all but the tokens, which are fetched on use.
    """
    progress = Progress(log_path, on_progress, on_work, tell)
    opening = Progress(None, on_progress)  # nothing is written before the source is open
    if given := given_dataset(spec) or remote_dataset(spec, datasets_dir, opening, tell):
        return require_usable(given, spec, lambda dataset: check_dataset(dataset, on_progress))
    assert tokenizer or spec.shared_tokenizer is None
    spec = in_one_spelling(spec)
    shared_sha256 = hashlib.sha256(tokenizer_content(tokenizer)).hexdigest() if tokenizer else None
    with raise_when_full(datasets_dir):
        try:
            opening.say("reading the source")
            corpus = open_corpus(spec)
            hashes = corpus.remembered_hashes(datasets_dir)
            contents = tuple(corpus.contents(hashes, opening.meter("reading the source", corpus.num_bytes).advance))
            file = None if tokenizer else tokenizer_file(spec)
        except Unreadable as error:
            for path, manifest in prepared_datasets(spec, datasets_dir):
                if shared_sha256 in (None, manifest.tokenizer_sha256) and _damage(path, on_progress) is None:
                    tell(
                        f"{path} was prepared with these settings and is used; its text could not be compared: {error}"
                    )
                    return path
            raise
        determining = {
            "format_version": LAYOUT_VERSION,
            "choice_version": CHOICE_VERSION,
            "spec": spec.model_dump(include=DataSpec.model_fields.keys() - {*NOT_CONTENT}),
            "tokenizer": hash_file(file) if file else shared_sha256,  # None: on the hub, or to be trained
            "files": corpus.identified(contents),
        }
        key = hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest()[:12]
        target = datasets_dir / f"{plain_name(spec.source)}-{key}"
        if _damage(target, on_progress) is None:
            hashes.save()
            return target
        corpus.check_separator()
        given_one = given_tokenizer(spec) if spec.tokenizer else tokenizer
        datasets_dir.mkdir(parents=True, exist_ok=True)
        with locked(target, progress) as alone:
            if damage := _damage(target, on_progress):
                if target.exists():
                    progress.say(f"{damage}; moved to {set_aside(target)}, preparing it again")
                run = execute or run_locally(spec.workers, log_path)
                DatasetBuild(corpus, contents, given_one, target, progress, run, alone).run()
                hashes.save()
        return target


def _damage(dataset_dir: Path, on_progress: OnProgress | None = None) -> str | None:
    """What is wrong with a dataset, or None if it is complete."""
    try:
        check_dataset(dataset_dir, on_progress)
    except DataError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class DatasetBuild:
    """Builds the dataset `target`.

    Goes on from what a killed process has left, if this one is `alone`, that is if the file system has locks. If the
    text is at fault, or the disk is full, or no part of the work is finished, nothing incomplete remains.
    """

    corpus: Corpus
    contents: tuple[str, ...]
    """An identifier of the content of each file of the corpus."""
    given: Tokenizer | None
    """The tokenizer to use; None: trained on the text."""
    target: Path
    progress: Progress
    execute: Execute
    alone: bool

    def run(self) -> None:
        """Builds the dataset. Raises DataError, OSError, and what `execute` raises."""
        with self._staging() as staging:
            if _damage(staging) is not None:
                self._resume_or_start(staging)
                manifest = self._write_dataset(staging)
                write_file(staging / MANIFEST_NAME, dataset_manifest_bytes(manifest))
            self._publish(staging)
        self.progress.say(f"prepared {self.target.name}", 1.0)

    @contextmanager
    def _staging(self) -> Iterator[Path]:
        """The directory to build in, removed afterwards unless it is renamed or the same command can go on from it."""
        staging = staging_directory(self.target)
        if not self.alone:
            staging = staging.with_name(f"{staging.name}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            yield staging
        except (DataError, OSError) as error:
            has_finished = (staging / MANIFEST_NAME).exists() or any(_finished(staging))
            if not (self.alone and _may_pass(error) and has_finished):
                shutil.rmtree(staging, ignore_errors=True)
            raise
        if staging.exists():
            shutil.rmtree(staging)

    def _resume_or_start(self, staging: Path) -> None:
        """Makes the directory, or removes what does not belong to finished work from one that is there."""
        tokenizer = hashlib.sha256(self.given.to_str().encode()).hexdigest() if self.given else None
        shards = [[file.name for file in shard] for shard in self.corpus.shards()]
        plan = json.dumps({"tokenizer": tokenizer, "shards": shards}).encode()
        path = staging / PLAN_NAME
        if not (path.is_file() and path.read_bytes() == plan):
            shutil.rmtree(staging, ignore_errors=True)
            for folder in (*SPLITS, RECORDS):
                (staging / folder).mkdir(parents=True)
            write_file(path, plan)
            return
        for leftover in staging.glob("*/.*.tmp"):
            leftover.unlink()
        num_finished = len(_finished(staging))
        self.progress.say(
            f"resuming: {counted(num_finished, 'part')} of the work is done" if num_finished else "starting again"
        )

    def _write_dataset(self, staging: Path) -> DatasetManifest:
        """Writes the tokenizer and the shards. Returns the manifest, which the caller writes."""
        spec, progress = self.corpus.spec, self.progress
        tokenizer = self._tokenizer(staging / TOKENIZER_NAME)
        vocab_size = max(tokenizer.get_vocab().values()) + 1
        token_bytes: Literal[2, 4] = 2 if vocab_size <= 2**16 else 4
        end_of_text_id = tokenizer.token_to_id(spec.end_of_text)
        assert end_of_text_id is not None  # training adds it; given_tokenizer rejects a tokenizer without it
        num_shuffled = self.corpus.num_shuffled_shards
        why_whole = why_uncuttable(tokenizer)
        if why_whole:
            progress.say(f"each document is encoded as a whole: {why_whole}")
        shards = self.corpus.shards()
        parts = ShardTasks(
            self.corpus, self.contents, shards, staging, token_bytes, end_of_text_id, num_shuffled
        ).finished(progress, self.execute)
        longest = max(part.longest_bytes for part in parts)
        if why_whole and longest > LONG_DOCUMENT_BYTES:
            progress.warn(
                f"the longest document has {longest:,} bytes, and the tokenizer encodes each document as a whole, which"
                f" takes about {WHOLE_MEMORY} times its size in memory: {why_whole}"
            )
        skipped = self.corpus.skipped()
        for part in parts:
            skipped.join(part.skipped)
        splits = {}
        for split in SPLITS:
            of_split = [part.splits[split] for part in parts]
            splits[split] = joined_splits(of_split, tuple(file for each in of_split for file in each.files))
        if skipped.records.total:
            progress.say(f"skipped {skipped.records}")
        _require_documents(spec, splits, skipped.records)
        if spec.shuffle_seed is not None:
            num_tokens = tuple(part.splits["train"].num_tokens for part in parts)
            shuffle = ShuffleTasks(staging, num_tokens, num_shuffled, spec.shuffle_seed, token_bytes)
            files = tuple(file for part in shuffle.finished(progress, self.execute) for file in part.files)
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
            source_sha256=self.corpus.sha256(self.contents),
            skipped=skipped.records,
            fingerprint=dataset_fingerprint(tokenizer_sha256, splits),
        )

    def _tokenizer(self, path: Path) -> Tokenizer:
        """The tokenizer of the dataset, whose file it writes; the one that an earlier process trained if there is."""
        if path.is_file():
            return Tokenizer.from_file(str(path))
        tokenizer = self.given or train_tokenizer([self.corpus], self.progress)
        write_file(path, tokenizer_content(tokenizer))
        return tokenizer

    def _publish(self, staging: Path) -> None:
        """Gives a dataset that is complete its name, without what only the work needed."""
        (staging / PLAN_NAME).unlink(missing_ok=True)
        for folder in {path.name for path in staging.iterdir() if path.is_dir()}.difference(SPLITS):
            shutil.rmtree(staging / folder)
        for folder in (*SPLITS, "."):
            sync_path(staging / folder)
        try:
            os.rename(staging, self.target)
        except OSError:
            if not self.target.exists():
                raise
            check_dataset(self.target)  # another process was faster, on a file system without locks
        sync_path(self.target.parent)


def _may_pass(error: DataError | OSError) -> bool:
    """Whether the same command may succeed later with what is finished: the source or a disk failed, not the text."""
    if isinstance(error, OSError):
        return error.errno not in NO_SPACE and not isinstance(error, FileNotFoundError)
    return isinstance(error, Unreadable | Interrupted)


def _finished(staging: Path) -> list[Path]:
    """The records of the tasks that are finished."""
    return list((staging / RECORDS).glob("[!.]*"))


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
