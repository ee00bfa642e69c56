"""What loss a model ends with, by its size and by what its tokens are worth: the law, and its document law.json.

`L(N, D_eff) = E + A / N^a + B / D_eff^b`. At a growth from N to N', `D_eff' = w * D_eff + tokens trained at N'`: a
token that a smaller size was trained on counts w. ln w is linear in TERMS.

Shapes: R models, K sizes of a path, M sets of P coefficients (E, A, a, B, b, then terms), G sizes from scratch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from model.errors import UserError
from model.strict import Strict, first_reason

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
_LARGEST_LOG = 5.0  # where ln w is cut, so that no trial of the fit overflows


@dataclass(frozen=True)
class Segment:
    """Training at one size."""

    num_parameters: int
    num_embedding_parameters: int
    num_layers: int
    width: tuple[Any, ...]
    """What the shape is beside its layers: hidden size and tokens."""
    tokens: float

    def axis(self, after: "Segment") -> Axis:
        """What grows from this size to that of `after`."""
        if self.num_layers == after.num_layers:
            return "tokens"
        return "depth" if self.width == after.width else "both"


class Paths:
    """The sizes and tokens of R models, padded to K sizes by training on no tokens."""

    def __init__(self, paths: Sequence[Sequence[Segment]], flops: Sequence[float], counts: Counts):
        longest, rows = max(map(len, paths)), list[tuple[float, ...]]()
        for path in paths:
            padded = [*path, *[replace(path[-1], tokens=0)] * (longest - len(path))]
            for before, here in zip([path[0], *padded], padded, strict=False):
                size = here.num_parameters - (counts != "all parameters") * here.num_embedding_parameters
                axis = before.axis(here) if before.num_parameters != here.num_parameters else None
                rows.append((size, here.tokens, axis is not None, axis in ("depth", "both"), axis == "both"))
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
    sizes: tuple[float, float]
    """The smallest and the largest N from scratch."""
    flops_per_token: tuple[float, float]
    """Of a size from scratch: c0 and c1 of c0 + c1 N."""

    @cached_property
    def frontier(self) -> tuple[Floats, Floats]:
        """G sizes from scratch that an opponent may have, and their training FLOPs per token."""
        size_G = np.geomspace(*self.sizes, 64)
        return size_G, self.flops_per_token[0] + self.flops_per_token[1] * size_G

    def best_scratch(self, c_MP: Floats, flops_R: Floats) -> Any:
        """The losses of the best size from scratch for `flops_R`."""
        (size_G, cost_G), (E, A, a, B, b) = self.frontier, c_MP.T[:5, :, None, None]
        return (E + A * size_G**-a + B * (flops_R[:, None] / cost_G) ** -b).min(axis=-1)

    def cost(self, c_MP: Floats, loss_MR: Floats) -> Any:
        """The FLOPs that the cheapest size from scratch needs for each loss; infinite if none reaches it."""
        (size_G, cost_G), (E, A, a, B, b) = self.frontier, c_MP.T[:5, :, None, None]
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
                tokens = tokens * np.exp(np.clip(sums, -_LARGEST_LOG, _LARGEST_LOG)) + paths.tokens_KR[k]
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


class HeldOut(LawModel):
    """A setting that the law was not fitted on. Null: not known."""

    standard_error: float | None
    """Of `measured`, from the spread of seeds in all held-out settings."""
    opponent: str | None = None
    """For a grown model: the held-out one from scratch that ended lowest for the same FLOPs."""
    predicted_difference: float | None = None
    measured_difference: Interval | None = None
    """Grown minus opponent, paired by seed."""
    advice: Advice | None = None
    """Whether the sign of the predicted difference is right; undecided if the measured interval holds 0."""


class Recipe(Strict):
    """How the models were trained, for schedules that `growctl init --law` drafts."""

    dataset_fingerprint: str
    optimizer: str
    peaks: dict[str, float]
    """Peak learning rate by parameters of the last size: of several, that of the lowest loss."""
    decay: float
    """Share of the steps over which the rate decays."""
    ramp: float
    """`growth.ramp`."""
    shape: dict[str, int]
    """hidden_size, num_heads, vocab_size, sequence_length and batch_size, and most_layers."""


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
    models: tuple[LawModel, ...]
    held_out: tuple[HeldOut, ...] = ()
    left_out: tuple[str, ...]
    """Runs that do not count, and why, one sentence each."""
    ranges: dict[str, tuple[float, float]]
    """The fitted ranges: parameters (N) and tokens_per_parameter from scratch, flops, and ratio, tokens per parameter
    before and after a growth."""
    axes: tuple[Axis, ...]
    """What grew."""
    flops_per_token: tuple[float, float]
    """Of a size from scratch: c0 and c1 of c0 + c1 N."""
    recipe: Recipe
    draws: tuple[tuple[float, ...], ...]
    """Draws of the bootstrap: the parameters, then the terms."""

    @cached_property
    def c_MP(self) -> Floats:
        """The estimate, then the draws."""
        estimate = [value.estimate for value in (*self.parameters.values(), *self.terms.values())]
        return np.array([estimate, *self.draws])

    @cached_property
    def formula(self) -> Formula:
        """How its coefficients become losses."""
        return Formula(tuple(self.terms), self.form, self.ranges["parameters"], self.flops_per_token)

    def losses(self, paths: Sequence[Sequence[Segment]], flops: Sequence[float]) -> Any:
        """The losses of R models, by the estimate and by each draw: M x R."""
        return self.formula.losses(self.c_MP, Paths(paths, flops, self.counts))


def read_law(path: Path) -> Law:
    """The law in `path`. Raises UserError if it holds none, OSError if it cannot be read."""
    try:
        return Law.model_validate_json(path.read_bytes())
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "the file"
        raise UserError(f"{path}: {where}: {first_reason(error)}; `growctl law fit` writes a law") from None
