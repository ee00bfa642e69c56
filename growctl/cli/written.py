"""What the commands that write a checkpoint or an export print with --json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model.config import num_parameters
from stages.checkpoint.files import FileEntry
from stages.checkpoint.lineage import Lineage
from stages.checkpoint.manifest import Manifest, TextFacts
from stages.huggingface.record import HuggingFaceExport


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


@dataclass(frozen=True, kw_only=True)
class OfficialDocument:
    """An export in the layout of the official TokenFormer code."""

    path: Path
    to: Literal["official"] = "official"
    checkpoint: Path
    """The checkpoint that was exported."""

    files: dict[str, FileEntry]


ExportDocument = HuggingFaceExport | OfficialDocument
"""What `growctl export --json` prints, by --to."""
