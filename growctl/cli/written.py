"""What the commands that write a checkpoint or an export print with --json."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from model.config import num_parameters
from stages.checkpoint.lineage import Lineage
from stages.checkpoint.manifest import Manifest
from stages.checkpoint.text_facts import TextFacts
from stages.grow.comparison import Comparison

if TYPE_CHECKING:
    from stages.huggingface.export import HuggingFaceExport


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint that `expand`, `shrink` or `import` has written."""

    path: Path
    num_parameters: int
    text: TextFacts
    lineage: Lineage
    """The checkpoint that it was made from, and how."""

    comparison: Comparison | None = None
    """What `expand --verify` measured; None without it."""

    @classmethod
    def of(cls, path: Path, manifest: Manifest, comparison: Comparison | None = None) -> "WrittenCheckpoint":
        """The checkpoint in `path`."""
        return cls(path, num_parameters(manifest.model), manifest.text, manifest.lineage, comparison)


@dataclass(frozen=True)
class SizedFile:
    """A file of an export."""

    bytes: int


@dataclass(frozen=True)
class HashedFile:
    """A file of an export, with its hash."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class LogitsEntry:
    """The check that Transformers computes the checkpoint's logits."""

    transformers: str | None
    """The installed version; null if it is not installed, or not needed."""

    largest_difference: float | None
    """The largest absolute difference of two logits; null if it was not checked."""

    allowed: float | None
    """The difference that is allowed."""

    not_checked: str | None
    """Why it was not checked; null if it was."""


@dataclass(frozen=True, kw_only=True)
class HuggingFaceDocument:
    """An export that Transformers loads."""

    path: Path
    to: Literal["huggingface"] = "huggingface"
    checkpoint: Path
    """The checkpoint that was exported."""

    architecture: str
    """The class that loads it."""

    needs_trust_remote_code: bool
    dtype: Literal["float32", "bfloat16"]
    context_length: int
    keeps_generations: bool
    """Whether each generation is in tensors of its own."""

    files: dict[str, SizedFile]
    weight_bytes: int
    """The size of all weights."""

    check: LogitsEntry

    @classmethod
    def of(cls, export: "HuggingFaceExport", checkpoint: Path, path: Path) -> "HuggingFaceDocument":
        """What was exported to `path`."""
        check = export.check
        return cls(
            path=path,
            checkpoint=checkpoint,
            architecture=export.architecture,
            needs_trust_remote_code=export.own_code,
            dtype=export.dtype,
            context_length=export.context_length,
            keeps_generations=export.keeps_generations,
            files={file.name: SizedFile(file.stat().st_size) for file in sorted(path.iterdir())},
            weight_bytes=export.weight_bytes,
            check=LogitsEntry(check.transformers, check.difference, check.allowed, check.why_not)
            if check
            else LogitsEntry(None, None, None, "--no-check"),
        )


@dataclass(frozen=True, kw_only=True)
class OfficialDocument:
    """An export in the layout of the official TokenFormer code."""

    path: Path
    to: Literal["official"] = "official"
    checkpoint: Path
    """The checkpoint that was exported."""

    files: dict[str, HashedFile]


ExportDocument = HuggingFaceDocument | OfficialDocument
"""What `growctl export --json` prints, by --to."""
