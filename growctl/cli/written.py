"""What the commands that write a checkpoint or an export print with --json."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from model.policy import GrowthPolicy
from stages.checkpoint.text_facts import TextFacts
from stages.grow.comparison import Comparison

if TYPE_CHECKING:
    from stages.huggingface.export import HuggingFaceExport


@dataclass(frozen=True, kw_only=True)
class ExpandDocument:
    """A checkpoint that was grown."""

    path: Path
    parent: str
    """sha256 of the manifest of the checkpoint that it was grown from."""

    attention_tokens: int | list[int]
    """Parameter tokens that each of the four attention Pattentions gained: one number if all layers gained as many,
    else one for each layer."""

    ffn_tokens: int | list[int]
    """The same for the FFN."""

    new_layers: int
    """How many layers were added."""

    new_layer_positions: list[int]
    """Their positions, counted from 0 in the order of the forward pass."""

    policy: GrowthPolicy
    preserves: bool
    """Whether the policy claims to preserve the function."""

    seed: int
    num_parameters_before: int
    num_parameters: int
    comparison: Comparison | None = None
    """What --verify found; null without it."""


@dataclass(frozen=True, kw_only=True)
class ShrinkDocument:
    """A checkpoint without its newest generations."""

    path: Path
    parent: str
    """sha256 of the manifest of the checkpoint that it was made from."""

    drop_generations: int
    """How many generations were removed."""

    num_parameters_before: int
    num_parameters: int


@dataclass(frozen=True, kw_only=True)
class ImportDocument:
    """A checkpoint made from files of the official TokenFormer code."""

    path: Path
    layout: Literal["official"]
    weights: str
    """The name of the file or directory that held the weights."""

    dtype: str | None
    """Precision of those weights; null if there were several."""

    ignored_settings: dict[str, Any]
    """Settings of the YAML that change nothing: {name: value}."""

    num_parameters: int
    text: TextFacts


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
