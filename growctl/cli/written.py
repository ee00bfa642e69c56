"""What the commands that write a checkpoint print with --json."""

from dataclasses import dataclass
from pathlib import Path

from model.config import num_parameters
from stages.checkpoint.lineage import Lineage
from stages.checkpoint.manifest import Manifest, TextFacts


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint that `expand`, `shrink` or `import` has written."""

    path: Path
    num_parameters: int
    text: TextFacts
    lineage: Lineage
    """The checkpoint that it was made from, and how."""

    @classmethod
    def of(cls, path: Path, manifest: Manifest) -> "WrittenCheckpoint":
        """The checkpoint in `path`."""
        return cls(path, num_parameters(manifest.model), manifest.text, manifest.lineage)
