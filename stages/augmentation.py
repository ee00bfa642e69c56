"""What training does to images before the model reads them. Imports nothing slow."""

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, NonNegativeInt, PositiveInt

from model.strict import Strict, example

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Alpha = Annotated[float, Field(ge=0.0, le=100.0)]


def _rising(shares: list[float]) -> list[float]:
    if not 0 < shares[0] <= shares[1]:
        raise ValueError("must be the least share, above 0, and then the most")
    return shares


Shares = Annotated[list[Share], Field(min_length=2, max_length=2), AfterValidator(_rising)]


class RandAugment(Strict):
    """RandAugment (arXiv 1909.13719), as in torchvision; off by default."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    num_ops: Annotated[PositiveInt, example(2, "operations")] = 2
    """Operations on each image, drawn from fourteen."""
    magnitude: Annotated[NonNegativeInt, Field(le=30), example(9, "pure number")] = 9
    """Strength of the operations."""


class Augmentation(Strict):
    """How training changes images and their targets. Evaluation ignores these keys."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)

    crop: Annotated[Shares | None, example([0.08, 1.0], "shares")] = None
    """Smallest and largest shares of an image's area that a random crop covers. Crops have aspect ratios from 3/4 to
    4/3 and are resized to `model.image.size`. By default, as in evaluation, the shorter side is resized to this size
    and the centre cut out."""
    flip: Annotated[bool, example(True)] = False
    """Whether to mirror images, left to right, with probability 0.5."""
    randaugment: RandAugment | None = None
    """Random operations on colours and geometry; needs torchvision: `pip install 'growctl[images]'`."""
    erasing: Annotated[Share, example(0.25, "probability")] = 0.0
    """Probability of random erasing (arXiv 1708.04896), which fills a rectangle of 2 to 33 % of an image with grey."""
    mixup: Annotated[Alpha, example(0.8, "alpha")] = 0.0
    """Mixup: blends pairs of images, with shares from a beta distribution with this alpha (arXiv 1710.09412); 0 turns
    it off."""
    cutmix: Annotated[Alpha, example(1.0, "alpha")] = 0.0
    """CutMix: swaps a rectangle between two images; its share of the area comes from a beta distribution with this
    alpha (arXiv 1905.04899). 0 turns it off. If `mixup` is set too, each pair gets one of the two, at random."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0), example(0.1, "probability")] = 0.0
    """Share of a target's probability that is spread evenly over all classes."""

    @property
    def mixes(self) -> bool:
        """Whether pairs of images are mixed."""
        return bool(self.mixup or self.cutmix)
