"""The `data.images:` block of a schedule: which images, and how they are read. Imports nothing slow."""

import re
from typing import Annotated

from pydantic import ConfigDict, Field, PositiveInt, model_validator

from model.strict import Strict, example
from stages.data.spec import BadRecordPolicy, require_skip

DIGITS = "sklearn-digits"
"""The name of scikit-learn's digits in place of a path."""
NOT_CONTENT = ("workers",)
"""The keys that change no image."""


class ImageSpec(Strict):
    """Labelled images, and how they are read."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)

    source: Annotated[str, Field(min_length=1), example("/data/imagenet/train")]
    """Images at a local path or fsspec URL: a folder with one subfolder per class, or WebDataset shards (`.tar`,
    `.tar.gz`, `.tar.zst`) as a folder, glob or brace range (`shard-{0000..0146}.tar`). `sklearn-digits` stands for
    1,797 handwritten digits of 8 x 8 pixels. Class numbers start at 0. Subfolders are numbered in the order of their
    names; shards hold the numbers in `.cls` or `.cls.txt` files."""
    validation: Annotated[str | None, Field(min_length=1), example("/data/imagenet/val")] = None
    """Images to validate on, specified as in `source` and with the same classes; by default a part of `source`."""
    validation_fraction: Annotated[float, Field(gt=0.0, lt=1.0), example(0.2, "share of the images")] = 0.1
    """Share of the images in `source` held out if `validation` is not set. A hash of the bytes decides an image's
    split, so equal images share a split."""
    num_classes: Annotated[int, Field(ge=2, le=2**20), example(1000, "classes")]
    """Number of classes. growctl rejects a `source` with more or fewer."""
    on_bad_record: Annotated[BadRecordPolicy, example("skip")] = "stop"
    """What to do with bad records: images that cannot be decoded or, in a shard, have no class. stop: end with an error
    that names the image. skip: leave it out and count it."""
    most_bad_records: Annotated[PositiveInt | None, example(1000, "records")] = None
    """Maximum number of records left out with `on_bad_record: skip`; 100 by default."""
    workers: Annotated[PositiveInt | None, example(4, "threads")] = None
    """Threads that read and check the images; by default two per core."""

    _most_bad_records_needs_skip = model_validator(mode="after")(require_skip)


def in_braces(paths: str) -> list[str]:
    """The paths that lists and ranges in braces stand for: `{a,b}`, `{000..146}`."""
    braces = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", paths)
    if not braces:
        return [paths]
    first, last, names = braces.groups()
    parts = names.split(",") if names else [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
    return [path for part in parts for path in in_braces(paths[: braces.start()] + part + paths[braces.end() :])]
