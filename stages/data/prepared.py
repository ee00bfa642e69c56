"""Finds the datasets that were prepared for a data block. Reads manifests only, and imports nothing slow."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from stages.data.corpus import NOT_CONTENT, SPLITS, DataSpec, missing_text
from stages.data.dataset import read_dataset_manifest
from stages.data.location import local_path
from stages.data.remote_reading import REMOTE_NAME, remote_reading
from stages.data.source_errors import DataError
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME


def prepared_datasets(spec: DataSpec, datasets_dir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The datasets that were prepared for `spec`, newest first, each with its manifest's content.

    There are several if the text has changed in between. Their files are not checked. A source that is a dataset itself
    is the only one.
    """
    if given := given_dataset(spec):
        with suppress(OSError, ValueError, RecursionError):
            yield given, json.loads((given / MANIFEST_NAME).read_bytes())
        return
    yield from _remote_copies(spec, datasets_dir)
    wanted = _determining(spec.in_one_spelling().model_dump(mode="json"))
    for manifest in sorted(sorted(datasets_dir.glob(f"*/{MANIFEST_NAME}")), key=_age):
        try:
            document = json.loads(manifest.read_bytes())
            if _determining(document["spec"]) == wanted:
                yield manifest.parent, document
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue


def given_dataset(spec: DataSpec) -> Path | None:
    """The dataset that the source is itself, such as one that `growctl data import` made; None if it is a text.

    It may be a mixture, which `prepare` rejects.
    """
    path = local_path(spec.source)
    directory = Path(path) if path else None
    if directory is None or not all((directory / part).is_file() for part in (MANIFEST_NAME, TOKENIZER_NAME)):
        return None
    return directory if all((directory / split).exists() for split in SPLITS) or _is_mixture(directory) else None


def _is_mixture(directory: Path) -> bool:
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        return bool(json.loads((directory / MANIFEST_NAME).read_bytes())["sources"])
    return False


def _remote_copies(spec: DataSpec, datasets_dir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The datasets at the URL that `spec` names as its source, as far as they were opened from here."""
    if "://" not in spec.source:
        return
    for path in sorted(sorted(datasets_dir.glob(f"*/{REMOTE_NAME}")), key=_age):
        with suppress(DataError, OSError, ValueError, RecursionError):
            reading = remote_reading(path.parent)
            if reading is not None and reading.url == spec.source.rstrip("/"):
                yield path.parent, json.loads((path.parent / MANIFEST_NAME).read_bytes())


def remote_copy(spec: DataSpec, datasets_dir: Path) -> Path | None:
    """The directory here of the dataset at the URL `spec.source`; None if there is none, or it is damaged."""
    with suppress(DataError):
        for path, _ in _remote_copies(spec, datasets_dir):
            read_dataset_manifest(path)
            return path
    return None


def missing_unprepared(spec: DataSpec, datasets_dir: Path) -> str | None:
    """The message for a local text or tokenizer that is missing and was not prepared before; None if all is there."""
    missing = missing_text(spec)
    return missing if missing and next(prepared_datasets(spec, datasets_dir), None) is None else None


def _determining(spec: dict[str, Any]) -> dict[str, Any]:
    """The keys of a data block that determine the content of its dataset."""
    names = DataSpec.model_fields.keys() - {*NOT_CONTENT, "shared_tokenizer"}
    return {name: spec[name] for name in names} | {"shared_tokenizer": spec.get("shared_tokenizer")}


def _age(manifest: Path) -> float:
    return -manifest.stat().st_mtime
