"""What `growctl inspect --json` prints."""

from dataclasses import dataclass

from growctl.inspect.inspection import Inspection, Subject, Text
from growctl.inspect.rows import NOTES
from model.config import ScoreFunction
from stages.inspect.facts import DEAD_BELOW, THRESHOLDS, GradientNorm, Layer


@dataclass(frozen=True)
class ModelEntry:
    """One model on the text."""

    name: str
    """The checkpoint as the user named it."""

    scores: str
    """How its scores are computed, in words."""

    family: str
    score_function: ScoreFunction | None
    """None for a Transformer."""

    num_parameters: int
    loss: float
    """Mean cross-entropy, nats per token."""

    gradient: GradientNorm
    """Of all parameters, embedding included."""

    depth_ratio: float | None
    """The largest gradient norm of a layer over the smallest. None if one is 0."""

    num_dead: int
    """Dead parameter tokens of all layers."""

    layers: tuple[Layer, ...]
    """In the order of the forward pass."""

    @classmethod
    def of(cls, subject: Subject) -> "ModelEntry":
        """The entry of a model."""
        facts = subject.facts
        return cls(
            name=subject.name,
            scores=subject.scores,
            family=facts.family,
            score_function=facts.score_function,
            num_parameters=facts.num_parameters,
            loss=facts.loss,
            gradient=facts.gradient,
            depth_ratio=facts.depth_ratio,
            num_dead=facts.num_dead,
            layers=facts.layers,
        )


@dataclass(frozen=True)
class InspectDocument:
    """What was measured in each model on the same text."""

    text: Text
    thresholds: tuple[float, ...]
    """The magnitudes that `below` in the scores of a layer counts with."""

    dead_below: float
    """A parameter token is dead if its largest contribution is below this share of its layer's output."""

    notes: tuple[str, ...]
    """What the figures mean, one sentence each."""

    models: tuple[ModelEntry, ...]


def inspect_document(inspection: Inspection) -> InspectDocument:
    """Everything that was measured, for scripts."""
    models = tuple(map(ModelEntry.of, inspection.subjects))
    return InspectDocument(inspection.text, THRESHOLDS, DEAD_BELOW, tuple(NOTES), models)
