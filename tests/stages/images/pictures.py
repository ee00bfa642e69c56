"""Small pictures in class folders and in WebDataset shards."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")


def encoded(number: int, size: tuple[int, int] = (20, 16), kind: str = "PNG") -> bytes:
    """A picture of its own, (width, height) in size."""
    pixels = np.random.default_rng(number).integers(0, 256, (size[1] // 4, size[0] // 4, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).resize(size).save(content, kind)
    return content.getvalue()


def write_folders(root: Path, per_class: int = 12, classes: Iterable[str] = CLASSES) -> Path:
    """A folder for each class with JPEG and PNG files, some of them deeper."""
    for place, name in enumerate(classes):
        for number in range(per_class):
            kind, below = ("JPEG", "more") if number % 3 else ("PNG", "")
            path = root / name / below / f"{number:03d}.{kind.lower()}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(100 * place + number, kind=kind))
        (root / name / "notes.txt").write_text("no picture")
    return root


def write_shard(path: Path, samples: Iterable[tuple[str, dict[str, bytes]]]) -> Path:
    """A WebDataset shard of samples: (name, content by ending)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, members in samples:
            for ending, content in members.items():
                member = tarfile.TarInfo(f"{name}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def folder_samples(root: Path) -> list[tuple[str, dict[str, bytes]]]:
    """The pictures in class folders as samples of a shard, their class sometimes first, sometimes last."""
    samples = []
    paths = [path for path in sorted(root.rglob("*")) if path.suffix in (".png", ".jpeg")]
    for number, path in enumerate(paths):
        label = str(CLASSES.index(path.relative_to(root).parts[0])).encode()
        members = {path.suffix[1:]: path.read_bytes(), "cls" if number % 2 else "cls.txt": label, "json": b"{}"}
        samples.append((f"{number:04d}", members if number % 3 else dict(reversed(members.items()))))
    return samples
