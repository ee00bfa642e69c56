"""Training and evaluation samples of a dataset of images.

A training sample depends only on the seed, the dataset, the augmentation and its global index. It does not depend on
the number of ranks, on the micro-batch, or on where a run was stopped.

Shapes: B batch, C channels, H height, W width, K classes.
"""

from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from model.config import ImageInput
from stages.data.dataset import require_files
from stages.data.errors import DataError, reading
from stages.data.order import Blocks, WindowOrder
from stages.data.spec import SplitName
from stages.data.tokens import Int64Array, mapped
from stages.images.dataset import INDEX, read_image_manifest
from stages.images.pixels import FloatArray, augmented, centre, decoded, mix_pair, scaled, torchvision_transforms
from stages.images.spec import Augmentation

Targets = npt.NDArray[np.int64] | FloatArray


class StoredImages:
    """The encoded images of one split, memory-mapped. Can be pickled: whoever loads it opens the dataset again."""

    def __init__(self, dataset_dir: Path, split: SplitName) -> None:
        """Raises DataError if a file is missing, or if its size differs from the manifest."""
        self._opened = (dataset_dir, split)
        described = read_image_manifest(dataset_dir).splits[split]
        require_files(dataset_dir, described.files, hashes=False)
        indices = [np.fromfile(dataset_dir / file.name, INDEX) for file in described.files[1::2]]
        self._shards = [mapped(dataset_dir / file.name, np.uint8) for file in described.files[::2]]
        self._firsts = list(accumulate(map(len, indices), initial=0))
        """The number of each shard's first image, and that of all images."""
        self._ends = [np.concatenate([[0], index["end"]]).astype(np.int64) for index in indices]
        self.labels = np.concatenate([np.empty(0, np.int64), *(index["label"] for index in indices)]).astype(np.int64)
        """The class of each image."""
        if len(self) != described.num_images:
            raise DataError(f"{dataset_dir} is damaged: its {split} files do not hold {described.num_images} images")

    def __reduce__(self) -> tuple[type["StoredImages"], tuple[Path, SplitName]]:
        return StoredImages, self._opened

    def __len__(self) -> int:
        return len(self.labels)

    def picture(self, number: int, channels: int) -> Image.Image:
        """One image, decoded. Raises DataError if it is damaged."""
        with reading(
            f"image {number} of the {self._opened[1]} split of {self._opened[0]}", "prepare the dataset again"
        ):
            return decoded(self.encoded(number), channels)

    def encoded(self, number: int) -> bytes:
        """The bytes of one image as its file had them."""
        shard = int(np.searchsorted(self._firsts, number, side="right")) - 1
        place = number - self._firsts[shard]
        start, end = self._ends[shard][place : place + 2]
        return self._shards[shard][start:end].tobytes()


class TrainingImages:
    """The train split as a sequence of samples without an end: every image once an epoch, in an order of its own."""

    def __init__(
        self, dataset_dir: Path, image: ImageInput, seed: int, augmentation: Augmentation | None = None
    ) -> None:
        """Opens the dataset. Raises DataError if it is damaged, UserError if torchvision is needed and missing."""
        self.image, self.augmentation, self._seed = image, augmentation or Augmentation(), seed
        if self.augmentation.randaugment:
            torchvision_transforms()
        self.num_classes = read_image_manifest(dataset_dir).spec.num_classes
        self._stored = StoredImages(dataset_dir, "train")
        self._order = WindowOrder([len(self._stored)], 1, seed)
        self._blocks = Blocks(self._in_order)

    @property
    def num_images(self) -> int:
        """Images of an epoch."""
        return len(self._stored)

    def numbers(self, first_index: int, count: int) -> Int64Array:
        """Which of the dataset's images each of `count` samples is: (count,)."""
        return self._blocks.read(first_index, count)

    def _in_order(self, first_index: int, count: int) -> Int64Array:
        return self._order.windows(np.zeros(count, np.int64), np.arange(first_index, first_index + count))

    def batch(self, first_index: int, count: int) -> tuple[FloatArray, Targets]:
        """Samples `first_index` to `first_index + count`: pixels (B, C, H, W) from -1 to 1, and their classes (B,).

        With label smoothing, mixup or CutMix, the targets are probabilities: (B, K). The samples 2 k and 2 k + 1 are
        mixed with each other; a batch that has only one of them reads the other too.
        """
        start, stop, rules = first_index, first_index + count, self.augmentation
        if rules.mixes:
            start, stop = start - start % 2, stop + stop % 2
        numbers = self.numbers(start, stop - start)
        pixels_BCHW = np.empty((len(numbers), self.image.channels, self.image.size, self.image.size), np.float32)
        for place, number in enumerate(numbers.tolist()):
            picture = self._stored.picture(number, self.image.channels)
            pixels_BCHW[place] = augmented(picture, self.image.size, rules, self._random(0, start + place))
        labels_B = self._stored.labels[numbers]
        if not (rules.mixes or rules.label_smoothing):
            return pixels_BCHW, labels_B
        targets_BK = np.full((len(numbers), self.num_classes), rules.label_smoothing / self.num_classes, np.float32)
        targets_BK[np.arange(len(numbers)), labels_B] += 1 - rules.label_smoothing
        for place in range(0, len(numbers) if rules.mixes else 0, 2):
            pair = slice(place, place + 2)
            mix_pair(pixels_BCHW[pair], targets_BK[pair], rules, self._random(1, start + place))
        wanted = slice(first_index - start, first_index - start + count)
        return pixels_BCHW[wanted], targets_BK[wanted]

    def _random(self, stream: int, index: int) -> np.random.Generator:
        return np.random.default_rng([stream, self._seed, index])


class EvaluationImages:
    """The validation split in the order of the dataset; with `max_images`, that many spread evenly over it."""

    def __init__(self, dataset_dir: Path, image: ImageInput, max_images: int | None = None) -> None:
        """Opens the split. Raises DataError if it is damaged."""
        self.image = image
        self._stored = StoredImages(dataset_dir, "validation")
        total = len(self._stored)
        count = min(total, max_images or total)
        self._numbers = np.arange(count) * total // count

    def __len__(self) -> int:
        return len(self._numbers)

    def batches(self, batch_size: int) -> list[tuple[int, int]]:
        """(start, stop) of batches that cover all images."""
        return [(start, min(start + batch_size, len(self))) for start in range(0, len(self), batch_size)]

    def batch(self, start: int, stop: int) -> tuple[FloatArray, Int64Array]:
        """Images `start` to `stop`: pixels (B, C, H, W) from -1 to 1, and their classes (B,)."""
        numbers, size = self._numbers[start:stop], self.image.size
        pictures = (self._stored.picture(number, self.image.channels) for number in numbers.tolist())
        return np.stack([scaled(centre(picture, size)) for picture in pictures]), self._stored.labels[numbers]
