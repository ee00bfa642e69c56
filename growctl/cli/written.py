"""What the commands that write a checkpoint or an export print with --json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from model.policy import GrowthPolicy
from stages.checkpoint.text_facts import TextFacts
from stages.grow.comparison import Comparison
from stages.huggingface.record import ExportedFile, HuggingFaceExport


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


@dataclass(frozen=True, kw_only=True)
class OfficialDocument:
    """An export in the layout of the official TokenFormer code."""

    path: Path
    to: Literal["official"] = "official"
    checkpoint: Path
    """The checkpoint that was exported."""

    files: dict[str, ExportedFile]


ExportDocument = HuggingFaceExport | OfficialDocument
"""What `growctl export --json` prints, by --to."""
