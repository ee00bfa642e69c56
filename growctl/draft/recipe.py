"""What the user of `growctl init` asks for, and how its draft trains: tokens of each stage, batch, rate, intervals.

docs/schedules.md has each rule with its source.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import mul
from typing import Annotated

from pydantic import BeforeValidator, Field, PositiveInt

from growctl.draft.sizes import Shape, Size, ladder_sizes, model_of
from growctl.draft.text_source import BY_SIZE, TextSource, text_source
from growctl.ladder.datasets import enough_sequences
from growctl.ladder.warnings import OPTIMAL_TOKENS
from growctl.law.formula import Recipe
from growctl.schedule.fields import Count, parse_count
from growctl.schedule.launch_block import Device
from growctl.text.formatting import short_count
from model.errors import UserError
from model.flops import training_flops_per_token
from model.parameter_names import OptimizerName
from model.strict import Strict

BUDGETS = (0.5, 1.0, 2.0)
"""Budgets of the control from scratch: enough to find the point of equal loss between them."""

LAST_SHARE = 0.5
"""Share of the tokens that the last stage trains on."""

MOST_BASE_TOKENS = 50
"""Data tokens per parameter after which a size saturates before its growth."""

LARGEST_BATCH = 524_288
"""Data tokens per step of the published ladder: 512 sequences of 1024."""

BATCH_FACTOR, BATCH_EXPONENT = 0.2920, 0.3271
"""Best data tokens per step by training FLOPs (DeepSeek LLM, arXiv 2401.02954, section 3.1)."""

EVALUATION_SHARE = 0.15
FEWEST_STEPS = 200
USUAL_SEQUENCES = 1000
PUBLISHED_RATE, PUBLISHED_SIZE = 6e-4, 124e6
QUICKSTART_RATES, QUICKSTART_SIZE = {"muon": 1.2e-2, "adamw": 6e-3}, 262e3
DECAY_SHARE, RAMP_SHARE = 0.2, 0.02
WARMUP_SHARE, SHORTEST_WARMUP, LONGEST_WARMUP = 0.02, 10, 2000
Sharding = tuple[int, str]
"""ZeRO stage and offload."""
SHARDINGS: tuple[Sharding, ...] = ((1, "none"), (3, "none"), (3, "optimizer"))
"""From the fastest to the smallest in a device's memory. Muon excludes ZeRO 2 in bf16."""


class WishOptions(Strict):
    """What every draft may be told; None means the rules decide."""

    data: str | None = None
    """A shipped data choice, a path, a URL, or a data set on the Hugging Face hub."""

    gpus: Annotated[PositiveInt | None, Field(le=1024)] = None
    """GPUs of the machine that will train."""

    device: Device | None = None
    """The model of those GPUs."""


class Wish(WishOptions):
    """The options of `growctl init`; None means the rules decide."""

    params: Annotated[int, BeforeValidator(parse_count), Field(ge=150_000, le=24_000_000_000)]
    """Parameters of the last size: from a real growth above the quickstart's first size, 115k, to the largest published
    shape with sixteen times its width in tokens (growctl/draft/sizes.py)."""

    base: Count | None = None
    """Parameters of the first size."""

    tokens: Count | None = None
    """Data tokens of the whole ladder."""

    grow_depth: bool = False
    """Whether layers grow as well as parameter tokens."""


class LawWish(WishOptions):
    """The options of `growctl init --law`; `start` is `--from`."""

    law: str
    flops: Annotated[float, Field(gt=0)]
    """Training FLOPs from now on."""

    params: Count | None = None
    start: str | None = None


