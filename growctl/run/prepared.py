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
