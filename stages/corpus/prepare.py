"""Text or documents -> a dataset: its directory, with token shards, their tokenizer and a manifest, made once.

    <datasets_dir>/<name>-<key>/
        tokenizer.json
        train/00000.ds, 00000.ds.index, ...    tokens; where documents end (uint64, in tokens)
        validation/00000.ds, ...
        manifest.json                          written last

The key is a hash of everything that determines the result, so each dataset is prepared once and then reused. A dataset
is built in a hidden directory beside its own. The shards depend only on the source, so whoever writes them changes
nothing but the time. A killed process leaves the hidden directory behind; the next one resumes from it.

    .<name>-<key>.incomplete/
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
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from stages.checkpoint.disk_full import NO_SPACE, raise_when_full
from stages.checkpoint.files import hash_file, sync_path, write_file
from stages.corpus.corpus import CHOICE_VERSION, Corpus, Skipped, open_corpus, plain_name, require_documents
from stages.corpus.location import in_one_spelling, tokenizer_file
from stages.corpus.prepared import given_dataset, make_once, prepared_datasets, remote_dataset, require_usable
from stages.corpus.shards import Shards
from stages.corpus.tasks import RECORDS, Execute, Progress, run_locally
from stages.corpus.tokenizer import given_tokenizer, tokenizer_content, train_tokenizer
from stages.counted import counted
from stages.data.dataset import (
    LAYOUT_VERSION,
    DatasetManifest,
    OnProgress,
    check_dataset,
    dataset_fingerprint,
    dataset_manifest_bytes,
    joined_splits,
)
from stages.data.errors import DataError, Interrupted, Unreadable
from stages.data.spec import NOT_CONTENT, SPLITS, DataSpec
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME, staging_directory


def prepare(
    spec: DataSpec,
    datasets_dir: Path,
    *,
    progress: Progress | None = None,
    execute: Execute | None = None,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Prepares the dataset that `spec` describes, or finds it. Returns its directory in `datasets_dir`.

    A damaged dataset is set aside, never deleted, and prepared again. A second process that needs the same dataset
    waits for the first. What a killed process has finished is kept, and the next one resumes from there. Paths that
    name the same files describe the same dataset. `execute` runs the work; by default, processes on this machine do,
    one per core. `tokenizer` is the one that the sources of a mixture share, for a spec that has a `shared_tokenizer`.

    If the source or the tokenizer cannot be opened, the newest dataset that was prepared for the same `spec` is enough;
    `progress.tell` gets a line that says so. Raises DataError for every error that the user can fix, DiskFull if the
    disk is full; nothing incomplete remains then, except what the same command resumes from if the source could not be
    read to its end. If the source cannot be opened, nothing has been written.

    A source that is a dataset itself is checked and used where it is. If it lies at a URL, its directory in
    `datasets_dir` has all but the tokens, which are fetched on use.
    """
    progress = progress or Progress()
    if given := given_dataset(spec) or remote_dataset(spec, datasets_dir, progress):
        return require_usable(given, spec, lambda dataset: check_dataset(dataset, progress.on_progress))
    assert tokenizer or spec.shared_tokenizer is None
    spec = in_one_spelling(spec)
    shared_sha256 = hashlib.sha256(tokenizer_content(tokenizer)).hexdigest() if tokenizer else None
    with raise_when_full(datasets_dir):
        try:
            corpus = open_corpus(spec).hashed(datasets_dir, progress)
            file = None if tokenizer else tokenizer_file(spec)
        except Unreadable as error:
            for path, manifest in prepared_datasets(spec, datasets_dir):
                is_same = shared_sha256 in (None, manifest.tokenizer_sha256)
                if is_same and _is_whole(path, progress.on_progress):
                    progress.tell(f"{path}, prepared with these settings, is used without comparing its text: {error}")
                    return path
            raise
        determining = {
            "format_version": LAYOUT_VERSION,
            "choice_version": CHOICE_VERSION,
            "spec": spec.model_dump(include=DataSpec.model_fields.keys() - {*NOT_CONTENT}),
            "tokenizer": hash_file(file) if file else shared_sha256,  # None: on the hub, or to be trained
            "files": corpus.content,
        }
        key = hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest()[:12]
        target = datasets_dir / f"{plain_name(spec.source)}-{key}"

        @cache
        def own_tokenizer() -> Tokenizer | None:
            return given_tokenizer(spec) if spec.tokenizer else tokenizer

        def write() -> None:
            with _staging(target) as staging:
                if not _is_whole(staging):
                    _resume_or_start(staging, own_tokenizer(), progress)
                    run = execute or run_locally(spec.workers, progress.log_path)
                    manifest = _write_dataset(corpus, own_tokenizer(), staging, progress, run)
                    write_file(staging / MANIFEST_NAME, dataset_manifest_bytes(manifest))
                _publish(staging, target)
            progress.say(f"prepared {target.name}", 1.0)

        make_once(target, lambda path: check_dataset(path, progress.on_progress), write, progress, own_tokenizer)
        return target


