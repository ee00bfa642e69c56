"""Images -> a dataset: its directory, with the images of each split and a manifest (dataset.py), made once.

The key in the directory's name is a hash of everything that determines its content, so each dataset is prepared once
and then reused. It is built in a hidden directory beside its own, which is removed if the work fails.
"""

import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stages.checkpoint.directory import publish_directory, whole_directory
from stages.checkpoint.files import list_files, write_file
from stages.corpus.corpus import Skipped, content_hash, is_validation, plain_name
from stages.corpus.files import SourceFile, any_files, kind_of
from stages.corpus.location import local_path, missing_source
from stages.corpus.prepared import make_once
from stages.corpus.records import BadRecord, open_unpacked, webdataset_samples
from stages.corpus.tasks import Meter, Progress
from stages.counted import counted
from stages.data.dataset import DatasetFile, dataset_manifest_bytes
from stages.data.errors import DataError, Interrupted, Unreadable, reading, reason
from stages.data.spec import SPLITS, SplitName
from stages.images.dataset import INDEX, ImageManifest, ImageSplit, images_in_one_spelling, prepared_images
from stages.images.either import check_any_dataset
from stages.images.pixels import decoded
from stages.images.spec import DIGITS, NOT_CONTENT, ImageSpec, in_braces
from stages.stage_dir import MANIFEST_NAME

ENDINGS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")
"""Of the names of files that hold an image."""


def prepare_images(spec: ImageSpec, datasets_dir: Path, *, progress: Progress | None = None) -> Path:
    """Prepares the dataset that `spec` describes, or finds it. Returns its directory in `datasets_dir`.

    Decodes every image once. A damaged dataset is set aside and prepared again; a second process that needs the same
    one waits for the first. If a source cannot be opened, the newest dataset of the same `spec` is enough.

    Raises DataError for every error that the user can fix, and DiskFull if the disk is full; nothing is left behind
    then.
    """
    progress, spec = progress or Progress(), images_in_one_spelling(spec)
    try:
        sources = _open_sources(spec)
    except Unreadable as error:
        for path, _ in prepared_images(spec, datasets_dir):
            with suppress(DataError):
                check_any_dataset(path, progress.on_progress)
                progress.tell(f"{path}, prepared with these settings, is used without comparing its images: {error}")
                return path
        raise
    content = [[file[1:] for file in source.files] for source in sources]
    key = hashlib.sha256(json.dumps([spec.model_dump(exclude={*NOT_CONTENT}), content]).encode()).hexdigest()[:12]
    target = datasets_dir / f"{plain_name(spec.source)}-{key}"

    def write() -> None:
        with whole_directory(target) as staging:
            manifest = _write_dataset(spec, sources, staging, progress)
            if _open_sources(spec) != sources:
                raise Interrupted("data.images: a file changed while it was prepared; run the same command again")
            write_file(staging / MANIFEST_NAME, dataset_manifest_bytes(manifest))
            publish_directory(target)
        progress.say(f"prepared {target.name}", 1.0)

    make_once(target, lambda path: check_any_dataset(path, progress.on_progress), write, progress)
    return target


class Source(NamedTuple):
    """The images that `images` or `validation` names."""

    key: str
    fs: Any
    files: tuple[SourceFile, ...]
    folders: tuple[str, ...]
    """The names of the class folders, in the order of their classes; none of WebDataset shards."""


Found = tuple[str, int | bytes, Callable[[], bytes]]
"""Where an image is, the number of its class (from a shard, as bytes), and what reads it."""


def _open_sources(spec: ImageSpec) -> list[Source]:
    """The images to train on and, if they have a source of their own, those to validate on.

    Raises DataError if one is missing or cannot be used.
    """
    sources = [_open(key, source, spec) for key in ("source", "validation") if (source := getattr(spec, key))]
    if all(source.folders for source in sources) and len({source.folders for source in sources}) > 1:
        raise DataError(
            f"data.images.validation: the class folders of {spec.validation!r} must be those of {spec.source!r}"
        )
    return sources


def _open(key: str, source: str, spec: ImageSpec) -> Source:
    if source == DIGITS:
        return Source(f"data.images.{key}", None, (SourceFile(DIGITS, DIGITS, 0, ""),), ())
    key, found, endings = f"data.images.{key}: {source!r}", [], f"({', '.join(ENDINGS)})"
    for path in in_braces(source):
        with reading(key):
            fs, files, _ = any_files(key, path)
        if not files:
            raise Unreadable(f"{key}: {missing_source(path) or f'there is nothing at {path!r}'}")
        found += files
    if shards := tuple(file for file in found if kind_of(file.name) == "WebDataset"):
        return Source(key, fs, shards, ())
    images = tuple(file for file in found if file.name.lower().rpartition(".")[2] in ENDINGS)
    folders = {os.path.dirname(file.name).partition("/")[0] for file in images}
    below = glob.glob(os.path.join(glob.escape(local), "*", "")) if (local := local_path(source)) else []
    if empty := min({os.path.basename(folder[:-1]) for folder in below} - folders, default=None):
        raise DataError(f"{key}: the class folder {empty!r} has no images {endings}")
    if not folders or "" in folders:
        raise DataError(f"{key} must hold WebDataset shards (.tar), or images {endings} in a folder for each class")
    if len(folders) != spec.num_classes:
        raise DataError(
            f"data.images.num_classes: {spec.num_classes}, but {key} has {counted(len(folders), 'class folder')}"
        )
    return Source(key, fs, images, tuple(sorted(folders)))


