"""Pixels of images: decoded, cut to a model's size, and augmented.

Every random number comes from the caller's generator. torch's own is shared with training: samples that a thread reads
ahead would differ from one run to the next.

Shapes: C channels, H height, W width, K classes.
"""

import math
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from model.errors import UserError
from stages.augmentation import Augmentation

try:
    from PIL import Image
except ModuleNotFoundError as error:
    raise UserError("images need Pillow: pip install 'growctl[images]'") from error

FloatArray = npt.NDArray[np.float32]

TRIES = 10
"""How often a random rectangle is drawn until one fits."""
MAGNITUDES = 31


def decoded(encoded: bytes, channels: int = 3) -> Image.Image:
    """The image in the bytes of a file: RGB, or with one channel its luminance. Raises what Pillow raises, and
    ValueError for more than 8 bits a channel, which Pillow would clip."""
    with Image.open(BytesIO(encoded)) as picture:
        if picture.mode[0] in "IF":
            raise ValueError(f"mode {picture.mode}: more than 8 bits a channel")
        return picture.convert("RGB" if channels == 3 else "L")


def centre(picture: Image.Image, size: int) -> Image.Image:
    """The middle square of an image whose shorter side is resized to `size` pixels."""
    if min(picture.size) != size:
        width, height = (size * side // min(picture.size) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    left, top = ((side - size) // 2 for side in picture.size)
    return picture.crop((left, top, left + size, top + size))


def scaled(picture: Image.Image) -> FloatArray:
    """Its pixels from -1 to 1: (C, H, W)."""
    pixels_HWC = np.asarray(picture, np.float32).reshape(picture.height, picture.width, -1)
    return pixels_HWC.transpose(2, 0, 1) / np.float32(127.5) - 1


class Augmenter:
    """What training does to single images, and to pairs of them. Can be pickled."""

    def __init__(self, settings: Augmentation, size: int) -> None:
        """Raises UserError if `settings` need torchvision and it cannot be imported."""
        self._settings, self._size = settings, size
        if operations := settings.randaugment:
            try:
                from torchvision.transforms import v2
            except (ImportError, RuntimeError, OSError) as error:  # the last two from a build for another torch
                raise UserError(
                    f"data.images.augmentation.randaugment: torchvision cannot be imported ({error}); pip install"
                    " 'growctl[images]', in a build for the installed torch"
                ) from error
            self._operations = v2.RandAugment(operations.num_ops, operations.magnitude, MAGNITUDES)

    def pixels(self, picture: Image.Image, rng: np.random.Generator) -> FloatArray:
        """One image as training sees it: (C, H, W)."""
        settings, size = self._settings, self._size
        if settings.crop and (part := _rectangle(rng, picture.height, picture.width, settings.crop, (3 / 4, 4 / 3))):
            top, left, bottom, right = part
            picture = picture.resize((size, size), Image.Resampling.BICUBIC, (left, top, right, bottom))
        else:
            picture = centre(picture, size)
        if settings.flip and rng.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if settings.randaugment:
            picture = self._operated(picture, rng)
        pixels_CHW = scaled(picture)
        if rng.random() < settings.erasing and (part := _rectangle(rng, size, size, [0.02, 0.33], (0.3, 10 / 3))):
            top, left, bottom, right = part
            pixels_CHW[:, top:bottom, left:right] = 0
        return pixels_CHW

    def _operated(self, picture: Image.Image, rng: np.random.Generator) -> Image.Image:
        """torchvision's RandAugment, which itself would draw from torch's generator."""
        operations: Any = self._operations
        space = list(operations._AUGMENTATION_SPACE.items())
        for _ in range(operations.num_ops):
            name, (magnitudes, is_signed) = space[rng.integers(len(space))]
            levels = magnitudes(MAGNITUDES, picture.height, picture.width)
            level = 0.0 if levels is None else float(levels[operations.magnitude])
            level = -level if is_signed and rng.random() < 0.5 else level
            how = {"interpolation": operations.interpolation, "fill": operations._fill}
            picture = operations._apply_image_or_video_transform(picture, name, level, **how)
        return picture

    def mix(self, pixels_2CHW: FloatArray, targets_2K: FloatArray, rng: np.random.Generator) -> None:
        """Mixes two images and their targets with each other, in place: by mixup, or in a rectangle by CutMix."""
        settings, (height, width) = self._settings, pixels_2CHW.shape[2:]
        cuts = settings.cutmix and (not settings.mixup or rng.random() < 0.5)
        alpha = settings.cutmix if cuts else settings.mixup
        kept = rng.beta(alpha, alpha)
        if cuts:
            half = math.sqrt(1 - kept) / 2
            y, x = rng.integers(height), rng.integers(width)
            rows = slice(max(0, y - int(half * height)), min(height, y + int(half * height)))
            columns = slice(max(0, x - int(half * width)), min(width, x + int(half * width)))
            pixels_2CHW[:, :, rows, columns] = pixels_2CHW[::-1, :, rows, columns]
            kept = 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / (height * width)
        else:
            pixels_2CHW[:] = kept * pixels_2CHW + (1 - kept) * pixels_2CHW[::-1]
        targets_2K[:] = kept * targets_2K + (1 - kept) * targets_2K[::-1]


def _rectangle(
    rng: np.random.Generator, height: int, width: int, shares: list[float], ratios: tuple[float, float]
) -> tuple[int, int, int, int] | None:
    """Top, left, bottom and right of a random rectangle with a share of the area; None if none fits."""
    for _ in range(TRIES):
        area = height * width * rng.uniform(shares[0], shares[1])
        ratio = math.exp(rng.uniform(math.log(ratios[0]), math.log(ratios[1])))
        rows, columns = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < rows <= height and 0 < columns <= width:
            top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
            return top, left, top + rows, left + columns
    return None
