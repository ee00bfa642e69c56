"""What `growctl verify --json` prints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from growctl.runs.verify import Found
from growctl.runs.verify_table import verdict_of
from model.precision import ComparisonDtype
from stages.checkpoint.lineage import Making
from stages.grow.comparison import ComparedLayer, Comparison, GenerationGradients, Measured


@dataclass(frozen=True)
class ComparedCheckpoint:
    """One of the two checkpoints, and its results on the text."""

    path: Path
    num_parameters: int
    loss: float
    """Mean cross-entropy, nats per token; of a mixture, the mean of its sources' by base weights."""

    block_rms: tuple[float, ...]
    """Root mean square of the residual stream after each block."""

    by_source: dict[str, float] | None
    """The loss on each source of a mixture, nats per token; null for a dataset that is not a mixture."""

    @classmethod
    def of(cls, path: Path, measured: Measured) -> "ComparedCheckpoint":
        """The entry of a checkpoint."""
        return cls(path, measured.num_parameters, measured.loss, measured.block_rms, measured.by_source)


@dataclass(frozen=True)
class ScoreShares:
    """Shares of the sum of |score| of a Pattention; they add up to 1."""

    old_tokens: float
    new_tokens: float
    """The share that falls on generations that OLD lacks there."""


@dataclass(frozen=True)
class DescentEntry:
    """The relation of the two checkpoints according to their manifests."""

    operation: Making | None
    """The operation that made NEW from OLD; None if OLD is not NEW's parent."""

    details: dict[str, Any]
    """The details of NEW's lineage if OLD is its parent, else empty; the keys depend on the operation."""

    preserves: bool | None
    """Whether the growth claims to preserve the function; None if it claims nothing."""

    num_old_files: int
    num_shared_files: int
    """Files with the same name and hash in both."""


@dataclass(frozen=True)
class ComparisonEntry:
    """Two checkpoints, OLD and NEW, compared as functions on the same text."""

    verdict: Literal["preserved", "changed"]
    """Whether NEW computes the same function as OLD, as far as the text shows."""

    breaks_promise: bool
    """Whether NEW was grown from OLD with a policy that claims to preserve the function, but did not."""

    tolerance: float
    """The largest `relative_difference` that counts as preserved."""

    relative_difference: float
    """The largest difference of two logits in units of OLD's largest logit."""

    jump: float
    """NEW's loss minus OLD's, nats per token."""

    dtype: ComparisonDtype
    num_sequences: int
    context: int
    """Tokens per sequence."""

    old: ComparedCheckpoint
    new: ComparedCheckpoint
    dataset: Path
    largest_logit: float
    """OLD's largest absolute logit. The differences below are absolute too."""

    largest_difference: float
    mean_difference: float
    layers: tuple[ComparedLayer, ...]
    """The layers of both, in the order of the forward pass, with their positions in each."""

    score_shares: tuple[dict[str, ScoreShares], ...] | None
    """By layer of NEW and Pattention; None unless both are Tokenformers, as are the gradients."""

    gradients: tuple[GenerationGradients, ...] | None
    """NEW's gradients by generation, oldest first."""

    gradient_ramp: float | None
    """The key ramp that replaced ramps of 0 for the gradients; None if no ramp was 0."""

    lineage: DescentEntry


@dataclass(frozen=True)
class VerifyDocument:
    """What was verified."""

    integrity: tuple[Found, ...] | None
    """Every file or directory that was re-read; null without --integrity."""

    comparison: ComparisonEntry | None
    """null without NEW, and if --integrity found damage."""


def comparison_entry(old: Path, new: Path, dataset: Path, found: Comparison) -> ComparisonEntry:
    """The comparison of `old` and `new` for scripts."""
    shares, lineage = found.new_score_shares, found.lineage
    return ComparisonEntry(
        verdict=verdict_of(found),
        breaks_promise=found.breaks_promise,
        tolerance=found.tolerance,
        relative_difference=found.relative_difference,
        jump=found.jump,
        dtype=found.dtype,
        num_sequences=found.num_sequences,
        context=found.sequence_length,
        old=ComparedCheckpoint.of(old, found.old),
        new=ComparedCheckpoint.of(new, found.new),
        dataset=dataset,
        largest_logit=found.largest_logit,
        largest_difference=found.largest_difference,
        mean_difference=found.mean_difference,
        layers=found.layers,
        score_shares=None if shares is None else tuple(map(_shares, shares)),
        gradients=found.gradients,
        gradient_ramp=found.gradient_ramp,
        lineage=DescentEntry(
            lineage.operation, lineage.details, lineage.preserves, lineage.old_files, lineage.shared_files
        ),
    )


def _shares(layer: dict[str, float]) -> dict[str, ScoreShares]:
    return {name: ScoreShares(1 - share, share) for name, share in layer.items()}