def _images(source: Source, meter: Meter) -> Iterator[Found]:
    """The images of a source in the order of its files' names, and within a shard in that of the archive."""
    numbers = {name: number for number, name in enumerate(source.folders)}
    for file in source.files:
        with reading(f"{source.key}: {file.path}"):
            if source.folders:
                yield file.path, numbers[file.name.partition("/")[0]], partial(source.fs.cat_file, file.path)
            elif source.fs is None:
                from sklearn.datasets import load_digits  # optional: growctl[images]

                digits = load_digits()
                for pixels_HW, label in zip(digits.images, digits.target.tolist(), strict=True):  # 0 to 16
                    as_pgm = b"P5 8 8 255\n" + (pixels_HW * 255 / 16).round().astype(np.uint8).tobytes()
                    yield DIGITS, label, partial(bytes, as_pgm)
            else:
                with open_unpacked(source.fs, file) as stream:
                    for members in webdataset_samples(stream):
                        image = label = b""
                        place = file.path
                        for sample, ending, read in members:
                            place = f"{file.path} sample {sample}"
                            image = read() if ending in ENDINGS else image
                            label = read() if ending in ("cls", "cls.txt") else label
                        yield place, label, partial(bytes, image)
        meter.advance(file.num_bytes)


def _checked(key: str, num_classes: int, image: Found) -> tuple[bytes, int] | BadRecord:
    """The bytes of an image that can be decoded, and its class; or why it is none."""
    place, label, read = image
    key, way_out = f"{key}: {place}", "repair or remove it, or set data.images.on_bad_record: skip"
    with reading(key):
        encoded = read()
    try:
        decoded(encoded)
    except Exception as error:  # each format has its own
        why = "no format that Pillow reads" if type(error).__name__ == "UnidentifiedImageError" else reason(error)
        return BadRecord("no image", place, f"{key} is no image ({why}); {way_out}")
    if isinstance(label, bytes) and not label.strip().isdigit():
        return BadRecord("no class", place, f"{key} has no number of a class in a .cls; {way_out}")
    if int(label) >= num_classes:
        raise DataError(f"data.images.num_classes: {num_classes}, but {key} is of class {int(label)}; the first is 0")
    return encoded, int(label)


def _write_dataset(spec: ImageSpec, sources: list[Source], staging: Path, progress: Progress) -> ImageManifest:
    """Writes the images. Returns the manifest to write."""
    meter = progress.meter("checking images", sum(file.num_bytes for source in sources for file in source.files))
    skipped, workers = Skipped(spec, "data.images"), spec.workers or 2 * len(os.sched_getaffinity(0))
    fractions = [0.0, 1.0] if spec.validation else [spec.validation_fraction]
    rows: dict[SplitName, list[tuple[int, int]]] = {split: [] for split in SPLITS}
    with (
        (staging / "train.images").open("wb") as train,
        (staging / "validation.images").open("wb") as validation,
        ThreadPoolExecutor(workers) as pool,  # Pillow decodes without Python's lock
    ):
        for source, fraction in zip(sources, fractions, strict=True):
            images, check = _images(source, meter), partial(_checked, source.key, spec.num_classes)
            while some := list(islice(images, 8 * workers)):
                for image in pool.map(check, some):
                    if isinstance(image, BadRecord):
                        skipped.add(image)
                        continue
                    held_out = is_validation(content_hash(image[0]), fraction)
                    file = validation if held_out else train
                    file.write(image[0])
                    rows["validation" if held_out else "train"].append((file.tell(), image[1]))
    if skipped.records.total:
        progress.say(f"skipped {skipped.records}")
    if (number := len({label for _, label in rows["train"]})) != spec.num_classes:
        raise DataError(f"data.images.num_classes: {spec.num_classes}, but {number} have images to train on")
    if not rows["validation"]:
        raise DataError(f"data.images.validation_fraction: {spec.validation_fraction} leaves no images to validate on")
    for split in SPLITS:
        np.array(rows[split], INDEX).tofile(staging / f"{split}.index")
    written = list_files(staging)
    splits = {}
    for split in SPLITS:
        names = (f"{split}.images", f"{split}.index")
        files = (DatasetFile(name=name, bytes=written[name].bytes, sha256=written[name].sha256) for name in names)
        splits[split] = ImageSplit(num_images=len(rows[split]), files=tuple(files))
    manifest = ImageManifest(
        spec=spec,
        classes=sources[0].folders or tuple(map(str, range(spec.num_classes))),
        splits=splits,
        skipped=skipped.records,
        fingerprint="",
    )
    return manifest.model_copy(update={"fingerprint": manifest.computed_fingerprint})
