"""A dataset of images: a directory with a manifest.

<datasets_dir>/<name>-<key>/
    train.images, validation.images    the images' own encoded bytes, one after another
    train.index, validation.index      INDEX of each
    manifest.json                      written last
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field

from model.strict import Strict
from stages.corpus.location import one_spelling
from stages.corpus.prepared import newest_first
from stages.counted import counted
from stages.data.dataset import Amount, DatasetFile, PreparedManifest, read_prepared
from stages.data.errors import DataError
from stages.data.spec import SPLITS, SplitName
from stages.images.spec import DIGITS, NOT_CONTENT, ImageSpec
from stages.stage_dir import MANIFEST_NAME

Spec = TypeVar("Spec", bound=ImageSpec)

INDEX = [("end", "<u8"), ("label", "<u4")]
"""Where the bytes of an image end in their file, and the number of its class."""


class ImageSplit(Strict):
    """The content of one split."""

    num_images: Amount
    files: tuple[DatasetFile, ...]
    """The images and their index."""

    def __str__(self) -> str:
        return counted(self.num_images, "image")


class ImageManifest(PreparedManifest):
    """Everything about a dataset except its images. Its `fingerprint` is over all files, in order."""

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
        hashes = [[file.sha256 for file in self.splits[split].files] for split in SPLITS]
        return hashlib.sha256(json.dumps(["images", hashes]).encode()).hexdigest()


def read_image_manifest(dataset_dir: Path) -> ImageManifest:
    """The manifest of a dataset of images. Raises DataError if there is none or it cannot be read."""
    return read_prepared(dataset_dir, ImageManifest)


def prepared_images(spec: ImageSpec, datasets_dir: Path) -> Iterator[tuple[Path, ImageManifest]]:
    """The datasets that were prepared for `spec`, newest first, each with its manifest. Their files are not checked."""
    same = {key: getattr(spec, key) for key in NOT_CONTENT}
    for path in newest_first(datasets_dir, MANIFEST_NAME):
        with suppress(DataError):
            manifest = read_image_manifest(path)
            if manifest.spec.model_copy(update=same) == images_in_one_spelling(spec):
                yield path, manifest


def images_in_one_spelling(spec: Spec) -> Spec:
    """The same spec with the spelling of local paths that all names of the same files share."""
    named = {key: source for key in ("source", "validation") if (source := getattr(spec, key)) not in (None, DIGITS)}
    return spec.model_copy(update={key: one_spelling(source) for key, source in named.items()})
