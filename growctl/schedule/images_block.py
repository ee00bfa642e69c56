"""The block of a schedule for images to train on."""

from pydantic import ConfigDict

from stages.augmentation import Augmentation
from stages.images.spec import DIGITS, ImageSpec


class ImagesBlock(ImageSpec):
    """The images to train on, in place of a text."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)

    augmentation: Augmentation = Augmentation()
    """What training does to an image before the model reads it; by default nothing."""

    def spec(self) -> ImageSpec:
        """What to prepare."""
        return ImageSpec(**self.model_dump(include=set(ImageSpec.model_fields)))

    def places(self) -> dict[str, str]:
        """The keys that name images outside growctl, with their values."""
        places = {"source": self.source, "validation": self.validation}
        return {key: place for key, place in places.items() if place and place != DIGITS}
