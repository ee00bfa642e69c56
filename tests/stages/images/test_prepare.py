"""stages/images/prepare.py: what a dataset of images holds, and sources that are refused."""

import io
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from stages.data.errors import DataError, Interrupted
from stages.data.spec import SPLITS, SplitName
from stages.images import prepare as prepare_module
from stages.images.dataset import INDEX, prepared_images, read_image_manifest
from stages.images.either import check_any_dataset
from stages.images.pixels import decoded
from stages.images.prepare import prepare_images
from stages.images.spec import DIGITS, ImageSpec, in_braces
from tests.stages.unfinished import left

CLASSES = ("ant", "bee", "cat")


def encoded(number: int, kind: str = "PNG") -> bytes:
    """A picture of its own, 20 x 16 pixels."""
    pixels, content = np.random.default_rng(number).integers(0, 256, (4, 5, 3), np.uint8), io.BytesIO()
    Image.fromarray(pixels).resize((20, 16)).save(content, kind)
    return content.getvalue()


def write_folders(root: Path, per_class: int = 12) -> Path:
    """A folder for each class with JPEG and PNG files, some of them deeper, and a file that is no image."""
    for number in range(len(CLASSES) * per_class):
        kind, below = ("JPEG", "more") if number % 3 else ("PNG", ".")
        path = root / CLASSES[number // per_class] / below / f"{number % per_class:03d}.{kind.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number, kind=kind))
        (path.parent / "notes.txt").write_text("no picture")
    return root


def folder_samples(root: Path) -> list[tuple[str, dict[str, bytes]]]:
    """The pictures in class folders as samples of a shard: (name, content by ending), in the order of their paths."""
    samples = []
    for number, path in enumerate(sorted(root.rglob("*.*g"))):
        label = str(CLASSES.index(path.relative_to(root).parts[0])).encode()
        members = {path.suffix[1:]: path.read_bytes(), "cls" if number % 2 else "cls.txt": label, "json": b"{}"}
        samples.append((f"{number:04d}", members if number % 3 else dict(reversed(members.items()))))
    return samples


def write_shard(path: Path, samples: Iterable[tuple[str, dict[str, bytes]]]) -> Path:
    """A WebDataset shard of samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, members in samples:
            for ending, content in members.items():
                member = tarfile.TarInfo(f"{name}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def spec_of(images: Path | str, **settings: Any) -> ImageSpec:
    defaults: dict[str, Any] = {"source": str(images), "num_classes": 3, "validation_fraction": 0.3}
    return ImageSpec(**defaults | settings)


def content(dataset: Path, split: SplitName) -> list[tuple[bytes, int]]:
    """The bytes and the class of each image, in order."""
    index, images = np.fromfile(dataset / f"{split}.index", INDEX), (dataset / f"{split}.images").read_bytes()
    ends = index["end"].tolist()
    return [(images[a:b], label) for a, b, label in zip([0, *ends], ends, index["label"].tolist(), strict=False)]


def everything(dataset: Path) -> Counter[tuple[bytes, int]]:
    return Counter(each for split in SPLITS for each in content(dataset, split))


def folders(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir()) if directory.exists() else []


def test_the_digits_are_prepared_once_with_every_pixel_and_class(tmp_path):
    spec = ImageSpec(source=DIGITS, num_classes=10, workers=3)
    dataset, digits = prepare_images(spec, tmp_path), load_digits()
    manifest = check_any_dataset(dataset)
    levels = (digits.images * 255 / 16).round().astype(np.uint8)
    found = Counter((np.asarray(decoded(data, 1)).tobytes(), label) for data, label in everything(dataset).elements())
    assert found == Counter(zip(map(np.ndarray.tobytes, levels), digits.target.tolist(), strict=True))
    assert [manifest.splits[split].num_images for split in SPLITS] == [1629, 168]
    assert manifest.classes == tuple("0123456789")
    assert prepare_images(spec.model_copy(update={"workers": 1}), tmp_path) == dataset
    assert folders(tmp_path) == [dataset.name], "found again"
    assert [path for path, _ in prepared_images(spec, tmp_path)] == [dataset]


def test_folders_and_shards_of_the_same_images_give_the_same_images_and_classes(tmp_path):
    """In folders the order is that of the paths, and in shards that of the archives."""
    root, datasets = write_folders(tmp_path / "train"), tmp_path / "datasets"
    samples = folder_samples(root)[::-1]
    write_shard(tmp_path / "shards/a-00.tar", samples[:20])
    write_shard(tmp_path / "shards/a-01.tar.gz", samples[20:])
    fsspec.filesystem("memory").put(str(tmp_path / "shards"), "/somewhere/", recursive=True)
    expected = [(m.get("png") or m["jpeg"], int(m.get("cls") or m["cls.txt"])) for _, m in samples]
    by_folder = prepare_images(spec_of(root), datasets)
    assert read_image_manifest(by_folder).classes == CLASSES
    assert everything(by_folder) == Counter(expected)
    for source in ("shards", "shards/a-{00.tar,01.tar.gz}", "shards/a-*", "memory://somewhere/shards"):
        by_shard = prepare_images(spec_of(source if "://" in source else tmp_path / source), datasets)
        for split in SPLITS:
            same = content(by_folder, split)
            assert content(by_folder, split) == [each for each in reversed(expected) if each in same]
            assert content(by_shard, split) == [each for each in expected if each in same]
    assert in_braces("a{08..10}/{x,y}") == ["a08/x", "a08/y", "a09/x", "a09/y", "a10/x", "a10/y"]
    (tmp_path / "linked").symlink_to(root)
    assert prepare_images(spec_of(tmp_path / "linked"), datasets) == by_folder, "another name of it"


def test_images_to_validate_on_may_have_a_source_of_their_own(tmp_path):
    train, val = write_folders(tmp_path / "train"), write_folders(tmp_path / "val", 2)
    shard = write_shard(tmp_path / "val.tar", folder_samples(val))
    specs = [spec_of(train, validation=str(each)) for each in (val, shard)]
    manifests = [read_image_manifest(prepare_images(spec, tmp_path / "datasets")) for spec in specs]
    assert [manifests[0].splits[split].num_images for split in SPLITS] == [36, 6]
    assert manifests[0].fingerprint == manifests[1].fingerprint
    (val / "cat").rename(val / "cow")
    with pytest.raises(DataError, match=r"^data\.images\.validation: the class folders of .*val' must be those of"):
        prepare_images(specs[0], tmp_path / "datasets")


def broken_jpeg(root: Path) -> None:
    (root / "bee/005.jpeg").write_bytes(encoded(5, "JPEG")[:-90])


def broken_class(root: Path) -> None:
    for path in (root / "ant").rglob("*.*g"):
        path.write_bytes(b"")


def sample(**members: bytes) -> Callable[[Path], object]:
    """Makes a shard in the place of the folders, with a sample x/y besides."""
    return lambda root: write_shard(root / "a.tar", [*folder_samples(root), ("x/y", members)])


def cut_shard(root: Path) -> None:
    shard = write_shard(root / "a.tar", folder_samples(root))
    shard.write_bytes(shard.read_bytes()[:9000])


PNG, NO_CLASS = encoded(1), r"a\.tar sample x/y has no number of a class in a \.cls; repair or remove"
REFUSED: list[tuple[Callable[[Path], object], dict[str, Any], str]] = [
    (broken_jpeg, {}, r"images\.source: .*bee/005\.jpeg is no image \(.*truncated.*\); repair or remove"),
    (lambda root: Image.new("I;16", (4, 4)).save(root / "ant/x.png"), {}, r"ant/x\.png is no image \(mode I;16: more"),
    (lambda root: (root / "bee/x.png").write_bytes(b"?"), {}, r"bee/x\.png is no image \(no format that Pillow"),
    (lambda root: (root / "dog").mkdir(), {}, r"images\.source: .*: the class folder 'dog' has no images"),
    (lambda root: (root / "x.png").write_bytes(PNG), {}, r"train' must hold WebDataset shards"),
    (lambda root: root.rename(root.with_name("trains")), {}, r"train' does not exist; '.*trains' does$"),
    (str, {"num_classes": 4}, r"images\.num_classes: 4, but .*/train' has 3 class folders$"),
    (broken_class, {"on_bad_record": "skip"}, r"num_classes: 3, but 2 have images to train on$"),
    (str, {"validation_fraction": 1e-9}, r"images\.validation_fraction: 1e-09 leaves no images"),
    (sample(png=PNG, cls=b"3"), {}, r"num_classes: 3, but .*sample x/y is of class 3; the first is 0$"),
    (sample(png=PNG, json=b"{}"), {}, NO_CLASS),
    (sample(cls=b"1"), {}, r"a\.tar sample x/y is no image"),
    (cut_shard, {}, r"images\.source: .*a\.tar cannot be read \(.*\)$"),
]


@pytest.mark.parametrize(("change", "settings", "message"), REFUSED)
def test_a_source_that_cannot_be_used_is_refused_by_name_and_leaves_nothing(tmp_path, change, settings, message):
    change(write_folders(tmp_path / "train"))
    with pytest.raises(DataError, match=message):
        prepare_images(spec_of(tmp_path / "train", **settings), tmp_path / "datasets")
    assert folders(tmp_path / "datasets") == []


def test_bad_images_are_skipped_and_counted_up_to_a_limit(tmp_path):
    root = write_folders(tmp_path / "train")
    broken_jpeg(root)
    (root / "ant/000.png").write_bytes(b"?")
    dataset = prepare_images(spec_of(root, on_bad_record="skip"), tmp_path / "datasets")
    skipped = str(read_image_manifest(dataset).skipped)
    assert skipped == f"2 bad records (2 no image): {root}/ant/000.png (no image), {root}/bee/005.jpeg (no image)"
    assert everything(dataset).total() == 35
    with pytest.raises(DataError, match=r"^data\.images\.most_bad_records: the source has more than 1 bad record"):
        prepare_images(spec_of(root, on_bad_record="skip", most_bad_records=1), tmp_path / "datasets")


def test_an_interrupted_preparation_leaves_nothing_and_a_killed_one_is_cleaned_up(tmp_path, monkeypatch):
    root, datasets, calls = write_folders(tmp_path / "train"), tmp_path / "datasets", []

    def interrupt(*_: object) -> None:
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt

    for meanwhile, error in ((interrupt, KeyboardInterrupt), (lambda _: os.utime(root / "ant/000.png"), Interrupted)):
        monkeypatch.setattr(prepare_module, "decoded", meanwhile)
        with pytest.raises(error):
            prepare_images(spec_of(root), datasets)
        assert folders(datasets) == []
    monkeypatch.undo()
    left(datasets / "train-0123456789ab")
    dataset = prepare_images(spec_of(root), datasets)
    assert folders(datasets) == [dataset.name]


def test_a_damaged_dataset_is_set_aside_and_prepared_again_and_changed_images_make_another(tmp_path):
    root, datasets = write_folders(tmp_path / "train"), tmp_path / "datasets"
    dataset = prepare_images(spec_of(root), datasets)
    manifest, images = read_image_manifest(dataset), dataset / "train.images"
    images.write_bytes(b"?" + images.read_bytes()[1:])
    with pytest.raises(DataError, match=r"is damaged: train\.images does not have the hash in the manifest"):
        check_any_dataset(dataset)
    assert prepare_images(spec_of(root), datasets) == dataset
    assert check_any_dataset(dataset) == manifest
    assert folders(datasets) == [f"broken-{dataset.name}", dataset.name]
    shutil.move(root, tmp_path / "gone")
    assert prepare_images(spec_of(root), datasets) == dataset, "whose source is not there to compare"
    shutil.move(tmp_path / "gone", root)
    (root / "cat/new.png").write_bytes(PNG)
    assert prepare_images(spec_of(root), datasets) != dataset
