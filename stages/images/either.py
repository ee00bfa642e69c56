"""Datasets of either kind, text or images, for what does not depend on it."""

from contextlib import suppress
from pathlib import Path

from model.errors import UserError
from stages.data.dataset import (
    DatasetManifest,
    OnProgress,
    check_dataset,
    read_dataset_manifest,
    require_files,
    require_fingerprint,
    verify_dataset,
)
from stages.data.errors import DataError
from stages.images.dataset import ImageManifest, check_images, read_image_manifest

AnyManifest = DatasetManifest | ImageManifest


def read_any_manifest(dataset_dir: Path) -> AnyManifest:
    """The manifest of a dataset. Raises DataError if there is none or it cannot be read."""
    with suppress(DataError):
        return read_image_manifest(dataset_dir)
    return read_dataset_manifest(dataset_dir)


def check_any_dataset(dataset_dir: Path, on_progress: OnProgress | None = None) -> AnyManifest:
    """Verifies a dataset as `check_dataset` and `check_images` do, and returns its manifest."""
    is_text = isinstance(read_any_manifest(dataset_dir), DatasetManifest)
    return check_dataset(dataset_dir, on_progress) if is_text else check_images(dataset_dir, on_progress)


def require_whole(dataset_dir: Path) -> AnyManifest:
    """The manifest of a dataset whose files all exist with their sizes. Raises DataError for one that does not."""
    manifest = read_any_manifest(dataset_dir)
    if isinstance(manifest, DatasetManifest):
        return verify_dataset(dataset_dir, hashes=False)
    require_fingerprint(dataset_dir, manifest)
    require_files(dataset_dir, manifest.files, hashes=False)
    return manifest


def require_classes(dataset_dir: Path, classes: tuple[str, ...], checkpoint: Path) -> None:
    """Raises UserError unless a dataset has images of the `classes` of a checkpoint: none for a model of text."""
    manifest = read_any_manifest(dataset_dir)
    found = manifest.classes if isinstance(manifest, ImageManifest) else ()
    if found != classes:
        both = (found, classes)
        has, knows = (f"images of {len(names)} classes ({names[0]}, ...)" if names else "text" for names in both)
        raise UserError(f"{dataset_dir} has {has}, but {checkpoint} was trained on {knows}")
