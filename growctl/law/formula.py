"""What loss a model ends with, by its size and by what its tokens are worth: the law, and its document law.json.

`L(N, D_eff) = E + A / N^a + B / D_eff^b`. At a growth from N to N', `D_eff' = w * D_eff + tokens trained at N'`: a
token that a smaller size was trained on counts w. ln w is linear in TERMS.

Shapes: R models, K sizes of a path, M sets of P coefficients (E, A, a, B, b, then terms), G sizes from scratch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, ValidationError, model_validator

from growctl.schedule.errors import describe
from model.errors import UserError
from model.strict import Strict

Floats = NDArray[np.float64]
Counts = Literal["all parameters", "parameters without the embedding"]
Form = Literal["effective tokens", "difference"]
Axis = Literal["tokens", "depth", "both"]
Advice = Literal["right", "wrong", "undecided"]

PARAMETERS = ("E", "A", "a", "B", "b")
TERMS = ("constant", "ratio", "before", "after", "depth", "together")
"""1; ln(N'/N); ln(D_eff/N / 20); ln(tokens at N' / N' / 20); 1 if layers grew; 1 if layers and parameter tokens grew.
20 tokens per parameter are near compute-optimal, so that the constant is about such a growth."""
USUAL_RATIO = 20.0
MEASURES = ("flops", "parameters", "tokens_per_parameter", "ratio", "before", "after")
MOST_ERRORS = 1.5
"""How many standard errors the median error of held-out means may be."""
_MOST = 5.0  # where ln w is cut, so that no trial of the fit overflows


@dataclass(frozen=True)
class Segment:
    """Training at one size."""

    num_parameters: int
    num_embedding_parameters: int
    num_layers: int
    width: tuple[Any, ...]
    """What the shape is beside its layers: hidden size and tokens."""
    tokens: float

    def counted(self, counts: Counts) -> int:
        """N."""
        return self.num_parameters - (counts != "all parameters") * self.num_embedding_parameters

    def axis(self, after: "Segment") -> Axis:
        """What grows from this size to that of `after`."""
        if self.num_layers == after.num_layers:
            return "tokens"
        return "depth" if self.width == after.width else "both"


def measures(path: Sequence[Segment], flops: float, counts: Counts) -> Iterator[tuple[str, float]]:
    """What of a model must lie inside the fitted range."""
    sizes, tokens = [segment.counted(counts) for segment in path], 0.0
    yield from (("flops", flops), ("parameters", sizes[-1]))
    if len(path) == 1:
        yield "tokens_per_parameter", path[0].tokens / sizes[0]
    for (before, small), (here, large) in pairwise(zip(path, sizes, strict=True)):
        tokens += before.tokens
        yield from (("ratio", large / small), ("before", tokens / small), ("after", here.tokens / large))


class Paths:
    """The sizes and tokens of R models, padded to K sizes by training on no tokens."""

    def __init__(self, paths: Sequence[Sequence[Segment]], flops: Sequence[float], counts: Counts):
        longest, rows = max(map(len, paths)), list[tuple[float, ...]]()
        for path in paths:
            padded = [*path, *[replace(path[-1], tokens=0)] * (longest - len(path))]
            for before, here in zip([path[0], *padded], padded, strict=False):
                axis = before.axis(here) if before.num_parameters != here.num_parameters else None
                rows.append(
                    (here.counted(counts), here.tokens, axis is not None, axis in ("depth", "both"), axis == "both")
                )
        table = np.array(rows, dtype=np.float64).reshape(len(paths), longest, 5).T
        self.size_KR, self.tokens_KR, self.grows_KR, self.deeper_KR, self.both_KR = table
        self.flops_R = np.array(flops, dtype=np.float64)

    def terms(self, k: int, before: Floats) -> tuple[Any, ...]:
        """The values of TERMS at the growth to size k, after `before` tokens."""
        after = np.maximum(self.tokens_KR[k], 1.0) / self.size_KR[k]
        ratios = before / self.size_KR[k - 1] / USUAL_RATIO, after / USUAL_RATIO
        logs = map(np.log, (self.size_KR[k] / self.size_KR[k - 1], *ratios))
        return np.ones(len(self.flops_R)), *logs, self.deeper_KR[k], self.both_KR[k]


@dataclass(frozen=True)
class Formula:
    """How coefficients become losses, in nats per token: M x R."""

    terms: tuple[str, ...]
    form: Form
    frontier_2G: Floats
    """Sizes that an opponent from scratch may have, and their training FLOPs per token."""

    def best_scratch(self, c_MP: Floats, flops_R: Floats) -> Any:
        """The losses of the best size from scratch for `flops_R`."""
        (size_G, cost_G), (E, A, a, B, b) = self.frontier_2G, c_MP.T[:5, :, None, None]
        return (E + A * size_G**-a + B * (flops_R[:, None] / cost_G) ** -b).min(axis=-1)

    def cost(self, c_MP: Floats, loss_MR: Floats) -> Any:
        """The FLOPs that the cheapest size from scratch needs for each loss; infinite if none reaches it."""
        (size_G, cost_G), (E, A, a, B, b) = self.frontier_2G, c_MP.T[:5, :, None, None]
        rest = loss_MR[..., None] - E - A * size_G**-a
        return np.where(rest > 0, (B / np.maximum(rest, 1e-12)) ** (1 / b) * cost_G, np.inf).min(axis=-1)

    def losses(self, c_MP: Floats, paths: Paths) -> Any:
        """The losses of R models."""
        (E, A, a, B, b), growth = c_MP.T[:5, :, None], dict(zip(self.terms, c_MP.T[5:, :, None], strict=True))
        tokens = np.repeat(paths.tokens_KR[:1], len(c_MP), axis=0)
        shift = np.zeros_like(tokens)
        for k in range(1, len(paths.size_KR)):
            values = zip(TERMS, paths.terms(k, tokens), strict=True)
            sums = sum((growth[name] * value for name, value in values if name in growth), np.zeros_like(tokens))
            sums = np.where(paths.grows_KR[k], sums, 0.0)
            if self.form == "difference":
                tokens, shift = tokens + paths.tokens_KR[k], shift + sums
            else:
                tokens = tokens * np.exp(np.clip(sums, -_MOST, _MOST)) + paths.tokens_KR[k]
        losses = E + A * paths.size_KR[-1] ** -a + B * tokens**-b
        if self.form == "difference":
            return np.where(paths.grows_KR.any(axis=0), self.best_scratch(c_MP, paths.flops_R) + shift, losses)
        return losses


class Interval(Strict):
    """An estimate with its 95% interval."""

    estimate: float
    low: float
    high: float

    @classmethod
    def of(cls, values_M: Floats) -> "Interval":
        """The first value, with the middle 95% of the others."""
        low, high = np.percentile(values_M[1:], (2.5, 97.5))
        return cls(estimate=float(values_M[0]), low=float(low), high=float(high))

    def __str__(self) -> str:
        return f"{self.estimate:.4g} ({self.low:.4g} to {self.high:.4g})"


class LawModel(Strict):
    """A finished model, or the mean of a held-out setting over its seeds, and what the law says of it."""

    name: str
    is_grown: bool
    flops: float
    """Training FLOPs, the start checkpoint's included."""
    measured: float
    """Nats per token."""
    predicted: float

    @property
    def error(self) -> float:
        """Of the prediction, in nats, without its sign."""
        return abs(self.measured - self.predicted)


class HeldOut(LawModel):
    """A setting that the law was not fitted on. Null: not known."""

    standard_error: float | None
    """Of `measured`, from the spread of seeds in all held-out settings."""
    opponent: str | None = None
    """For a grown model: the held-out one from scratch that ended lowest for the same FLOPs."""
    predicted_difference: float | None = None
    measured_difference: Interval | None = None
    """Grown minus opponent."""
    advice: Advice | None = None
    """Whether the sign of the predicted difference is right; undecided if the measured interval holds 0."""


class Recipe(Strict):
    """How the models were trained, for schedules that `growctl init --law` drafts."""

    dataset_fingerprint: str
    peak: PositiveFloat
    """Of the learning rate; of several, that of the lowest loss."""
    decay: Annotated[float, Field(ge=0, le=1)]
    """The share of the steps before which growths come; 0 if the rate does not decay once, at the end."""
    hidden_size: PositiveInt
    num_heads: PositiveInt
    vocab_size: PositiveInt
    sequence_length: PositiveInt
    batch_size: PositiveInt
    layers: tuple[PositiveInt, PositiveInt]
    """The fewest and the most."""
    conditions: dict[str, JsonValue]
    """What the runs share, by key of the schedule; those of stages as lists of the values that stages have."""


class Law(Strict):
    """A fitted law: law.json."""

    format_version: Literal[1] = 1
    counts: Counts
    """What N counts, here and in tokens per parameter."""
    left_out_errors: dict[Counts, float]
    """For either count, the rms error of predicting each size from scratch from the others, in nats."""
    form: Form
    """difference: effective tokens failed, and the terms give the loss minus that of the best size from scratch."""
    form_p: float
    """p value of the test that effective tokens fit grown models as well as the law fits those from scratch."""
    parameters: dict[str, Interval]
    terms: dict[str, Interval]
    dropped: dict[str, str]
    """Terms that are left out, and why."""
    rms: dict[str, float | None]
    """Root mean square of the residuals `scratch`, `grown` and `held out`, in nats."""
    models: Annotated[tuple[LawModel, ...], Field(min_length=1)]
    held_out: tuple[HeldOut, ...] = ()
    left_out: tuple[str, ...]
    """Runs that do not count, and why, one sentence each."""
    ranges: dict[str, tuple[float, float]]
    """What was fitted: parameters (N) and tokens_per_parameter from scratch, flops, and ratio, before and after."""
    axes: tuple[Axis, ...]
    """What grew."""
    sizes: Annotated[tuple[tuple[float, float], ...], Field(min_length=1)]
    """Each N that was trained from scratch, and its training FLOPs per token."""
    recipe: Recipe
    draws: Annotated[tuple[tuple[float, ...], ...], Field(min_length=1)]
    """Draws of the bootstrap: the parameters, then the terms."""

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        if tuple(self.parameters) != PARAMETERS or not set(self.terms) <= set(TERMS):
            raise ValueError(f"parameters and terms: must be {', '.join(PARAMETERS)}, and of {', '.join(TERMS)}")
        if missing := set(MEASURES) - set(self.ranges):
            raise ValueError(f"ranges: must also have {', '.join(sorted(missing))}")
        if any(len(row) != len(PARAMETERS) + len(self.terms) for row in self.draws):
            raise ValueError("draws: each must have a number for each of parameters and terms")
        return self

    @cached_property
    def c_MP(self) -> Floats:
        """The estimate, then the draws."""
        estimate = [value.estimate for value in (*self.parameters.values(), *self.terms.values())]
        return np.array([estimate, *self.draws])

    @property
    def formula(self) -> Formula:
        """How its coefficients become losses."""
        return Formula(tuple(self.terms), self.form, np.array(self.sizes).T)

    def losses(self, path: Sequence[Segment], flops: float) -> Any:
        """The loss of a model by the estimate, then by each draw: M."""
        return self.formula.losses(self.c_MP, Paths([path], [flops], self.counts))[:, 0]

    def interval(self, path: Sequence[Segment], flops: float) -> Interval:
        """The loss of one run, with the spread of the bootstrap and of the residuals."""
        losses_M = self.losses(path, flops)
        half = 1.96 * np.hypot(losses_M[1:].std(), self.rms.get("grown" if len(path) > 1 else "scratch") or 0.0)
        return Interval(estimate=losses_M[0], low=losses_M[0] - half, high=losses_M[0] + half)

    @property
    def tested(self) -> tuple[float, float] | None:
        """The median error of the held-out means and the most that it may be, in nats; None if it is not known."""
        known = [each for each in self.held_out if each.standard_error is not None]
        if not known:
            return None
        error, standard_error = (
            median(column) for column in zip(*((e.error, e.standard_error) for e in known), strict=True)
        )
        return error, MOST_ERRORS * standard_error

    @property
    def caution(self) -> str:
        """That the law failed the test on held-out models; empty if it passed, or if there was none."""
        if self.tested is None or self.tested[0] <= self.tested[1]:
            return ""
        error, most = self.tested
        return f"This law failed its test: its median error on held-out runs is {error:.3f} nats, above {most:.3f}."

    def outside(self, path: Sequence[Segment], flops: float) -> str | None:
        """What of a model lies outside the fitted range, with the range; None if all lies inside."""
        for name, value in measures(path, flops, self.counts):
            low, high = self.ranges[name]
            if not low / 1.001 <= value <= high * 1.001:
                return f"{name} {value:.4g} (fitted: {low:.4g} to {high:.4g})"
        return None


def read_law(path: Path) -> Law:
    """The law in `path`. Raises UserError if it holds none, OSError if it cannot be read."""
    try:
        return Law.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path}: not a law, which `growctl law fit` writes: {describe(error, Law)[0]}") from None