@dataclass(frozen=True, kw_only=True)
class AnyDraft:
    """The numbers that every drafted schedule has, before it is written down."""

    wish: WishOptions
    source: TextSource
    sequence_length: int
    batch_size: int
    """Sequences per step."""

    train_tokens: list[int]
    """Data tokens of each stage."""

    recipe: Recipe | None = None
    """How the runs of a law were trained; None: the rules decide."""

    start: str | None = None
    """The checkpoint that the first stage starts from."""

    remark: str = ""
    """What a law predicts; empty without one."""

    sharding: Sharding = SHARDINGS[0]

    @property
    def batch_tokens(self) -> int:
        """Data tokens per step."""
        return self.batch_size * self.sequence_length

    @property
    def num_steps(self) -> int:
        """Steps of the whole ladder."""
        return sum(round(tokens / self.batch_tokens) for tokens in self.train_tokens)

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up."""
        return min(max(round(WARMUP_SHARE * self.num_steps), SHORTEST_WARMUP), LONGEST_WARMUP)

    @property
    def evaluate_every(self) -> int:
        """Steps between evaluations: about 25 in the ladder, fewer if they exceed `EVALUATION_SHARE` of its FLOPs,
        and one or more before the end of its shortest stage."""
        shortest = round(min(self.train_tokens) / self.batch_tokens)
        evaluated = self.evaluate_sequences * self.sequence_length / 3  # a step also goes backward, at twice that
        most = min(25, EVALUATION_SHARE * sum(self.train_tokens) / evaluated)
        return min(round_number(min(self.num_steps / most, shortest / 2)), max(1, shortest - 1))

    @property
    def evaluate_sequences(self) -> int:
        """Sequences of an evaluation: USUAL_SEQUENCES, or more if these are too few to trust."""
        return max(USUAL_SEQUENCES, enough_sequences(self.sequence_length))

    @property
    def save_every(self) -> int:
        """Steps between checkpoints."""
        return min(1000, self.evaluate_every)

    def require_steps(self, optimal: float) -> None:
        """Raises UserError if there are too few steps to train. `optimal`: the compute-optimal tokens."""
        if self.num_steps < FEWEST_STEPS or min(self.train_tokens) < self.batch_tokens:
            raise UserError(
                f"--tokens {short_count(sum(self.train_tokens))}: only {self.num_steps} steps of "
                f"{self.batch_tokens:,} tokens; must be about {short_count(FEWEST_STEPS * self.batch_tokens)} or more, "
                f"and {short_count(round(optimal))} are compute-optimal"
            )


@dataclass(frozen=True, kw_only=True)
class Draft(AnyDraft):
    """A ladder of Tokenformers."""

    wish: Wish | LawWish
    shape: Shape
    sizes: list[Size]
    grows: bool = True
    """Whether the model grows, so that controls have something to compare."""

    controls_cost: float = 0.0
    """FLOPs that the controls train, in multiples of the ladder's; 0 before they are planned."""

    @cached_property
    def flops_per_token(self) -> list[float]:
        """Training FLOPs of each size for a data token."""
        models = [model_of(self.shape, self.source.vocabularies, size) for size in self.sizes]
        return [training_flops_per_token(model, self.sequence_length).total for model in models]

    @property
    def most_tokens(self) -> float:
        """The most data tokens that a run reads: the last size at the largest budget, or the first from scratch."""
        flops = sum(map(mul, self.flops_per_token, self.train_tokens))
        return flops * max(BUDGETS[-1] / self.flops_per_token[-1], 1 / self.flops_per_token[0])

    @property
    def num_parameters(self) -> int:
        """Parameters in the end."""
        return self.sizes[-1].num_parameters

    @property
    def optimizer(self) -> OptimizerName:
        """Muon where it runs, which is wherever the optimizer stays on the devices."""
        return "muon" if self.sharding[1] == "none" else "adamw"

    @property
    def peak(self) -> float:
        """The learning rate after the warm-up."""
        return self.recipe.peak if self.recipe else peak_rate(self.wish.params or 0, self.optimizer)


def make_draft(wish: Wish, devices: int = 1) -> Draft:
    """Follows the rules from a wish to a draft whose batch `devices` can share. Raises UserError."""
    total = round(OPTIMAL_TOKENS * wish.params) if wish.tokens is None else wish.tokens
    # A text that the user names is taken however often it is read: `plan` warns of it.
    named = wish.data is not None and [replace(text_source(wish.data), lasts=math.inf)]
    sources = named or map(text_source, BY_SIZE)
    drafts = (_sized(wish, source, total, devices) for source in sources if BUDGETS[-1] * total <= source.lasts)
    draft = next(draft for draft in drafts if draft.most_tokens <= draft.source.lasts)
    draft.require_steps(OPTIMAL_TOKENS * wish.params)
    return draft


def _sized(wish: Wish, source: TextSource, total: int, devices: int) -> Draft:
    """The draft that trains on `total` data tokens of `source`."""
    shape, sizes = ladder_sizes(wish.params, wish.base, source.vocabularies, grow_depth=wish.grow_depth)
    best = batch_sequences(wish.params, total, shape.sequence_length)
    if devices > best:
        raise UserError(
            f"--gpus {devices}: more than the {best} sequences of a step that suits {short_count(wish.params)} "
            f"parameters and {short_count(total)} tokens; use {best} or fewer"
        )
    return Draft(
        wish=wish,
        source=source,
        sequence_length=shape.sequence_length,
        batch_size=devices * round(best / devices),
        train_tokens=stage_tokens(sizes, total),
        shape=shape,
        sizes=sizes,
    )


def stage_tokens(sizes: Sequence[Size], total: int) -> list[int]:
    """Data tokens of each stage: half for the last, half for the others by size, but at most `MOST_BASE_TOKENS` per
    parameter, and what is left for the last."""
    parameters = [size.num_parameters for size in sizes[:-1]]
    each = min((1 - LAST_SHARE) * total / sum(parameters), MOST_BASE_TOKENS)
    before = [_three_digits(each * count) for count in parameters]
    return [*before, _three_digits(total - sum(before))]


def batch_sequences(params: int, tokens: int, sequence_length: int) -> int:
    """Sequences per step: the power of two nearest to the best batch for these FLOPs, up to the published one."""
    best = BATCH_FACTOR * (6 * params * tokens) ** BATCH_EXPONENT
    return max(1, min(2 ** round(math.log2(best)), LARGEST_BATCH) // sequence_length)


def peak_rate(params: int, optimizer: OptimizerName) -> float:
    """The peak learning rate: the published one from its smallest size on; below it on a line, in logarithms, from the
    quickstart to there."""
    slope = math.log(QUICKSTART_RATES[optimizer] / PUBLISHED_RATE) / math.log(PUBLISHED_SIZE / QUICKSTART_SIZE)
    size = min(max(params, QUICKSTART_SIZE), PUBLISHED_SIZE)
    return float(f"{PUBLISHED_RATE * (PUBLISHED_SIZE / size) ** slope:.1e}")


def _three_digits(tokens: float) -> int:
    """`tokens` as the schedule shows them."""
    return parse_count(short_count(round(tokens)))


def round_number(value: float) -> int:
    """The number nearest to `value` among 10, 20, 50, 100, 200, ..."""
    power = 10 ** max(1, math.floor(math.log10(max(value, 1))))
    return min((first * power for first in (1, 2, 5, 10)), key=lambda number: abs(math.log(number / max(value, 1))))
