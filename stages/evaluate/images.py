"""The scores of a checkpoint on a split of a dataset of images.

Shapes: B batch, C channels, S height and width of an image.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from model.errors import Failure
from model.images import class_scores
from stages.checkpoint.pretrained import Pretrained
from stages.data.spec import SplitName
from stages.evaluate.results import Score
from stages.images.either import require_classes
from stages.images.samples import SplitImages


def image_scores(
    checkpoint: Pretrained,
    dataset: Path,
    split: SplitName,
    *,
    max_images: int | None,
    batch_size: int,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> Iterator[Score]:
    """Yields the loss in nats per image, and the shares of images whose class is the likeliest or among five.

    Raises DataError if the split is damaged or has other classes than the model, and Failure if the loss is not finite.
    """
    image = checkpoint.manifest.model.image
    assert image is not None, "a model of images"
    require_classes(dataset, checkpoint.manifest.classes, checkpoint.directory)
    images, device = SplitImages(dataset, split, image, max_images), checkpoint.model.embedding.weight.device
    losses, ahead = [], []
    for start, stop in images.batches(batch_size):
        on_progress(start / len(images))
        pixels_BCSS, class_B = (torch.from_numpy(array).to(device) for array in images.batch(start, stop))
        with torch.inference_mode():
            loss_B, ahead_B = class_scores(checkpoint.model(pixels_BCSS), class_B)
        losses.append(loss_B)
        ahead.append(ahead_B)
    ahead_N = torch.cat(ahead)
    figures = {"loss": torch.cat(losses)} | {f"top{n}": (ahead_N < n).double() for n in (1, 5)}
    for metric, value_N in figures.items():
        if not value_N.isfinite().all():
            raise Failure(f"{checkpoint.directory} gives losses that are not finite on these images")
        error = value_N.std().item() / math.sqrt(len(value_N)) if len(value_N) > 1 else None
        mean = value_N.mean().item()
        yield Score(task="images", metric=metric, value=mean, standard_error=error, num_samples=len(value_N))
