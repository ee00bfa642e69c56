"""stages/images/samples.py and pixels.py: the order of samples, and what a model sees of an image."""

import pickle
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch.nn import functional as F

from model.config import ImageInput
from model.errors import UserError
from stages.augmentation import Augmentation, RandAugment
from stages.data.errors import DataError
from stages.images.pixels import Augmenter, scaled
from stages.images.prepare import prepare_images
from stages.images.samples import SplitImages, TrainingImages
from stages.images.spec import DIGITS, ImageSpec
from tests.stages.images.test_prepare import write_folders

DIGIT = ImageInput(size=8, patch=2, channels=1)
EVERYTHING = Augmentation(crop=[0.5, 1.0], flip=True, erasing=0.5, mixup=0.8, cutmix=1.0, label_smoothing=0.1)
SEED, BICUBIC = 7, Image.Resampling.BICUBIC


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_images(ImageSpec(source=DIGITS, num_classes=10), tmp_path_factory.mktemp("datasets"))


def test_each_epoch_has_every_image_once_in_an_order_of_its_own_whatever_the_micro_batch(digits):
    samples = TrainingImages(digits, DIGIT, SEED)
    epoch = samples.num_images
    numbers = samples.numbers(0, 2 * epoch)
    assert sorted(numbers[:epoch]) == sorted(numbers[epoch:]) == list(range(epoch))
    for other in (numbers[epoch:], TrainingImages(digits, DIGIT, SEED + 1).numbers(0, epoch)):
        assert (numbers[:epoch] != other).mean() > 0.9
    assert numbers[:6].tolist() == [346, 1549, 683, 1585, 351, 1086], "a resumed run would read others"
    for micro in (1, 6, 181):
        read = [samples.numbers(first, micro) for first in range(0, 2 * epoch, micro)]
        assert np.array_equal(np.concatenate(read)[: 2 * epoch], numbers)


@given(first=st.integers(0, 10**12), micro=st.integers(1, 4), ranks=st.integers(1, 3), augment=st.booleans())
def test_samples_have_the_same_bits_for_any_micro_batch_and_any_number_of_ranks(digits, first, micro, ranks, augment):
    samples = TrainingImages(digits, DIGIT, SEED, EVERYTHING if augment else None)
    whole = samples.batch(first, 2 * micro * ranks)
    loaders = [pickle.loads(pickle.dumps(samples)) for _ in range(ranks)]
    parts = [loaders[place % ranks].batch(first + place * micro, micro) for place in range(2 * ranks)]
    for expected, *found in zip(whole, *parts, strict=True):
        np.testing.assert_array_equal(np.concatenate(found), expected)


@given(first=st.integers(0, 10**6), alpha=st.floats(0.2, 5.0))
@settings(max_examples=40)
def test_pairs_are_mixed_as_their_targets_say(digits, first, alpha):
    first -= first % 2
    plain, labels = TrainingImages(digits, DIGIT, SEED).batch(first, 2)
    for kind in ("mixup", "cutmix"):
        mixed, targets = TrainingImages(digits, DIGIT, SEED, Augmentation(**{kind: alpha})).batch(first, 2)
        kept = targets[0, labels[0]] if labels[0] != labels[1] else None
        np.testing.assert_allclose(targets.sum(1), 1, atol=1e-6)
        if kind == "cutmix":
            swapped = (mixed == plain[::-1]) & (mixed != plain)
            assert ((mixed == plain) | swapped).all(), "each pixel is that of one of the two"
            assert kept is None or swapped.reshape(2, -1).mean(1).max() <= 1 - kept + 1e-6
        elif kept is not None:
            np.testing.assert_allclose(mixed, kept * plain + (1 - kept) * plain[::-1], atol=1e-5)


def test_smoothed_targets_give_the_loss_of_pytorch_with_label_smoothing(digits):
    (_, labels), (_, targets) = (
        TrainingImages(digits, DIGIT, SEED, Augmentation(label_smoothing=share)).batch(0, 32) for share in (0.0, 0.1)
    )
    logits = torch.randn(32, 10)
    expected = F.cross_entropy(logits, torch.from_numpy(labels), label_smoothing=0.1)
    torch.testing.assert_close(F.cross_entropy(logits, torch.from_numpy(targets)), expected)


