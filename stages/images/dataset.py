"""A dataset of images: a directory with a manifest, and the checks of its files against it.

<datasets_dir>/<name>-<key>/
    train/00000.images, 00000.images.index, ...    the images' own encoded bytes, one after another; INDEX of each
    validation/00000.images, ...
    manifest.json                                  written last
"""

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from model.strict import Strict
from stages.data.dataset import (
    Amount,
    DatasetFile,
    OnProgress,
    PreparedManifest,
    how_to_check,
    read_prepared,
    require_files,
    require_fingerprint,
)
from stages.data.spec import SPLITS, SplitName
from stages.images.spec import ImageSpec

LAYOUT_VERSION = 1
"""Version of the files' layout, a part of a dataset's identity."""
INDEX = [("end", "<u8"), ("label", "<u4")]
"""What an index has of each image: where its bytes end in the shard, and the number of its class."""


class ImageSplit(Strict):
    """The content of one split."""

    num_images: Amount
    files: tuple[DatasetFile, ...]
    """Each shard, followed by its index."""


class ImageManifest(PreparedManifest):
    """Everything about a dataset except its images. Its `fingerprint` is over all shards and indices, in order."""

    kind: Literal["images"] = "images"
    spec: ImageSpec
    classes: tuple[str, ...]
    """Their names, by number."""

    splits: dict[SplitName, ImageSplit] = Field(min_length=len(SPLITS))

    @property
    def files(self) -> list[DatasetFile]:
        return [file for split in SPLITS for file in self.splits[split].files]

    @property
    def computed_fingerprint(self) -> str:
        return image_fingerprint(self.splits)


def image_fingerprint(splits: dict[SplitName, ImageSplit]) -> str:
    """The fingerprint of a dataset of images: a sha256 over its files."""
    hashes = [[file.sha256 for file in splits[split].files] for split in SPLITS]
    return hashlib.sha256(json.dumps([LAYOUT_VERSION, "images", hashes]).encode()).hexdigest()


def read_image_manifest(dataset_dir: Path) -> ImageManifest:
    """The manifest of a dataset of images. Raises DataError if there is none or it cannot be read."""
    return read_prepared(dataset_dir, ImageManifest)


def check_images(dataset_dir: Path, on_progress: OnProgress | None = None) -> ImageManifest:
    """Verifies a dataset, with the hashes of its files if it is no larger than HASHED_BYTES. Returns its manifest.

    Raises DataError that names the first file that is missing, differs, or is a link out of the directory.
    """
    manifest = read_image_manifest(dataset_dir)
    require_fingerprint(dataset_dir, manifest)
    require_files(dataset_dir, manifest.files, **how_to_check(manifest.files, on_progress))
    return manifest
