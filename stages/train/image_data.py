"""Images as a task: the training samples of one rank, and the share of validation images that a model gets right.

Shapes: B micro-batch, C channels, S height and width, K classes.
"""

import math
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from model.images import class_scores
from stages.images.dataset import read_image_manifest
from stages.images.samples import SplitImages, TrainingImages
from stages.metrics import Record
from stages.spec import TrainSpec
from stages.train.rank_data import Arrays, RankData, read_ahead

LARGE_IMAGE = 64
"""Pixels from which on several threads decode images: smaller ones take less time than handing them over."""


class ImageData(RankData):
    """The class of an image."""

    def __init__(self, spec: TrainSpec, rank: int, world_size: int, device: torch.device) -> None:
        """Opens the dataset. Raises DataError if a file is missing."""
        super().__init__(spec, rank, world_size, device)
        dataset, image = Path(spec.dataset), spec.model.image
        assert image is not None, "a model of images"
        self.manifest = read_image_manifest(dataset)
        self.fingerprint = self.manifest.fingerprint
        num_threads = num_readers() if image.size >= LARGE_IMAGE else 1
        self.samples = TrainingImages(dataset, image, spec.seed, spec.augmentation, num_threads)
        self.images = SplitImages(dataset, "validation", image, spec.evaluation_sequences, num_threads)

    def read(self, first_sample: int) -> Arrays:
        """Pixels of a micro-batch, (B, C, S, S) float32, and its classes: (B,) int64, or shares of them: (B, K)."""
        return self.samples.batch(first_sample, self.spec.micro_batch_size)

    def expect(self, first_sample: int) -> None:
        """Nothing: a dataset of images lies on this machine."""

    def facts(self) -> dict[str, Any]:
        """The names of the classes."""
        return {"tokenizer_sha256": None, "classes": self.manifest.classes}

    def evaluation(self, run: Callable[..., Tensor], step: int) -> Record:
        """What an EvaluationLine says of the logits `run(pixels)`. Collective.

        Each rank takes every world-size-th batch. All ranks run the same number of batches, as ZeRO-3 requires; a rank
        without further batches repeats the first and does not count it. Sums are float64.
        """
        every = self.images.batches(self.spec.micro_batch_size)
        mine = every[self.rank :: self.world_size]
        num_batches = math.ceil(len(every) / self.world_size)
        ranges = [*mine, *[every[0]] * (num_batches - len(mine))]
        sums_3 = torch.zeros(3, dtype=torch.float64, device=self.device)
        batches = read_ahead(lambda number: self.images.batch(*ranges[number]), range(num_batches), self.device)
        with closing(batches), torch.no_grad():
            for number, (pixels_BCSS, class_B) in enumerate(batches):
                loss_B, ahead_B = class_scores(run(pixels_BCSS), class_B)
                if number < len(mine):
                    sums_3 += torch.stack([loss_B.sum(), (ahead_B < 1).sum(), (ahead_B < 5).sum()])
        dist.all_reduce(sums_3)
        loss, top1, top5 = (sums_3 / len(self.images)).tolist()
        return {
            "loss": loss,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
            "bits_per_byte": None,
            "num_tokens": len(self.images) * self.spec.sequence_length,
            "top1": top1,
            "top5": top5,
            "by_source": None,
        }


def num_readers() -> int:
    """Threads that decode images for this rank: its share of the machine's cores."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_SIZE", 1)))
