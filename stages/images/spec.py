"""The `data:` block of a schedule that trains on images: which images, and what training does to them. Imports nothing
slow."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from model.strict import Strict, example
from stages.data.spec import BadRecordPolicy, require_skip

DIGITS = "digits"
"""The name of scikit-learn's digits in place of a path."""
DEFAULT_VALIDATION_FRACTION = 0.1
NOT_CONTENT = ("workers",)
"""The keys that change no image."""

Share = Annotated[float, Field(gt=0.0, le=1.0)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Alpha = Annotated[float, Field(ge=0.0, le=100.0)]
"""Both parameters of a beta distribution; 0 turns off what is drawn from it."""


class ImageSpec(Strict):
    """Labelled images, and how they are read."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)

    images: Annotated[str, Field(min_length=1), example("/data/imagenet/train")]
    """`digits` (the 1,797 handwritten digits of scikit-learn, 8 x 8 pixels), a folder with a folder of images for each
    class, or WebDataset shards (`.tar`, `.tar.gz`, `.tar.zst`): a folder, a glob or a list in braces, such as
    `shard-{0000..0146}.tar`. A local path or any fsspec URL. Classes are numbered in the order of their folders' names;
    each sample of a shard has an image and its class, counted from 0, in a `.cls` or a `.cls.txt`. Only files with the
    ending of an image count."""

    validation: Annotated[str | None, Field(min_length=1), example("/data/imagenet/val")] = None
    """The images to validate on, in the same form and with the same classes. Without it, `validation_fraction` of
    `images`."""

    validation_fraction: Annotated[float | None, Field(gt=0.0, lt=1.0), example(0.2, "share of the images")] = None
    """Share of `images` held out for validation; by default 0.1. A hash of their bytes selects them, so the split is
    the same on every machine, and equal images are always in the same split. Not allowed with `validation`."""

    num_classes: Annotated[int, Field(ge=2, le=2**20), example(1000, "classes")]
    """How many classes the images have. growctl refuses images that have another number."""

    on_bad_record: Annotated[BadRecordPolicy, example("skip")] = "stop"
    """What an image that cannot be decoded does, or a sample of a shard without a class. `stop` ends with an error that
    names it; `skip` leaves it out and counts it."""

    most_bad_records: Annotated[PositiveInt | None, example(1000, "records")] = None
    """How many bad records `on_bad_record: skip` leaves out before it stops after all; 100 by default."""

    workers: Annotated[PositiveInt | None, example(4, "processes")] = None
    """Processes that check the images, each some files at a time; by default one per core. This changes only the
    time."""

    _most_bad_records_needs_skip = model_validator(mode="after")(require_skip)

    @model_validator(mode="after")
    def _one_source_of_validation(self) -> Self:
        if self.validation is not None and self.validation_fraction is not None:
            raise ValueError(
                f"validation_fraction ({self.validation_fraction}) holds out a part of images, but validation"
                f" ({self.validation!r}) names others: leave out one of the two"
            )
        return self

    @property
    def held_out(self) -> float:
        """The share of `images` that is for validation."""
        return 0.0 if self.validation else self.validation_fraction or DEFAULT_VALIDATION_FRACTION


class RandAugment(Strict):
    """RandAugment (arXiv 1909.13719), as in torchvision."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    num_ops: Annotated[PositiveInt, example(2, "operations")] = 2
    """Operations on each image, drawn from fourteen."""

    magnitude: Annotated[NonNegativeInt, Field(le=30), example(9, "of 30")] = 9
    """Strength of the operations, in thirtieths of the strongest."""


class Augmentation(Strict):
    """What training does to an image, and to its target. Evaluation does none of it."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)

    crop: Annotated[
        list[Share] | None, Field(min_length=2, max_length=2), example([0.08, 1.0], "least and most share of the area")
    ] = None
    """A random part of the image, with an aspect ratio from 3/4 to 4/3, resized to the model's size. By default the
    shorter side is resized and the centre cut out, as in evaluation."""

    flip: Annotated[bool, example(True)] = False
    """Whether half of the images are mirrored, left to right."""

    randaugment: RandAugment | None = None
    """Random operations on colours and geometry; needs torchvision: pip install 'growctl[images]'."""

    erasing: Annotated[Probability, example(0.25, "probability")] = 0.0
    """Random erasing (arXiv 1708.04896): how often a rectangle of 2 to 33 % of the image is filled with grey."""

    mixup: Annotated[Alpha, example(0.8, "alpha")] = 0.0
    """Mixup (arXiv 1710.09412): pairs of images are blended, with a share from a beta distribution of this alpha."""

    cutmix: Annotated[Alpha, example(1.0, "alpha")] = 0.0
    """CutMix (arXiv 1905.04899): pairs of images exchange a rectangle, with its area from a beta distribution of this
    alpha. With `mixup` too, each pair gets one of the two, at random."""

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0), example(0.1, "probability")] = 0.0
    """The probability of a target that is spread evenly over all classes."""

    @model_validator(mode="after")
    def _least_is_less(self) -> Self:
        if self.crop and self.crop[0] > self.crop[1]:
            raise ValueError(f"crop ({self.crop}) must have the least share before the most")
        return self

    @property
    def mixes(self) -> bool:
        """Whether pairs of images are mixed."""
        return bool(self.mixup or self.cutmix)
