"""Pixels of images: decoded, cut to a model's size, and augmented.

Every random number comes from the caller's generator. torch's own is shared with training: samples that a thread reads
ahead would differ from one run to the next.

Shapes: B batch, C channels, H height, W width, K classes.
"""

import math
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from model.errors import UserError
from stages.images.spec import Augmentation, RandAugment

FloatArray = npt.NDArray[np.float32]

ASPECT_RATIOS = (3 / 4, 4 / 3)
"""Of a random part of an image, width by height."""
ERASED_SHARES, ERASED_RATIOS = (0.02, 0.33), (0.3, 10 / 3)
TRIES = 10
MAGNITUDES = 31


def decoded(encoded: bytes, channels: int = 3) -> Image.Image:
    """The image in the bytes of a file: RGB, or with one channel its luminance. Raises what Pillow raises."""
    with Image.open(BytesIO(encoded)) as picture:
        return picture.convert("RGB" if channels == 3 else "L")


def centre(picture: Image.Image, size: int) -> Image.Image:
    """The middle square of an image whose shorter side is resized to `size` pixels."""
    if min(picture.size) != size:
        width, height = (int(size * side / min(picture.size)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    left, top = ((side - size) // 2 for side in picture.size)
    return picture.crop((left, top, left + size, top + size))


def scaled(picture: Image.Image) -> FloatArray:
    """Its pixels from -1 to 1: (C, H, W)."""
    pixels_HWC = np.asarray(picture, np.float32).reshape(picture.height, picture.width, -1)
    return np.ascontiguousarray(pixels_HWC.transpose(2, 0, 1) / np.float32(127.5) - np.float32(1))


def augmented(picture: Image.Image, size: int, augmentation: Augmentation, rng: np.random.Generator) -> FloatArray:
    """The pixels of one image as training sees it, before pairs are mixed: (C, H, W)."""
    part = augmentation.crop and _rectangle(rng, picture.height, picture.width, augmentation.crop, ASPECT_RATIOS)
    if part:
        top, left, bottom, right = part
        picture = picture.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, right, bottom))
    else:
        picture = centre(picture, size)
    if augmentation.flip and rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if augmentation.randaugment:
        picture = _random_operations(picture, augmentation.randaugment, rng)
    pixels_CHW = scaled(picture)
    if rng.random() < augmentation.erasing and (part := _rectangle(rng, size, size, ERASED_SHARES, ERASED_RATIOS)):
        top, left, bottom, right = part
        pixels_CHW[:, top:bottom, left:right] = 0
    return pixels_CHW


def mix_pair(
    pixels_2CHW: FloatArray, targets_2K: FloatArray, augmentation: Augmentation, rng: np.random.Generator
) -> None:
    """Mixes two images and their targets with each other, in place: by mixup or, in their rectangles, by CutMix."""
    cuts = augmentation.cutmix and (not augmentation.mixup or rng.random() < 0.5)
    alpha = augmentation.cutmix if cuts else augmentation.mixup
    kept = np.float32(rng.beta(alpha, alpha))
    height, width = pixels_2CHW.shape[2:]
    top, left, bottom, right = 0, 0, height, width
    if cuts:
        half = math.sqrt(1 - kept) / 2
        y, x = int(rng.integers(height)), int(rng.integers(width))
        top, bottom = max(0, y - int(half * height)), min(height, y + int(half * height))
        left, right = max(0, x - int(half * width)), min(width, x + int(half * width))
        pixels_2CHW[:, :, top:bottom, left:right] = pixels_2CHW[::-1, :, top:bottom, left:right].copy()
        kept = np.float32(1 - (bottom - top) * (right - left) / (height * width))
    else:
        pixels_2CHW[:] = kept * pixels_2CHW + (1 - kept) * pixels_2CHW[::-1]
    targets_2K[:] = kept * targets_2K + (1 - kept) * targets_2K[::-1]


def _rectangle(
    rng: np.random.Generator, height: int, width: int, shares: Any, ratios: tuple[float, float]
) -> tuple[int, int, int, int] | None:
    """Top, left, bottom and right of a random rectangle with a share of the area; None if none fits in some tries."""
    for _ in range(TRIES):
        area, ratio = (
            height * width * rng.uniform(*shares),
            math.exp(rng.uniform(math.log(ratios[0]), math.log(ratios[1]))),
        )
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            return top, left, top + h, left + w
    return None


def torchvision_transforms() -> Any:
    """torchvision's transforms v2. Raises UserError if they cannot be imported."""
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError, OSError) as error:  # the last two from a build for another torch
        raise UserError(
            f"data.augmentation.randaugment: needs torchvision, which cannot be imported ({error}); pip install"
            " 'growctl[images]', with a build for the installed torch"
        ) from error
    return v2


def _random_operations(picture: Image.Image, settings: RandAugment, rng: np.random.Generator) -> Image.Image:
    """torchvision's RandAugment, with random numbers from `rng`."""
    transform = torchvision_transforms().RandAugment(settings.num_ops, settings.magnitude, MAGNITUDES)
    operations = list(transform._AUGMENTATION_SPACE.items())
    for _ in range(settings.num_ops):
        name, (levels_of, is_signed) = operations[rng.integers(len(operations))]
        levels = levels_of(MAGNITUDES, picture.height, picture.width)
        level = 0.0 if levels is None else float(levels[settings.magnitude])
        if is_signed and rng.random() < 0.5:
            level = -level
        picture = transform._apply_image_or_video_transform(
            picture, name, level, interpolation=transform.interpolation, fill=transform._fill
        )
    return picture
