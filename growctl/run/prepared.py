"""What `growctl prepare --json` prints."""

from dataclasses import dataclass
from pathlib import Path

from stages.data.dataset import DatasetManifest


@dataclass(frozen=True)
class PrepareDocument:
    """A prepared dataset."""

    path: Path
    manifest: DatasetManifest
    """The content of its manifest.json."""

    warnings: tuple[str, ...] = ()
    """Such as a validation set that is too small, one sentence or two each."""
