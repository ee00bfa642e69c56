"""Prepares and finds the datasets of a `data` block: one text, every source of a mixture and then the mixture, or
images."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from growctl.schedule.data_block import DataBlock
from stages.corpus.location import missing_source, missing_text
from stages.corpus.prepared import (
    Ingredient,
    given_dataset,
    newest_first,
    prepared_datasets,
    remote_copy,
    remote_dataset,
    require_usable,
    write_mixture,
)
from stages.corpus.tasks import Progress
from stages.data.dataset import DatasetManifest, read_dataset_manifest, require_one_tokenizer
from stages.data.errors import DataError
from stages.data.spec import SourceSpec
from stages.images.dataset import prepared_images
from stages.images.either import AnyManifest
from stages.images.spec import DIGITS, in_braces
from stages.stage_dir import MANIFEST_NAME, MIXTURE_PREFIX, TOKENIZER_NAME

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from stages.corpus.tasks import Execute

_KEYS_OF_A_SOURCE = re.compile(rf"\bdata\.({'|'.join(SourceSpec.model_fields)})\b")


def prepare_data(
    data: DataBlock, datasets_dir: Path, progress: Progress | None = None, execute: "Execute | None" = None
) -> Path:
    """Prepares the dataset of `data`, or those of all sources and then their mixture. Returns its path.

    Raises DataError that names the entry of `data.mixture` whose text cannot be used.
    """
    if data.images:
        from stages.images.prepare import prepare_images  # needs the extra for images

        return prepare_images(data.images.spec(), datasets_dir, progress=progress)
    from stages.corpus.prepare import prepare  # slow: numpy

    progress = progress or Progress()
    if not data.mixture:
        return prepare(data, datasets_dir, progress=progress, execute=execute)
    if missing := missing_data(data, datasets_dir):
        raise DataError(missing)  # now, not after hours of preparing the sources before it
    found, tokenizer = [], _shared_tokenizer(data, datasets_dir, progress)
    for index, (source, spec) in enumerate(zip(data.mixture, data.specs, strict=True)):
        with _naming_entry(index):
            dataset = prepare(spec, datasets_dir, progress=progress, execute=execute, tokenizer=tokenizer)
        found.append(Ingredient(source.name, dataset, source.weight, source.epochs_at_most))
    return write_mixture(found, datasets_dir)


def _shared_tokenizer(data: DataBlock, datasets_dir: Path, progress: Progress) -> "Tokenizer | None":
    """The tokenizer that is trained on all sources; None if `data.tokenizer` or prepared datasets bring one."""
    from stages.corpus.prepare import prepare
    from stages.corpus.tokenizer import shared_tokenizer

    specs = data.specs
    if specs[0].shared_tokenizer is None:
        return None
    prepared = []
    for index, spec in enumerate(specs):
        with _naming_entry(index):
            prepared.append(given_dataset(spec) or remote_dataset(spec, datasets_dir, progress))
    if all(prepared):
        return None
    for index, dataset in enumerate(prepared):
        if dataset:
            with _naming_entry(index):
                prepare(specs[index], datasets_dir, progress=progress)  # checks it
            raise DataError(
                f"data.tokenizer: is missing; data.mixture.{index}.source {specs[index].source!r} is a prepared "
                "dataset with a tokenizer of its own, which the other sources need too: set data.tokenizer to "
                f"{dataset / TOKENIZER_NAME}"
            )
    return shared_tokenizer(specs, datasets_dir, _naming_entry, progress)


def prepared_data(data: DataBlock, datasets_dir: Path) -> Iterator[tuple[Path, AnyManifest]]:
    """As `prepared_datasets`, for images and a mixture too: those of its sources, weights and limits, newest first."""
    if data.images:
        yield from prepared_images(data.images.spec(), datasets_dir)
        return
    if not data.mixture:
        yield from prepared_datasets(data, datasets_dir)
        return
    wanted = [(source.name, source.weight, source.epochs_at_most) for source in data.mixture]
    known = [{path.resolve() for path, _ in prepared_datasets(spec, datasets_dir)} for spec in data.specs]
    for path, manifest in mixtures_in(datasets_dir):
        if [(entry.name, entry.weight, entry.epochs_at_most) for entry in manifest.sources] != wanted:
            continue
        paths = [entry.dataset(path).resolve() for entry in manifest.sources]
        if all(found in those for found, those in zip(paths, known, strict=True)):
            yield path, manifest


def mixtures_in(datasets_dir: Path) -> Iterator[tuple[Path, DatasetManifest]]:
    """The mixtures in a directory of datasets, newest first, each with its manifest; none that is damaged."""
    for path in newest_first(datasets_dir, MANIFEST_NAME, MIXTURE_PREFIX):
        with suppress(DataError):
            yield path, read_dataset_manifest(path)


def given_vocabulary(data: DataBlock, datasets_dir: Path) -> int | None:
    """Entries of the tokenizer of the prepared datasets that the sources of `data` are; None if a text needs another.

    None also for a dataset at a URL that was not opened yet. Raises DataError if a local dataset is not what `data`
    asks for, as `prepare_data` does.
    """
    found = {}
    for index, spec in enumerate(data.specs):
        name = data.mixture[index].name if data.mixture else ""
        if given := given_dataset(spec):
            with _naming_entry(index) if data.mixture else nullcontext():
                found[name] = require_usable(given, spec, read_dataset_manifest)
        elif copy := remote_copy(spec, datasets_dir):
            found[name] = copy
    if not found or (data.tokenizer is None and len(found) < len(data.specs)):
        return None
    require_one_tokenizer(found)
    return read_dataset_manifest(next(iter(found.values()))).vocab_size


def missing_data(data: DataBlock, datasets_dir: Path) -> str | None:
    """The message for the first local text, tokenizer or folder of images that is missing and was not prepared; None if
    all are there."""
    if data.images:
        named = [(key, place) for key in ("source", "validation") if (place := getattr(data.images, key))]
        paths = ((key, path) for key, place in named if place != DIGITS for path in in_braces(place))
        found = [f"data.images.{key}: {reason}" for key, path in paths if (reason := missing_source(path))]
        return found[0] if found and next(prepared_data(data, datasets_dir), None) is None else None
    for index, spec in enumerate(data.specs):
        if (missing := missing_text(spec)) and next(prepared_datasets(spec, datasets_dir), None) is None:
            return of_entry(missing, index) if data.mixture else missing
    return None


def of_entry(message: str, index: int) -> str:
    """A message about the keys of a source, with the path of the entry of `data.mixture` that sets them."""
    return _KEYS_OF_A_SOURCE.sub(rf"data.mixture.{index}.\1", message)


@contextmanager
def _naming_entry(index: int) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise type(error)(of_entry(str(error), index)) from error
