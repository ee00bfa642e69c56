"""What `growctl show --json` prints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from growctl.runs.show import CheckpointFacts, GenerationFacts
from model.flops import Flops
from model.precision import Precision
from stages.checkpoint.lineage import HistoryEntry, Making, Operation, TrainingCost
from stages.checkpoint.text_facts import TextFacts


@dataclass(frozen=True)
class CostEntry:
    """The cost of training a checkpoint, from the first step of its first ancestor on, without repeated work."""

    steps: int
    tokens: int
    """Data tokens."""

    flops: float
    """Training FLOPs."""

    flops_by_part: Flops
    device_seconds: float
    """Wall seconds x devices."""

    complete: bool
    """False if an imported ancestor has a cost that is not known and not included."""

    @classmethod
    def of(cls, cost: TrainingCost) -> "CostEntry":
        """The entry of a cost."""
        return cls(cost.steps, cost.tokens, cost.flops.total, cost.flops, cost.device_seconds, cost.complete)


@dataclass(frozen=True)
class StepEntry:
    """One operation in the history of a checkpoint."""

    operation: Operation
    determined_by: dict[str, Any]
    """Everything that determines the operation's effect on the weights; its keys depend on the operation."""

    hash: str
    """sha256 over the hash of the entry before, the operation and `determined_by`."""

    num_parameters: int
    """Number of parameters after the operation."""

    cost: CostEntry
    """The cost up to here."""

    made_in: str | None
    """The run and the stage that did it; None outside a run."""

    @classmethod
    def of(cls, entry: HistoryEntry) -> "StepEntry":
        """The entry of an operation."""
        return cls(
            operation=entry.operation,
            determined_by=entry.determined_by,
            hash=entry.hash,
            num_parameters=entry.num_parameters,
            cost=CostEntry.of(entry.cost),
            made_in=entry.made_in,
        )


@dataclass(frozen=True)
class LineageEntry:
    """Where a checkpoint comes from."""

    operation: Making
    """What made it."""

    parent: str | None
    """sha256 of the manifest of the checkpoint that it was made from; None if there is none."""

    history: tuple[StepEntry, ...]
    """Oldest first. Checkpoints whose last hashes are equal were made in the same way."""


@dataclass(frozen=True)
class FilesEntry:
    """The files of a checkpoint."""

    num_files: int
    bytes: int
    shared_with: dict[Path, int]
    """How many of the files each other checkpoint holds too, as hard links: {its path: files}."""

    shared_elsewhere: int
    """How many have links only in places that were not searched."""


@dataclass(frozen=True)
class ShowDocument:
    """A checkpoint: its sizes, where it comes from, what it cost. Unknown values are null."""

    path: Path
    kind: Literal["parameters", "engine"]
    """`parameters`: what stages pass on. `engine`: DeepSpeed's own files, to resume within a stage."""

    step: int
    """Optimizer steps done in the stage that wrote it; 0 if it was just expanded or imported."""

    num_layers: int
    is_published: bool | None
    """Whether every layer is the published formula; None for a Transformer."""

    model: dict[str, Any]
    """The model's settings, as in its manifest, without the layers; its keys depend on `family`."""

    num_parameters: int
    """All parameters; the tied embedding counts once."""

    other_parameters: int
    """Parameters that are not parameter tokens: embedding and norms, and for a Transformer everything."""

    generations: tuple[GenerationFacts, ...]
    """Empty for a Transformer."""

    validation_loss: float | None
    """Nats per token, measured when the checkpoint was made; else the last one measured before."""

    text: TextFacts
    precision: Precision | None
    """The precision that its stage trained in."""

    samples_seen: int
    """Training sequences consumed since the start of the run."""

    seed: int
    dataset_fingerprint: str | None
    tokenizer_sha256: str | None
    cost: CostEntry | None
    lineage: LineageEntry
    files: FilesEntry


def show_document(facts: CheckpointFacts) -> ShowDocument:
    """The facts about a checkpoint for scripts."""
    manifest, lineage = facts.manifest, facts.manifest.lineage
    return ShowDocument(
        path=facts.path,
        kind=manifest.kind,
        step=manifest.step,
        num_layers=manifest.model.num_layers,
        is_published=facts.is_published,
        model=manifest.model.model_dump(mode="json", exclude={"blocks", "num_layers"}),
        num_parameters=facts.num_parameters,
        other_parameters=facts.other_parameters,
        generations=facts.generations,
        validation_loss=facts.validation_loss,
        text=manifest.text,
        precision=manifest.precision,
        samples_seen=manifest.samples_seen,
        seed=manifest.seed,
        dataset_fingerprint=manifest.dataset_fingerprint,
        tokenizer_sha256=manifest.tokenizer_sha256,
        cost=CostEntry.of(lineage.cost) if lineage.cost else None,
        lineage=LineageEntry(lineage.operation, lineage.parent, tuple(map(StepEntry.of, lineage.history))),
        files=FilesEntry(
            num_files=len(manifest.files),
            bytes=manifest.num_bytes,
            shared_with=facts.shared.by_checkpoint,
            shared_elsewhere=facts.shared.elsewhere,
        ),
    )
