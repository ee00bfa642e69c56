"""Reads what `growctl show` prints: a checkpoint's sizes by generation, lineage, cost and shared files.

Reads manifests and the file system's link counts, never a tensor. Imports no torch.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growctl.runs_dir import RunsPaths
from model.config import PATTENTIONS, PattentionConfig, TokenformerConfig, num_parameters, parameter_shapes
from model.parameter_names import TokensName
from model.policy import is_published, one_if_equal
from stages.checkpoint.lineage import HistoryEntry
from stages.checkpoint.manifest import Manifest, read_manifest
from stages.stage_dir import MANIFEST_NAME


@dataclass(frozen=True)
class GenerationFacts:
    """The parameter tokens that one growth added."""

    number: int
    tokens: dict[str, int | list[int]]
    """Parameter tokens by Pattention: one number if all layers have as many, else one for each layer."""
    new_layers: list[int]
    """The layers that it added, by position from 0; of the base, those that the model began with."""
    num_parameters: int
    key_ramp: float
    """The factor on its keys; below 1 while its ramp is not finished."""


@dataclass(frozen=True)
class SharedFiles:
    """Files of the checkpoint that other directories hold too, as hard links: they take space only once."""

    by_checkpoint: dict[Path, int]
    """How many of them each other checkpoint holds."""
    elsewhere: int
    """How many have links only in places that were not searched."""


@dataclass(frozen=True)
class CheckpointFacts:
    """Everything that `growctl show` prints."""

    path: Path
    manifest: Manifest
    generations: tuple[GenerationFacts, ...]
    """Empty for a Transformer."""
    shared: SharedFiles

    @property
    def num_parameters(self) -> int:
        """All parameters; the tied embedding counts once."""
        return num_parameters(self.manifest.model)

    @property
    def other_parameters(self) -> int:
        """Parameters that are not parameter tokens: embedding and norms, and for a Transformer everything."""
        return self.num_parameters - sum(generation.num_parameters for generation in self.generations)

    @property
    def is_published(self) -> bool | None:
        """Whether every layer is the published formula; None for a Transformer."""
        model = self.manifest.model
        return is_published(model) if isinstance(model, TokenformerConfig) else None

    @property
    def validation_loss(self) -> float | None:
        """Nats per token, measured when the checkpoint was made; else the last one measured before. None if unknown."""
        details = self.manifest.lineage.details
        measured = [details.get("validation_loss"), *_last_loss(details.get("losses"))]
        return next((float(loss) for loss in measured if _is_finite(loss)), None)

    @property
    def by_source(self) -> dict[str, tuple[float, float]]:
        """Of each source of the mixture that the checkpoint was trained on: the validation loss in nats per token, and
        how often training read it. Empty if there is none, or if it is unknown."""
        known = self.manifest.lineage.details.get("by_source")  # a manifest may hold anything here
        sources: dict[str, Any] = known if isinstance(known, dict) else {}
        figures = {name: each for name, each in sources.items() if isinstance(each, dict)}
        return {
            name: (float(each["loss"]), float(each["epochs"]))
            for name, each in figures.items()
            if _is_finite(each.get("loss")) and _is_finite(each.get("epochs"))
        }

    def steps_of_history(self) -> Iterator[tuple[HistoryEntry | None, HistoryEntry]]:
        """Every entry of the history with the one before, oldest first."""
        before: HistoryEntry | None = None
        for entry in self.manifest.lineage.history:
            yield before, entry
            before = entry


def read_facts(checkpoint: Path, runs_dir: Path) -> CheckpointFacts:
    """The facts about a checkpoint; searches its own folder, its runs directory and `runs_dir` for shared files.

    Raises CheckpointError if its manifest is missing or damaged.
    """
    manifest = read_manifest(checkpoint)
    generations = _generations(manifest.model) if isinstance(manifest.model, TokenformerConfig) else ()
    return CheckpointFacts(checkpoint, manifest, generations, _shared_files(checkpoint, manifest, runs_dir))


def _last_loss(losses: Any) -> list[Any]:
    """The loss of the last of the pairs (step, loss); nothing if there is none. A manifest may hold anything here."""
    last = losses[-1] if isinstance(losses, list) and losses else None
    return last[1:2] if isinstance(last, list) else []


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and -sys.float_info.max <= value <= sys.float_info.max


def _generations(model: TokenformerConfig) -> tuple[GenerationFacts, ...]:
    parameters: Counter[int] = Counter()
    for name, shape in parameter_shapes(model).items():
        if tokens := TokensName.parse(name):
            parameters[tokens.generation] += math.prod(shape)
    return tuple(
        GenerationFacts(
            number=number,
            tokens={
                name: one_if_equal([_tokens(block.pattentions()[name], number) for block in model.blocks])
                for name in PATTENTIONS
            },
            new_layers=[layer for layer, block in enumerate(model.blocks) if block.generation == number],
            num_parameters=parameters[number],
            key_ramp=min(
                generation.key_ramp
                for block in model.blocks
                for pattention in block.pattentions().values()
                for generation in pattention.generations
                if generation.number == number
            ),
        )
        for number in sorted(parameters)
    )


def _tokens(pattention: PattentionConfig, number: int) -> int:
    return sum(generation.num_tokens for generation in pattention.generations if generation.number == number)


def _shared_files(checkpoint: Path, manifest: Manifest, runs_dir: Path) -> SharedFiles:
    """The checkpoint's files that are hard links, and the other checkpoints that hold the same files by name."""
    inodes = {name: inode for name in manifest.files if (inode := _inode(checkpoint / name, least_links=2))}
    if not inodes:
        return SharedFiles({}, 0)
    found: dict[Path, int] = {}
    seen: set[str] = set()
    for other in _others(checkpoint, runs_dir):
        same = {name for name, inode in inodes.items() if _inode(other / name) == inode}
        if same:
            found[other] = len(same)
            seen |= same
    return SharedFiles(found, len(inodes.keys() - seen))


def _inode(path: Path, least_links: int = 1) -> tuple[int, int] | None:
    """What identifies the file at `path`; None if it cannot be read or has too few links."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status.st_nlink >= least_links else None


def _others(checkpoint: Path, runs_dir: Path) -> list[Path]:
    """The other checkpoints in the checkpoint's folder, in its runs directory, and in `runs_dir`."""
    own = checkpoint.resolve()
    beside = [path.parent for path in sorted(own.parent.glob(f"*/{MANIFEST_NAME}"))]
    runs = dict.fromkeys([*own.parents[3:4], runs_dir.resolve()])
    in_runs = [
        manifest.parent
        for folder in runs
        for run in RunsPaths(folder).all_runs()
        for _, _, stage in run.stages_found()
        for manifest in stage.manifests()
    ]
    return [_as_shown(path) for path in dict.fromkeys([*beside, *in_runs]) if path != own]


def _as_shown(path: Path) -> Path:
    """`path` relative to the working directory, if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
