"""What an export to Hugging Face holds, as plain values. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stages.checkpoint.files import FileEntry

ExportDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class LogitsCheck:
    """The check that Transformers computes the checkpoint's logits."""

    transformers: str | None = None
    """The installed version; None if Transformers is not installed, or not needed."""
    largest_difference: float | None = None
    """The largest absolute difference of two logits; None if it was not checked."""
    allowed: float | None = None
    """The difference that is allowed."""
    not_checked: str | None = None
    """Why it was not checked; None if it was."""

    def __str__(self) -> str:
        if self.not_checked:
            return f"not checked: {self.not_checked}"
        return (
            f"Transformers {self.transformers} computes its logits; the largest difference in float32 is "
            f"{self.largest_difference:.2g} ({self.allowed:.2g} allowed)"
        )


@dataclass(frozen=True, kw_only=True)
class HuggingFaceExport:
    """An export that Transformers loads."""

    path: Path
    to: Literal["huggingface"] = "huggingface"
    checkpoint: Path
    """The checkpoint that was exported."""
    architecture: str
    """The class of Transformers, or of the export's own code, that loads it."""
    needs_trust_remote_code: bool
    """Whether it has its own code, which Transformers only runs with `trust_remote_code=True`."""
    dtype: ExportDtype
    context_length: int
    """Tokens of a training sequence; of images, the data tokens of one."""
    files: dict[str, FileEntry]
    weight_bytes: int
    """The size of all weights."""
    check: LogitsCheck

    @property
    def num_weight_files(self) -> int:
        """The files that hold weights."""
        return sum(name.endswith(".safetensors") for name in self.files)
