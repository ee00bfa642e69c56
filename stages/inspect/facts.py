"""What an inspection measures, as plain values. Imports no torch.

docs/inspection.md has the formulas.
"""

from dataclasses import dataclass

from model.config import ScoreFunction

THRESHOLDS = (0.001, 0.01, 0.1)
"""Magnitudes below which a score counts as small. With the published tau, scores have a root mean square of 1
(gelu_l2_norm), would have it without GELU (l2_norm_gelu), or have a mean of 1 (softmax)."""

DEAD_BELOW = 0.01
"""A parameter token is dead if its largest contribution on the whole text is below this share of the RMS norm of its
layer's output."""

NUM_MOST_USED = 3
"""Parameter tokens that are listed with their contexts, per layer."""

NUM_CONTEXTS = 3
"""Contexts listed per parameter token, each from another sequence."""


@dataclass(frozen=True)
class Distribution:
    """The elements of a layer's output, over all data tokens."""

    rms: float
    largest: float
    """The largest magnitude."""
    kurtosis: float | None
    """Fourth central moment over the squared variance: 3 for a normal distribution. None if all elements are equal."""


@dataclass(frozen=True)
class GradientNorm:
    """The L2 norm of the gradient of a batch's mean loss, over the batches of the text."""

    mean: float
    spread: float | None
    """Standard deviation over mean. None if there is only one batch or the mean is 0."""
    largest: float


@dataclass(frozen=True)
class Context:
    """A place in the text that excites a parameter token."""

    sequence: int
    position: int
    """Both count from 0, in the windows of the text."""
    score: float
    before: str
    """The text up to the place. A score depends on nothing that comes later."""
    at: str
    """The data token at the place."""


@dataclass(frozen=True)
class TokenUse:
    """How the model uses one parameter token."""

    generation: int
    token: int
    """Its number within the generation, from 0."""
    share: float
    """Its share of the contributions of all parameter tokens of its layer."""
    relative: float
    """The share times the number of parameter tokens: 1 is an even share."""
    largest_score: float
    """The largest magnitude of its score."""
    contexts: tuple[Context, ...]
    """Where its score is highest, highest first."""


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
    tau: float
    below: dict[str, float]
    """The share of scores with a magnitude below each of THRESHOLDS."""
    entropy: float
    """Mean entropy of |score| / sum |score| over the data tokens, in nats."""
    effective_tokens: float
    """Mean of the exponential of that entropy: how many parameter tokens a data token uses."""
    generations: tuple[GenerationUse, ...]
    """Oldest first."""
    most_used: tuple[TokenUse, ...]

    @property
    def num_dead(self) -> int:
        """Dead parameter tokens of all generations."""
        return sum(len(generation.dead) for generation in self.generations)


@dataclass(frozen=True)
class Layer:
    """A Pattention, or the linear layer of a Transformer in its place."""

    block: int
    """The position of its block, from 0 in the order of the forward pass."""
    name: str
    """`query`, `key`, `value`, `projection` or `ffn`. A Transformer's ffn is both linear layers of its MLP."""
    num_parameters: int
    output: Distribution
    gradient: GradientNorm
    gradient_by_kind: dict[str, float]
    """The mean norm by kind of parameter: `key` and `value`, or `weight` and `bias`."""
    gradient_gain: float | None
    """Norm of the gradient at the input over the norm of the gradient at the output. None if no gradient arrives."""
    scores: Scores | None
    """None for a Transformer's layer."""


@dataclass(frozen=True)
class Inspected:
    """One model on the text."""

    family: str
    score_function: ScoreFunction | None
    """None for a Transformer."""
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
