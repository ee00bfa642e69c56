"""Text or documents -> a dataset: its directory, with token shards, their tokenizer and a manifest, made once.

    <datasets_dir>/<name>-<key>/
        tokenizer.json
        train/00000.ds, 00000.ds.index, ...    tokens; where documents end (uint64, in tokens)
        train/00000.ds.ranges, ...             sha256 of each range of the tokens
        validation/00000.ds, ...
        manifest.json                          written last

The key is a hash of everything that determines the result, so each dataset is prepared once and then reused. A dataset
is built under a hidden name and then renamed (stages/data/build.py): a directory with its final name is complete. The
shards depend only on the source, so whoever writes them changes nothing but the time.
"""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypedDict

from tokenizers import Tokenizer

from stages.checkpoint.directory import set_aside
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import hash_file
from stages.data.build import build
from stages.data.corpus import NOT_CONTENT, Corpus, DataError, DataSpec, open_corpus
from stages.data.dataset import LAYOUT_VERSION, DatasetManifest, check_dataset
from stages.data.local_tasks import run_locally
from stages.data.locked_dataset import locked
from stages.data.prepared import given_dataset, prepared_datasets
from stages.data.progress import OnProgress, OnWork, Progress
from stages.data.remote_dataset import remote_dataset
from stages.data.source_errors import Unreadable
from stages.data.source_hashes import REMEMBERED_BYTES, SourceHashes
from stages.data.tasks import Execute
from stages.data.tokenizer import given_tokenizer, tokenizer_content, tokenizer_file

LONGEST_NAME = 100
"""The most characters of the source's name that a dataset's name contains."""

CHOICE_VERSION = 3
"""Version of the rules that cut and split documents. It is part of a dataset's key."""


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
    if given := given_dataset(spec) or remote_dataset(spec, datasets_dir, Progress(None, on_progress), tell):
        return require_usable(given, spec, lambda dataset: check_dataset(dataset, on_progress))
    assert tokenizer or spec.shared_tokenizer is None
    spec = spec.in_one_spelling()
    with raise_when_full(datasets_dir):
        try:
            source = _Source.read(spec, datasets_dir, Progress(None, on_progress), tokenizer)
        except Unreadable as error:
            if dataset := _made_before(spec, datasets_dir, tokenizer, on_progress):
                tell(f"{dataset} was prepared with these settings and is used; its text could not be compared: {error}")
                return dataset
            raise
        progress = Progress(log_path, on_progress, on_work, tell)
        return _found_or_built(source, datasets_dir, progress, execute or run_locally(spec.workers, log_path))


def require_usable(given: Path, spec: DataSpec, read: Callable[[Path], DatasetManifest]) -> Path:
    """`given`, the source of `spec`. Raises DataError if `read` does, or if `spec` asks for another dataset."""
    try:
        manifest = read(given)
    except DataError as error:
        raise DataError(f"data.source: {error}") from error
    if manifest.sources:
        names = ", ".join(source.name for source in manifest.sources)
        raise DataError(f"data.source: {spec.source!r} is a mixture itself; name its sources ({names}) in data.mixture")
    made = manifest.spec.model_copy(update={"vocab_size": manifest.vocab_size})
    if (file := tokenizer_file(spec)) and hash_file(file) == manifest.tokenizer_sha256:
        made = made.model_copy(update={"tokenizer": spec.tokenizer})
    for name, field in DataSpec.model_fields.items():
        wanted, has = getattr(spec, name), getattr(made, name)
        if name not in ("source", "shared_tokenizer", *NOT_CONTENT) and wanted not in (field.default, has):
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
    """The hash of a given tokenizer or its file; None for one on the hub or one to train."""
    shared: Tokenizer | None
    """The tokenizer that the sources of a mixture share."""

    @classmethod
    def read(cls, spec: DataSpec, datasets_dir: Path, progress: Progress, shared: Tokenizer | None = None) -> "_Source":
        """Opens the source of `spec` and hashes its files. Raises Unreadable if it or the tokenizer is not there."""
        progress.say("reading the source")
        corpus = open_corpus(spec)
        hashes = remembered_hashes(corpus, datasets_dir)
        contents = tuple(corpus.contents(hashes, progress.meter("reading the source", corpus.num_bytes).advance))
        if shared:
            return cls(corpus, hashes, contents, _tokenizer_sha256(shared), shared)
        tokenizer = tokenizer_file(spec)
        return cls(corpus, hashes, contents, hash_file(tokenizer) if tokenizer else None, None)


def _found_or_built(source: _Source, datasets_dir: Path, progress: Progress, execute: Execute) -> Path:
    """The dataset of `source`."""
    spec = source.corpus.spec
    target = datasets_dir / f"{_name(spec.source)}-{_key(source)}"
    if _damage(target, progress.on_progress) is None:
        source.hashes.save()
        return target
    source.corpus.check_separator()
    given = given_tokenizer(spec) if spec.tokenizer else source.shared
    datasets_dir.mkdir(parents=True, exist_ok=True)
    with locked(target, progress) as alone:
        if damage := _damage(target, progress.on_progress):
            if target.exists():
                progress.say(f"{damage}; moved to {set_aside(target)}, preparing it again")
            build(source.corpus, source.contents, given, target, progress, execute, alone)
            source.hashes.save()
    return target


def _made_before(
    spec: DataSpec, datasets_dir: Path, tokenizer: Tokenizer | None, on_progress: OnProgress | None
) -> Path | None:
    """The newest whole dataset that was prepared for `spec`, with `tokenizer` if there is one."""
    wanted = _tokenizer_sha256(tokenizer) if tokenizer else None
    for path, document in prepared_datasets(spec, datasets_dir):
        if wanted in (None, document.get("tokenizer_sha256")) and _damage(path, on_progress) is None:
            return path
    return None


def _tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """The hash of the file that a dataset with `tokenizer` has."""
    return hashlib.sha256(tokenizer_content(tokenizer)).hexdigest()


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


def _key(source: _Source) -> str:
    """A short hash of what determines a dataset: the spec without `workers`, the files' content, the tokenizer's."""
    determining = {
        "format_version": LAYOUT_VERSION,
        "choice_version": CHOICE_VERSION,
        "spec": source.corpus.spec.model_dump(include=DataSpec.model_fields.keys() - {*NOT_CONTENT}),
        "tokenizer": source.tokenizer,
        "files": source.corpus.identified(source.contents),
    }
    return hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest()[:12]