def _is_whole(dataset_dir: Path, on_progress: OnProgress | None = None) -> bool:
    with suppress(DataError):
        check_dataset(dataset_dir, on_progress)
        return True
    return False


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """The directory to build in. After an error, it is removed unless the same command can resume from it later: a part
    is finished, and the source or a disk failed, not the text."""
    staging = staging_directory(target)
    try:
        yield staging
    except (DataError, OSError) as error:
        resumes = (
            error.errno not in NO_SPACE if isinstance(error, OSError) else isinstance(error, Unreadable | Interrupted)
        )
        if not (resumes and (_finished(staging) or (staging / MANIFEST_NAME).exists())):
            shutil.rmtree(staging, ignore_errors=True)
        raise


def _finished(staging: Path) -> list[Path]:
    """The records of the tasks that are finished."""
    return list((staging / RECORDS).glob("[!.]*"))


def _resume_or_start(staging: Path, given: Tokenizer | None, progress: Progress) -> None:
    """Makes the directory, or removes what does not belong to finished work from one that is there."""
    tokenizer = staging / TOKENIZER_NAME
    if given and tokenizer.is_file() and tokenizer.read_bytes() != tokenizer_content(given):
        shutil.rmtree(staging)  # the hub has another one now
    for folder in (*SPLITS, RECORDS):
        (staging / folder).mkdir(parents=True, exist_ok=True)
    for leftover in staging.glob("*/.*.tmp"):
        leftover.unlink()
    if num_finished := len(_finished(staging)):
        progress.say(f"resuming: {counted(num_finished, 'part')} of the work is done")


def _write_dataset(
    corpus: Corpus, given: Tokenizer | None, staging: Path, progress: Progress, execute: Execute
) -> DatasetManifest:
    """Writes the tokenizer, by default one trained on the text, and the shards. Returns the manifest to write."""
    spec, path = corpus.spec, staging / TOKENIZER_NAME
    if not path.is_file():
        write_file(path, tokenizer_content(given or train_tokenizer([corpus], progress)))
    tokenizer = Tokenizer.from_file(str(path))
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    token_bytes: Literal[2, 4] = 2 if vocab_size <= 2**16 else 4
    begin_of_text_id = tokenizer.token_to_id(spec.begin_of_text) if spec.begin_of_text else None
    end_of_text_id = tokenizer.token_to_id(spec.end_of_text)
    assert end_of_text_id is not None  # training adds it; given_tokenizer rejects a tokenizer without it
    files, num_shuffled, skipped = corpus.shards(), corpus.num_shuffled_shards, Skipped(spec)
    shards = Shards(corpus, files, num_shuffled, staging, token_bytes, begin_of_text_id, end_of_text_id)
    parts = shards.tasks().finished(progress, execute)
    for part in parts:
        skipped.join(part.skipped)
    if skipped.records.total:
        progress.say(f"skipped {skipped.records}")
    splits = {}
    for split in SPLITS:
        of_split = [part.splits[split] for part in parts]
        splits[split] = joined_splits(of_split, tuple(file for each in of_split for file in each.files))
    require_documents(spec, {name: split.num_documents for name, split in splits.items()}, skipped.records)
    if spec.shuffle_seed is not None:
        shuffled = shards.shuffling(spec.shuffle_seed, splits["train"]).finished(progress, execute)
        of_train = tuple(file for record in shuffled for file in record.splits["train"].files)
        splits["train"] = splits["train"].model_copy(update={"files": of_train})
    tokenizer_sha256 = hash_file(path)
    return DatasetManifest(
        spec=spec,
        vocab_size=vocab_size,
        token_bytes=token_bytes,
        tokenizer_sha256=tokenizer_sha256,
        begin_of_text_id=begin_of_text_id,
        end_of_text_id=end_of_text_id,
        splits=splits,
        source_sha256=corpus.sha256,
        skipped=skipped.records,
        fingerprint=dataset_fingerprint(tokenizer_sha256, splits),
    )


def _publish(staging: Path, target: Path) -> None:
    """Gives a dataset that is complete its name, without what only the work needed."""
    for folder in {path.name for path in staging.iterdir() if path.is_dir()}.difference(SPLITS):
        shutil.rmtree(staging / folder)
    for folder in (*SPLITS, "."):
        sync_path(staging / folder)
    os.rename(staging, target)
    sync_path(target.parent)
