"""Finds the datasets that were prepared for a data block, here or at a URL, and writes mixtures of several.

A mixture is a directory that names prepared datasets, and is read like one. The key is a hash of its sources, so each
is written once and then reused. Imports nothing slow.

    <datasets_dir>/mixture-<key>/
        tokenizer.json    the one that all sources share
        manifest.json     the sources: their names, paths, fingerprints and base weights; the sums of their splits
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from stages.checkpoint.directory import publish_directory, set_aside, whole_directory
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import hash_file, write_file
from stages.corpus.location import in_one_spelling, local_path, tokenizer_file
from stages.corpus.tasks import Progress
from stages.data.dataset import (
    REMOTE_NAME,
    DatasetManifest,
    MixtureEntry,
    dataset_manifest_bytes,
    joined_splits,
    mixture_fingerprint,
    read_dataset_manifest,
    require_one_tokenizer,
    require_tokenizer,
    verify_dataset,
)
from stages.data.errors import DataError, reason
from stages.data.remote import CACHE_NAME, RemoteFiles, RemoteReading, remote_reading, write_remote_reading
from stages.data.spec import NOT_CONTENT, SPLITS, DataSpec
from stages.stage_dir import MANIFEST_NAME, MIXTURE_PREFIX, TOKENIZER_NAME, preparation_lock

_KEYS_OF_A_DATASET = {"splits", "fingerprint", "tokenizer_sha256"}
"""Keys that tell the manifest of a dataset from other files of that name."""


def prepared_datasets(spec: DataSpec, datasets_dir: Path) -> Iterator[tuple[Path, DatasetManifest]]:
    """The datasets that were prepared for `spec`, newest first, each with its manifest.

    There are several if the text has changed in between. Their files are not checked; a manifest that cannot be read is
    passed over. A source that is a dataset itself is the only one.
    """
    if given := given_dataset(spec):
        with suppress(DataError):
            yield given, read_dataset_manifest(given)
        return
    yield from _remote_copies(spec, datasets_dir)
    wanted = _determining(in_one_spelling(spec))
    for path in newest_first(datasets_dir, MANIFEST_NAME):
        with suppress(DataError):
            manifest = read_dataset_manifest(path)
            if not manifest.sources and _determining(manifest.spec) == wanted:
                yield path, manifest


def given_dataset(spec: DataSpec) -> Path | None:
    """The dataset that the source is itself, such as one that `growctl data import` made; None if it is a text.

    It may be a mixture, which `prepare` rejects.
    """
    if (path := local_path(spec.source)) is None:
        return None
    directory = Path(path)  # whose is_file would raise for a name that no file can have
    names = (MANIFEST_NAME, TOKENIZER_NAME)
    return directory if all(os.path.isfile(directory / name) for name in names) else None


def _remote_copies(spec: DataSpec, datasets_dir: Path) -> Iterator[tuple[Path, DatasetManifest]]:
    """The datasets at the URL that `spec` names as its source, as far as they were opened from here."""
    for path in newest_first(datasets_dir, REMOTE_NAME) if "://" in spec.source else ():
        with suppress(DataError):
            reading = remote_reading(path)
            if reading is not None and reading.url == spec.source.rstrip("/"):
                yield path, read_dataset_manifest(path)


def remote_copy(spec: DataSpec, datasets_dir: Path) -> Path | None:
    """The directory here of the dataset at the URL `spec.source`; None if there is none, or it is damaged."""
    return next((path for path, _ in _remote_copies(spec, datasets_dir)), None)


def _determining(spec: DataSpec) -> dict[str, Any]:
    """The keys of a data block that determine the content of its dataset."""
    return {name: getattr(spec, name) for name in DataSpec.model_fields.keys() - {*NOT_CONTENT}}


def newest_first(datasets_dir: Path, name: str, prefix: str = "") -> list[Path]:
    """The directories whose names begin with `prefix` that have a file called `name`, the last written first."""
    files = sorted(sorted(datasets_dir.glob(f"{prefix}*/{name}")), key=lambda path: -path.stat().st_mtime)
    return [path.parent for path in files]


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


@contextmanager
def locked(dataset_dir: Path, progress: Progress) -> Iterator[None]:
    """Waits until no other process locks the dataset, then locks it, if the file system has locks.

    Others wait while a process prepares or fetches it, and `growctl clean` leaves it alone. The lock of a process ends
    with the process.
    """
    dataset_dir.parent.mkdir(parents=True, exist_ok=True)
    with preparation_lock(dataset_dir).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("waiting for another process that is preparing the same dataset")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # no locks here
        yield


def remote_dataset(spec: DataSpec, datasets_dir: Path, progress: Progress) -> Path | None:
    """The directory in `datasets_dir` of the dataset at the URL `spec.source`; None if no dataset can be read there.

    Fetches and checks the manifest and the tokenizer. If the URL cannot be reached, a directory from before is enough;
    `progress.tell` gets a line that says so. Raises DataError for a file that is missing or altered.
    """
    if local_path(spec.source) is not None or "://" not in spec.source or "::" in spec.source:
        return None
    reading = reading_of(spec, spec.source, datasets_dir)
    files = RemoteFiles(reading.url, reading.retry_seconds)
    progress.say("looking for a prepared dataset")
    try:
        content = files.content_if_there(MANIFEST_NAME)
    except Exception as error:  # every library has its own error classes
        if copy := remote_copy(spec, datasets_dir):
            write_remote_reading(copy, reading)
            why = f"{spec.source} cannot be reached ({reason(error)})"
            progress.tell(f"{why}; {copy}, fetched from there before, is used")
        return copy
    if content is None or not _is_dataset(content):
        return None
    key = hashlib.sha256(reading.url.encode() + b"\0" + content).hexdigest()[:12]
    target = datasets_dir / f"{reading.url.rpartition('/')[2]}-at-{key}"

    def check(directory: Path) -> None:
        verify_dataset(directory)
        write_remote_reading(directory, reading)

    make_once(target, check, lambda: _fetch(content, reading, files, target), progress)
    return target


def reading_of(spec: DataSpec, url: str, datasets_dir: Path) -> RemoteReading:
    """How a data block reads a dataset at a URL."""
    return RemoteReading(
        url=url.rstrip("/"),
        cache_dir=str(Path(spec.cache_dir or datasets_dir / CACHE_NAME).absolute()),
        cache_bytes=spec.cache_bytes,
        retry_seconds=spec.retry_seconds,
    )


def _is_dataset(content: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        document = json.loads(content)
        return isinstance(document, dict) and document.keys() >= _KEYS_OF_A_DATASET
    return False


def _fetch(content: bytes, reading: RemoteReading, files: RemoteFiles, target: Path) -> None:
    """Fetches the dataset whose manifest is `content` into `target`."""
    with whole_directory(target) as staging:
        write_file(staging / MANIFEST_NAME, content)
        try:
            manifest = read_dataset_manifest(staging)
        except DataError as error:
            raise DataError(f"{reading.url}/{MANIFEST_NAME} cannot be used: {error.__cause__ or error}") from error
        if manifest.sources:
            raise DataError(f"{reading.url} is a mixture, which has no tokens; name the URLs of its sources' datasets")
        write_file(staging / TOKENIZER_NAME, files.read(TOKENIZER_NAME))
        write_remote_reading(staging, reading)
        verify_dataset(staging)
        publish_directory(target)


def make_once(
    target: Path,
    check: Callable[[Path], object],
    write: Callable[[], None],
    progress: Progress,
    first: Callable[[], object] = lambda: None,
) -> None:
    """Lets `write` make the dataset `target`, unless it is there and `check` raises no DataError.

    Sets a damaged one aside. Others that need it wait. Nothing has been written while `first` runs, which may fail.
    Raises DiskFull if the disk is full.
    """

    def damage() -> str | None:
        try:
            check(target)
        except DataError as error:
            return str(error)
        return None

    if damage() is None:
        return
    first()
    with raise_when_full(target), locked(target, progress):
        if found := damage():
            if target.exists():
                progress.say(f"{found}; moved to {set_aside(target)}, preparing it again")
            write()


class Ingredient(NamedTuple):
    """A prepared dataset, as a source of a mixture."""

    name: str
    dataset: Path
    weight: float
    """Its base weight, in any unit."""

    epochs_at_most: float | None = None
    """How often training may read it; None: as often as needed."""


def write_mixture(ingredients: Sequence[Ingredient], datasets_dir: Path) -> Path:
    """Writes the mixture of prepared datasets into `datasets_dir`, or finds it. Returns its directory.

    A damaged mixture is set aside and written again. Raises DataError if a dataset cannot be read, is a mixture itself,
    or has another tokenizer than the first, and DiskFull if the disk is full.
    """
    manifests = {each.name: read_dataset_manifest(each.dataset) for each in ingredients}
    for each in ingredients:
        if manifests[each.name].sources:
            raise DataError(f"data.mixture: {each.name!r} ({each.dataset}) is a mixture itself; name its sources")
    require_one_tokenizer({each.name: each.dataset for each in ingredients})
    beside = datasets_dir.resolve()
    entries = tuple(
        MixtureEntry(
            name=each.name,
            directory=str(path.relative_to(beside) if path.is_relative_to(beside) else path),
            fingerprint=manifests[each.name].fingerprint,
            weight=each.weight,
            epochs_at_most=each.epochs_at_most,
        )
        for each in ingredients
        for path in [each.dataset.resolve()]
    )
    first, *_ = manifests.values()
    manifest = DatasetManifest(
        spec=first.spec.model_copy(update={"source": ", ".join(manifests)}),
        vocab_size=first.vocab_size,
        token_bytes=first.token_bytes,
        tokenizer_sha256=first.tokenizer_sha256,
        begin_of_text_id=first.begin_of_text_id,
        end_of_text_id=first.end_of_text_id,
        splits={name: joined_splits([each.splits[name] for each in manifests.values()]) for name in SPLITS},
        sources=entries,
        fingerprint=mixture_fingerprint(entries),
    )
    key = json.dumps([entry.model_dump(mode="json") for entry in entries])
    target = datasets_dir / f"{MIXTURE_PREFIX}{hashlib.sha256(key.encode()).hexdigest()[:12]}"

    def write() -> None:
        with whole_directory(target) as staging:
            write_file(staging / TOKENIZER_NAME, (ingredients[0].dataset / TOKENIZER_NAME).read_bytes())
            write_file(staging / MANIFEST_NAME, dataset_manifest_bytes(manifest))
            publish_directory(target)

    make_once(target, lambda path: require_tokenizer(path, read_dataset_manifest(path)), write, Progress())
    return target
