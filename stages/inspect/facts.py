"""What an inspection measures, as plain values. Imports no torch."""

from dataclasses import dataclass

from model.tokenformer_config import ScoreFunction

DEAD_BELOW = 0.01
"""A parameter token is dead if its largest contribution on the whole text is below this share of the RMS norm of its
layer's output."""


@dataclass(frozen=True)
class Distribution:
    """The elements of a layer's output, over all data tokens."""

    rms: float
    kurtosis: float | None
    """Fourth central moment over the squared variance: 3 for a normal distribution. None if all elements are equal."""


@dataclass(frozen=True)
class GradientNorm:
    """The L2 norm of the gradient of a batch's mean loss, over the batches of the text."""

    mean: float
    spread: float | None
    """Standard deviation over mean. None if there is only one batch or the mean is 0."""


@dataclass(frozen=True)
class GenerationUse:
    """How the model uses the parameter tokens of one generation in one layer."""

    generation: int
    num_tokens: int
    key_ramp: float
    """The factor on its keys: 0 right after a growth, when its scores cannot depend on the text."""
    score_mass: float
    """Its share of the sum of |score|."""
    contribution: float
    """Its share of the sum of |score| times the norm of the token's value."""
    dead: tuple[int, ...]
    """The numbers of its dead tokens."""


@dataclass(frozen=True)
class Scores:
    """The scores of one Pattention on the text."""

    num_tokens: int
    effective_tokens: float
    """Mean over the data tokens of exp(entropy of |score| / sum |score|): how many parameter tokens each uses."""
    generations: tuple[GenerationUse, ...]
    """Oldest first."""

    @property
    def num_dead(self) -> int:
        """Dead parameter tokens of all generations."""
        return sum(len(generation.dead) for generation in self.generations)


@dataclass(frozen=True)
class Layer:
    """A Pattention, or a linear layer of a decoder."""

    block: int
    """The position of its block, from 0 in the order of the forward pass."""
    name: str
    """What the block calls it: `query`, `key`, `value`, `projection` or `ffn`; in a decoder `query`, `key`,
    `value`, `projection`, `gate`, `up` or `down`."""
    output: Distribution
    gradient: GradientNorm
    gradient_gain: float | None
    """Norm of the gradient at the input over the norm of the gradient at the output. None if no gradient arrives."""
    scores: Scores | None
    """None for a decoder's layer."""


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """One model on the text."""

    family: str
    score_function: ScoreFunction | None
    """None for a decoder."""
    num_parameters: int
    loss: float
    """Mean cross-entropy, nats per token."""
    gradient: GradientNorm
    """Of all parameters, embedding included."""
    layers: tuple[Layer, ...]
    """In the order of the forward pass."""
    depth_ratio: float | None
    """The largest gradient norm of a layer over the smallest. None if one is 0 or there are no layers."""
    num_dead: int
    """Dead parameter tokens of all layers."""
