"""Datasets of either kind, text or images, for what does not depend on it."""

from pathlib import Path

from model.errors import UserError
from stages.checkpoint.files import OnBytes
from stages.data.dataset import (
    HASHED_BYTES,
    DatasetManifest,
    OnProgress,
    check_dataset,
    read_dataset_manifest,
    require_files,
    require_fingerprint,
    verify_dataset,
)
from stages.images.dataset import ImageManifest, read_image_manifest

AnyManifest = DatasetManifest | ImageManifest


def holds_images(dataset_dir: Path) -> bool:
    """Whether the files in a directory are those of a dataset of images."""
    return any(dataset_dir.glob("*.images"))


def read_any_manifest(dataset_dir: Path) -> AnyManifest:
    """The manifest of a dataset. Raises DataError if there is none or it cannot be read."""
    return read_image_manifest(dataset_dir) if holds_images(dataset_dir) else read_dataset_manifest(dataset_dir)


def verify_any_dataset(dataset_dir: Path, *, hashes: bool = True, on_bytes: OnBytes | None = None) -> AnyManifest:
    """Verifies a dataset and returns its manifest, as `verify_dataset` does one of text."""
    manifest = read_any_manifest(dataset_dir)
    if isinstance(manifest, DatasetManifest):
        return verify_dataset(dataset_dir, hashes=hashes, on_bytes=on_bytes)
    require_fingerprint(dataset_dir, manifest)
    require_files(dataset_dir, manifest.files, hashes=hashes, on_bytes=on_bytes)
    return manifest


def check_any_dataset(dataset_dir: Path, on_progress: OnProgress | None = None) -> AnyManifest:
    """Verifies a dataset and returns its manifest, as `check_dataset` does one of text."""
    manifest = read_any_manifest(dataset_dir)
    if isinstance(manifest, DatasetManifest):
        return check_dataset(dataset_dir, on_progress)
    if on_progress:
        on_progress("checking the dataset", None)
    return verify_any_dataset(dataset_dir, hashes=sum(file.bytes for file in manifest.files) <= HASHED_BYTES)


def require_classes(dataset_dir: Path, classes: tuple[str, ...], checkpoint: Path) -> None:
    """Raises UserError unless a dataset has images of the `classes` of a checkpoint: none for a model of text."""
    manifest = read_any_manifest(dataset_dir)
    found = manifest.classes if isinstance(manifest, ImageManifest) else ()
    if found != classes:
        both = (found, classes)
        has, knows = (f"images of {len(names)} classes ({names[0]}, ...)" if names else "text" for names in both)
        raise UserError(f"{dataset_dir} has {has}, but {checkpoint} was trained on {knows}")
