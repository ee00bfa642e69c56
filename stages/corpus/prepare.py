"""Text or documents -> a dataset: its directory, with token shards, their tokenizer and a manifest, made once.

    <datasets_dir>/<name>-<key>/
        tokenizer.json
        train/00000.ds, 00000.ds.index, ...    tokens; where documents end (uint64, in tokens)
        validation/00000.ds, ...
        manifest.json                          written last

The key is a hash of everything that determines the result, so each dataset is prepared once and then reused. A dataset
is built under a hidden name and then renamed (stages/corpus/build.py): a directory with its final name is complete. The
shards depend only on the source, so whoever writes them changes nothing but the time.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from tokenizers import Tokenizer

from stages.checkpoint.directory import set_aside
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import hash_file
from stages.corpus.build import DatasetBuild
from stages.corpus.corpus import CHOICE_VERSION, open_corpus, plain_name
from stages.corpus.location import in_one_spelling, tokenizer_file
from stages.corpus.prepared import given_dataset, locked, prepared_datasets, remote_dataset, require_usable
from stages.corpus.tasks import Execute, OnProgress, OnWork, Progress, run_locally
from stages.corpus.tokenizer import given_tokenizer, tokenizer_content
from stages.data.dataset import LAYOUT_VERSION, check_dataset
from stages.data.errors import DataError, Unreadable
from stages.data.spec import NOT_CONTENT, DataSpec


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
