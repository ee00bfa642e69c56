"""The result of comparing two checkpoints, OLD and NEW, as functions. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model.precision import ComparisonDtype
from stages.checkpoint.lineage import GrowthRecord, Making

TOLERANCE: dict[ComparisonDtype, float] = {"float64": 1e-6, "float32": 1e-4}
"""How far NEW's logits may differ from OLD's and still count as the same function, in units of OLD's largest absolute
logit.

Checkpoints hold float32. In float64, growths that add zeros or divide by a power of two differed by 2e-15 at most.
Dividing by 3 or 7 (copies, widened decoders) rounds every stored quotient, which alone gave up to 1.3e-7.
Running in float32 gave up to 1.1e-6 for any growth (12 layers, untrained). Noise of 0.1 % on copies gave 1e-3.
"""


@dataclass(frozen=True)
class ComparedModel:
    """One of the two models, and its results on the text."""

    path: Path
    num_parameters: int

    loss: float
    """Mean cross-entropy, nats per token or image; of a mixture, the mean of its sources' by base weights."""


@dataclass(frozen=True)
class Descent:
    """The relation of the two checkpoints according to their manifests."""

    operation: Making | None
    """The operation that made NEW from OLD; None if OLD is not NEW's parent."""

    growth: GrowthRecord | None
    """How NEW was grown from OLD; None if it was not."""

    num_old_files: int

    num_shared_files: int
    """Files with the same name and hash in both."""


@dataclass(frozen=True)
class Comparison:
    """Two checkpoints, OLD and NEW, compared as functions on the same text or images."""

    dtype: ComparisonDtype
    num_sequences: int
    """Of text, or images."""
    context: int | None
    """Tokens per sequence; None for images."""

    old: ComparedModel
    new: ComparedModel
    dataset: Path

    largest_logit: float
    """OLD's largest absolute logit. The differences below are absolute too."""

    largest_difference: float
    mean_difference: float

    lineage: Descent

    jump: float
    """NEW's loss minus OLD's, in nats."""

    relative_difference: float
    """The largest difference of two logits in units of OLD's largest logit (the plain difference if all of OLD's are
    0)."""

    tolerance: float
    """The largest `relative_difference` that counts as preserved."""

    verdict: Literal["preserved", "changed"]
    """Whether NEW computes the same function as OLD, as far as the text shows."""

    breaks_promise: bool
    """Whether NEW was grown from OLD with a policy that claims to preserve the function, but did not."""
