"""Training and evaluation samples of a dataset of images.

A training sample depends only on the seed, the dataset, the augmentation and its global index. It does not depend on
the number of ranks, on the micro-batch, or on where a run was stopped.

Shapes: B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from model.config import ImageInput
from stages.augmentation import Augmentation
from stages.data.dataset import require_files
from stages.data.errors import reading
from stages.data.order import WindowOrder
from stages.data.spec import SplitName
from stages.data.tokens import Int64Array, mapped
from stages.images.dataset import INDEX, read_image_manifest
from stages.images.pixels import Augmenter, FloatArray, centre, decoded, scaled

if TYPE_CHECKING:
    from PIL.Image import Image


class StoredImages:
    """The encoded images of one split, memory-mapped."""

    def __init__(self, dataset_dir: Path, split: SplitName) -> None:
        """Raises DataError if a file is missing, or if its size differs from the manifest."""
        self._opened, files = (dataset_dir, split), read_image_manifest(dataset_dir).splits[split].files
        require_files(dataset_dir, files, hashes=False)
        self._bytes = mapped(dataset_dir / files[0].name, np.uint8)
        index = np.fromfile(dataset_dir / files[1].name, INDEX)
        self._ends = np.concatenate([[0], index["end"]]).astype(np.int64)
        self.labels = index["label"].astype(np.int64)
        """The class of each image."""

    def picture(self, number: int, channels: int) -> "Image":
        """One image, decoded. Raises DataError if it is damaged."""
        with reading(f"image {number} of {self._opened[1]} in {self._opened[0]}", "prepare the dataset again"):
            return decoded(self._bytes[self._ends[number] : self._ends[number + 1]].tobytes(), channels)


class TrainingImages:
    """The train split as a sequence of samples without an end: every image once an epoch, in an order of its own."""

    def __init__(
        self,
        dataset_dir: Path,
        image: ImageInput,
        seed: int,
        augmentation: Augmentation | None = None,
        num_threads: int = 1,
    ) -> None:
        """Opens the dataset. `num_threads` decode and augment; the samples are the same.

        Raises DataError if it is damaged, UserError if torchvision is needed and missing.
        """
        self._each = in_threads(num_threads)
        self.image, self.augmentation, self._seed = image, augmentation or Augmentation(), seed
        self._augmenter = Augmenter(self.augmentation, image.size)
        self.num_classes = read_image_manifest(dataset_dir).spec.num_classes
        self._stored = StoredImages(dataset_dir, "train")
        self.num_images = len(self._stored.labels)
        """Images of an epoch."""
        self._order = WindowOrder([self.num_images], 1, seed)

    def numbers(self, first_index: int, count: int) -> Int64Array:
        """Which of the dataset's images each of `count` samples is: (count,)."""
        return self._order.windows(np.zeros(count, np.int64), np.arange(first_index, first_index + count))

    def batch(self, first_index: int, count: int) -> tuple[FloatArray, Int64Array | FloatArray]:
        """Samples `first_index` to `first_index + count`: pixels (B, C, H, W) from -1 to 1, and their classes (B,).

        With label smoothing, mixup or CutMix, the targets are probabilities: (B, K). The samples 2 k and 2 k + 1 are
        mixed with each other; a batch that has only one of them reads the other too.
        """
        settings, before = self.augmentation, first_index % 2 if self.augmentation.mixes else 0
        start = first_index - before
        numbers = self.numbers(start, before + count + ((first_index + count) % 2 if settings.mixes else 0))
        pixels_BCHW = np.stack([*self._each(self._pixels, numbers.tolist(), range(start, start + len(numbers)))])
        labels_B = self._stored.labels[numbers]
        if not (settings.mixes or settings.label_smoothing):
            return pixels_BCHW, labels_B
        spread = settings.label_smoothing / self.num_classes
        targets_BK = np.full((len(numbers), self.num_classes), spread, np.float32)
        targets_BK[np.arange(len(numbers)), labels_B] += 1 - settings.label_smoothing
        for place in range(0, len(numbers) if settings.mixes else 0, 2):
            pair = slice(place, place + 2)
            self._augmenter.mix(pixels_BCHW[pair], targets_BK[pair], self._random(1, start + place))
        return pixels_BCHW[before : before + count], targets_BK[before : before + count]

    def _pixels(self, number: int, index: int) -> FloatArray:
        picture = self._stored.picture(number, self.image.channels)
        return self._augmenter.pixels(picture, self._random(0, index))

    def _random(self, stream: int, index: int) -> np.random.Generator:
        return np.random.default_rng([stream, self._seed, index])


class SplitImages:
    """A split as evaluations read it, in its own order; with `max_images`, that many spread evenly over it."""

    def __init__(
        self,
        dataset_dir: Path,
        split: SplitName,
        image: ImageInput,
        max_images: int | None = None,
        num_threads: int = 1,
    ) -> None:
        """Opens the split. `num_threads` decode. Raises DataError if it is damaged."""
        self._each = in_threads(num_threads)
        self.image, self._stored = image, StoredImages(dataset_dir, split)
        total = len(self._stored.labels)
        count = min(total, max_images or total)
        self._numbers = np.arange(count) * total // count

    def __len__(self) -> int:
        return len(self._numbers)

    def batches(self, batch_size: int) -> list[tuple[int, int]]:
        """(start, stop) of batches that cover all images."""
        return [(start, min(start + batch_size, len(self))) for start in range(0, len(self), batch_size)]

    def batch(self, start: int, stop: int) -> tuple[FloatArray, Int64Array]:
        """Images `start` to `stop`: pixels (B, C, H, W) from -1 to 1, and their classes (B,)."""
        numbers = self._numbers[start:stop]
        return np.stack([*self._each(self._pixels, numbers.tolist())]), self._stored.labels[numbers]

    def _pixels(self, number: int) -> FloatArray:
        return scaled(centre(self._stored.picture(number, self.image.channels), self.image.size))


def in_threads(num_threads: int) -> Callable[..., Iterable[Any]]:
    """`map`, by several threads if there are to be several: Pillow decodes and resizes without Python's lock."""
    return map if num_threads < 2 else ThreadPoolExecutor(num_threads, thread_name_prefix="images").map