def test_evaluation_reads_each_image_once_as_pillow_resizes_and_cuts_it(tmp_path):
    root = write_folders(tmp_path / "train")  # 20 x 16 pixels
    dataset = prepare_images(ImageSpec(source=str(root), num_classes=3, validation=str(root)), tmp_path / "datasets")
    paths = sorted(path for path in root.rglob("*.*g"))
    cases: list[tuple[int, Literal[1, 3], int, int]] = [(12, 3, 15, 1), (16, 1, 20, 2), (24, 3, 30, 3)]
    for size, channels, wide, left in cases:
        images = SplitImages(dataset, "validation", ImageInput(size=size, patch=4, channels=channels))
        batches = [images.batch(start, stop) for start, stop in images.batches(7)]
        pixels, labels = (np.concatenate(each) for each in zip(*batches, strict=True))
        assert labels.tolist() == [0] * 12 + [1] * 12 + [2] * 12
        for path, found in zip(paths, pixels, strict=True):
            whole = Image.open(path).convert("RGB" if channels == 3 else "L").resize((wide, size), BICUBIC)
            levels = np.asarray(whole.crop((left, 0, left + size, size)), np.float64) / 255
            np.testing.assert_allclose(found, (np.atleast_3d(levels).transpose(2, 0, 1) - 0.5) / 0.5, atol=1e-6)
    few = SplitImages(dataset, "validation", ImageInput(size=16, patch=4), max_images=6)
    assert few.batch(0, 6)[1].tolist() == [0, 0, 1, 1, 2, 2], "spread evenly"
    (dataset / "validation.images").write_bytes(b"\0" * (dataset / "validation.images").stat().st_size)
    with pytest.raises(DataError, match=r"^image 0 of validation in .* cannot be read \(.*\)\. Prepare the dataset"):
        few.batch(0, 1)


@given(st.integers(0, 2**32))
def test_a_part_of_an_image_has_a_share_and_a_shape_in_bounds(seed):
    rows, columns = np.mgrid[0:200, 0:250].astype(np.uint8)
    picture = Image.fromarray(np.stack([columns, rows, rows], axis=-1))
    augmenter = Augmenter(Augmentation(crop=[0.2, 0.6], flip=True), 50)
    pixels_CHW = (augmenter.pixels(picture, np.random.default_rng(seed)) + 1) * 127.5
    width, height = (abs(each[-1] - each[0]) * 50 / 49 for each in (pixels_CHW[0, 25], pixels_CHW[1, :, 25]))
    assert 0.19 < width * height / (200 * 250) < 0.61
    assert 0.7 < width / height < 1.4
    erased = Augmenter(Augmentation(erasing=1.0), 50).pixels(picture, np.random.default_rng(seed)) == 0
    assert 0.01 < erased.all(axis=0).mean() < 0.36


class Chosen(np.random.Generator):
    """Draws one operation of torchvision's list, and no change of sign."""

    number = 0
    integers = lambda self, *_: self.number  # type: ignore[assignment]  # noqa: E731
    random = lambda self, *_: 0.9  # type: ignore[assignment]  # noqa: E731


def test_randaugment_does_what_pillow_does_and_leaves_torchs_generator_alone():
    try:
        import torchvision.transforms.v2  # noqa: F401
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported: {error}")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8))
    augmenter, rng = Augmenter(Augmentation(randaugment=RandAugment(num_ops=1)), 32), Chosen(np.random.PCG64())
    state = torch.get_rng_state()
    enhanced = [ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness]
    by_pillow = [picture.rotate(9), *(kind(picture).enhance(1.27) for kind in enhanced)]
    by_pillow += [ImageOps.posterize(picture, 7), ImageOps.solarize(picture, 179)]
    by_pillow += [ImageOps.autocontrast(picture), ImageOps.equalize(picture)]
    for rng.number, expected in enumerate(by_pillow, start=5):  # after the identity, two shears, two translations
        np.testing.assert_array_equal(augmenter.pixels(picture, rng), scaled(expected), str(rng.number))
    assert torch.equal(torch.get_rng_state(), state)


def test_randaugment_without_torchvision_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    with pytest.raises(UserError, match=r"^data\.images\.augmentation\.randaugment: .*pip install 'growctl\[images\]'"):
        Augmenter(Augmentation(randaugment=RandAugment()), 8)
