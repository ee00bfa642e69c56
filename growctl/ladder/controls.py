"""Generates the controls of a schedule, each as a schedule of its own.

Every control has the ladder's data (from sample 0), seed and learning-rate block, and therefore its own warm-up
and decay (growctl/ladder/warnings.py warns if it has too few steps for them). Its cost is a multiple of the whole
ladder's FLOPs, or for `scratch-of-each-size` of a finished model's. A ladder's start checkpoint is paid for: what it
cost does not count, and all controls but those from scratch start from it too.
Where the ladder's stages weight the sources of a mixture differently, a control that has not these stages changes its
weights at the same shares of its own tokens. Batch and context are those of the ladder's stages; of a control from
scratch, those of the last one.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

from growctl.ladder.stage_plans import StagePlan, finished_models, in_steps, plan_release, plan_stages, total_flops
from growctl.runs_dir import CONTROL_INFIX
from growctl.schedule.blocks import ControlBlock, ModelBlock, Schedule, StageBlock
from growctl.schedule.data_block import FollowedWeights, shares
from growctl.schedule.training_blocks import POLICIES, GrowthBlock, LearningRateBlock
from model.decoder_config import DecoderConfig, decoder_config
from model.errors import UserError
from model.shapes import ModelConfig, num_parameters

_MULTIPLE = re.compile(r"-(peak)?[0-9.]+x$")
"""The budget or the peak at the end of a control's name. Digits are enough: the schema allows none with an exponent."""


@dataclass(frozen=True)
class ControlPlan:
    """A run to compare a ladder with, as a schedule."""

    kind: str
    name: str
    schedule: Schedule
    tunes: bool = False
    """Whether it tries one of several peaks."""
    awaits: tuple[str, ...] = ()
    """The runs that tune its peak, while that is not known. Until then, `schedule` has the ladder's."""

    def at_best_peak(self, rates: Mapping[str, LearningRateBlock], losses: Mapping[str, float | None]) -> "ControlPlan":
        """The plan with the rate of the tuning run that ended lowest, once all have ended; else unchanged.

        `rates` and `losses` are those of the tuning runs, by name; a loss is infinite for one that diverged, None for
        one that has not ended.
        """
        ended = {name: loss for name in self.awaits if (loss := losses[name]) is not None}
        best = min(ended, key=ended.__getitem__, default="")
        if not best or len(ended) < len(self.awaits) or math.isinf(ended[best]):
            return self
        return replace(self, schedule=self.schedule.model_copy(update={"learning_rate": rates[best]}), awaits=())


def plan_controls(schedule: Schedule, steps_done: Sequence[int] = ()) -> list[ControlPlan]:
    """The controls of `schedule`, in its order, but those that tune a peak before those that take it over.

    `steps_done` as in `plan_stages`: budgets follow the actual steps.
    """
    plans = plan_stages(schedule, steps_done)
    schedule = in_steps(schedule, [plan.num_steps for plan in plans])  # a control has a budget of its own
    controls = []
    for block in schedule.controls:
        is_tuned, tuning = len(block.peaks) > 1, min(block.budgets, key=lambda budget: abs(math.log(budget)))
        for budget in sorted(block.budgets, key=lambda budget: is_tuned and budget != tuning):
            for of_stage, control in _generated(schedule, plans, block, budget):
                stages = [stage.model_copy(update={"release": None}) for stage in control.stages]
                tunes = is_tuned and budget == tuning
                tried = [control_name(schedule, block.kind, of_stage, tuning, peak) for peak in block.peaks]
                for peak in block.peaks if tunes else [1.0]:
                    name = control_name(schedule, block.kind, of_stage, budget, peak)
                    rate = control.learning_rate.model_copy(update={"peak": peak * control.learning_rate.peak})
                    update = {"name": name, "controls": [], "releases": None, "stages": stages, "learning_rate": rate}
                    awaits = tuple(tried) if is_tuned and not tunes else ()
                    controls.append(ControlPlan(block.kind, name, control.model_copy(update=update), tunes, awaits))
    return controls


def control_name(schedule: Schedule, kind: str, stage: str, budget: float, peak: float = 1.0) -> str:
    """The unique name of a control's run. It leaves out a peak of 1, and a budget of 1 unless the stage's name ends
    like a budget or a peak. A peak that tuning finds is not in it: the run has its name before."""
    budgets = "" if budget == 1 and not _MULTIPLE.search(stage) else f"{budget:g}x"
    words = (kind, stage, budgets, "" if peak == 1 else f"peak{peak:.3g}x")
    return f"{schedule.name}{CONTROL_INFIX}" + "-".join(filter(None, words))


def _generated(
    schedule: Schedule, plans: list[StagePlan], block: ControlBlock, budget: float
) -> Iterator[tuple[str, Schedule]]:
    """(stage name or "", schedule) of each run for one entry of `controls` at one budget."""
    last, total, largest = len(plans) - 1, total_flops(plans).total, plans[-1].model
    kind, own = block.kind, {*block.budgets} if len(block.peaks) > 1 else {budget}
    others = {each.kind for each in schedule.controls if each.peaks == block.peaks and own <= {*each.budgets}}
    is_twinned = f"{schedule.model.family}-scratch" in others  # it trains the last size at this budget
    if kind == "best-scratch":
        for index, plan in enumerate(plans):
            is_last_of_its_size = index == last or plans[index + 1].is_grown
            if is_last_of_its_size and (index < last or not is_twinned):
                yield plan.name, _scratch(schedule, index, plan.model, budget * total, plans)
        for depth in block.depths:
            same_layers = {"blocks": largest.blocks[:1] * depth, "block_ids": tuple(range(depth))}
            model = largest.model_copy(update=same_layers)
            yield of_depth(depth), _scratch(schedule, last, model, budget * total, plans)
    elif kind == "scratch-of-each-size":
        for plan, cost in finished_models(schedule, plans):
            if cost.total < total or not (is_twinned or "best-scratch" in others):
                followed = plans[: plan.index + 1]
                yield plan.name, _scratch(schedule, plan.index, plan.model, budget * cost.total, followed)
    elif kind == "tokenformer-scratch":
        yield "", _scratch(schedule, last, largest, budget * total, plans)
    elif kind == "decoder-scratch":
        shape = largest if isinstance(largest, DecoderConfig) else equal_size_decoder(largest)
        yield "", _scratch(schedule, last, shape, budget * total, plans)
    elif kind == "single-jump":
        jump = _with_flops(_single_jump(schedule, plans), budget * total)
        yield "", _following(jump, schedule, plans[1:])
    elif kind == "ungrown":
        yield "", _following(_with_flops(_ungrown(schedule), budget * total), schedule, plans)
    else:
        yield "", _official_growth(schedule, plans, budget)


def of_depth(num_layers: int) -> str:
    """What a control of another depth than the ladder's has in its name, in place of a stage's."""
    return f"{num_layers}-layers"


def _scratch(
    schedule: Schedule, index: int, shape: ModelConfig, flops: float, followed: Sequence[StagePlan]
) -> Schedule:
    """A schedule of one stage that trains a new model of that shape for `flops`, on the machines of stage `index`.

    Its batch and its context are those of the ladder's last stage, in which losses are measured. It reads a mixture as
    the stages `followed` do.
    """
    last = schedule.stages[-1]
    batch = {key: getattr(last, key) for key in ("batch_size", "sequence_length")}
    model: dict[str, Any] = {"num_layers": shape.num_layers}
    if isinstance(shape, DecoderConfig):
        model |= shape.model_dump(include={"family", "hidden_size", "num_heads", "num_kv_heads", "head_width"})
        model |= {key: ModelBlock.model_fields[key].default for key in ("score_function", "routing")}  # it has neither
    update = {
        "start": None,
        "stages": [_bare(schedule.stages[index]).model_copy(update=batch | _tokens(shape))],
        "model": schedule.model.model_copy(update=model),
        "launch": _launch(schedule, index),
    }
    return _following(_with_flops(schedule.model_copy(update=update), flops), schedule, followed)


def _single_jump(schedule: Schedule, plans: list[StagePlan]) -> Schedule:
    """The ladder's first stage unchanged, then its last size in one growth."""
    shape = plans[-1].model
    sizes = _tokens(shape)
    if shape.num_layers > plans[0].model.num_layers:
        sizes["num_layers"] = shape.num_layers
    if isinstance(shape, DecoderConfig):
        sizes |= shape.model_dump(include={"hidden_size", "num_heads"})
    last = _bare(schedule.stages[-1]).model_copy(update=sizes)
    update = {
        "stages": [_with_steps(schedule.stages[0], plans[0].num_steps), last],
        "growth": _fixed_growth(schedule),
        "launch": _launch(schedule, 0, len(plans) - 1),
    }
    return schedule.model_copy(update=update)


def _ungrown(schedule: Schedule) -> Schedule:
    """The start checkpoint trained further at its own size, with the batch and context of the ladder's last stage."""
    own = {"name": "ungrown", "attention_tokens": None, "ffn_tokens": None}
    stage = _bare(schedule.stages[-1]).model_copy(update=own)
    update = {"stages": [stage], "growth": _fixed_growth(schedule), "launch": _launch(schedule, 0)}
    return schedule.model_copy(update=update)


def _tokens(shape: ModelConfig) -> dict[str, int | None]:
    """The keys of a stage for the parameter tokens of a model whose layers are equal; without values if it has none."""
    sizes: tuple[int | None, int | None] = (None, None)
    if isinstance(shape, DecoderConfig):
        sizes = None, shape.ffn_tokens
    elif shape.blocks:
        sizes = shape.blocks[0].query.num_tokens, shape.blocks[0].ffn.num_tokens
    return dict(zip(("attention_tokens", "ffn_tokens"), sizes, strict=True))


def _official_growth(schedule: Schedule, plans: list[StagePlan], budget: float) -> Schedule:
    """The same ladder with the growth policy of the official code, which ramps nothing; all else is the ladder's."""
    stages = [
        _with_steps(stage.model_copy(update={"ramp_steps": None}), max(1, round(budget * plan.num_steps)))
        for stage, plan in zip(schedule.stages, plans, strict=True)
    ]
    growth = _fixed_growth(schedule).model_copy(update={"preset": "official", "routing": None, **POLICIES["official"]})
    return schedule.model_copy(update={"stages": stages, "growth": growth})


def _fixed_growth(schedule: Schedule) -> GrowthBlock:
    """The ladder's growth without its slope, which could end a control's stages before their budget."""
    return schedule.growth.model_copy(update={"when": "fixed", "slope": None})


def _with_flops(schedule: Schedule, flops: float) -> Schedule:
    """`schedule` with as many steps in its last stage as bring the total to `flops`; at least one step."""
    *before, last = schedule.stages
    *spent, plan = plan_stages(schedule.model_copy(update={"stages": [*before, _with_steps(last, 1)]}))
    if (left := flops - total_flops(spent).total) <= 0:
        raise UserError("the stages before the last take the whole budget; give it a larger one")
    steps = round(left / plan.step_flops.total)
    return schedule.model_copy(update={"stages": [*before, _with_steps(last, max(1, steps))]})


def _following(control: Schedule, schedule: Schedule, followed: Sequence[StagePlan]) -> Schedule:
    """`control`, whose last stage gives the sources of a mixture the weights of the stages `followed` of the ladder.

    They change at the same shares of its own tokens. The release of the last one and, before the first, the start
    checkpoint count as parts of these stages.
    """
    if not schedule.data.mixture or not followed:
        return control
    *before, last = control.stages
    assert last.train_steps
    release = plan_release(schedule, followed[-1])
    started = (schedule.base.tokens or 0) if schedule.base and followed[0].index == 0 else 0
    total = started + sum(plan.budget_tokens for plan in followed) + (release.budget_tokens if release else 0)
    weights: list[FollowedWeights] = []
    position = 0
    for plan in followed:
        first_step = round(last.train_steps * position / total)
        for step, each in schedule.weights_of(plan.index):
            if not weights or shares(weights[-1].weights) != shares(each):
                after = weights[-1].first_step + 1 if weights else 0  # the control's steps are few
                weights.append(FollowedWeights(first_step=max(first_step + step, after), weights=each))
        position += plan.budget_tokens + (started if plan is followed[0] else 0)
    changes = len(weights) > 1
    update = {"mixture": None if changes else weights[0].weights, "followed": weights if changes else None}
    return control.model_copy(update={"stages": [*before, last.model_copy(update=update)]})


def _bare(stage: StageBlock) -> StageBlock:
    """A stage without the keys that describe how it grows from the one before."""
    return stage.model_copy(update=dict.fromkeys(("layers", "num_layers", "hidden_size", "num_heads", "ramp_steps")))


def _launch(schedule: Schedule, *stages: int) -> Any:
    """The launch block with the numbers of machines of those stages."""
    nodes = [schedule.launch.nodes_of(stage) for stage in stages]
    one_for_all = isinstance(schedule.launch.nodes, int)
    return schedule.launch if one_for_all else schedule.launch.model_copy(update={"nodes": nodes})


def _with_steps(stage: StageBlock, steps: int) -> StageBlock:
    return stage.model_copy(update={"train_tokens": None, "train_steps": steps})


CLOSE = 0.02
"""Largest difference in log parameters at which the FFN keeps its usual 4 times the width."""

MOST_LAYERS = 1000
"""The most that a schedule allows."""

_MISS, _SKEW, _FFN_SKEW = 10.0, 0.02, 0.1
"""Weights of a shape's logarithmic distances from the target size, the aspect ratio and the usual FFN size. An aspect
ratio that is off by more than a factor of 2 also adds the excess in full."""


class _Shape(NamedTuple):
    num_layers: int
    num_heads: int
    head_width: int
    ffn_tokens: int


@lru_cache(maxsize=64)
def equal_size_decoder(model: ModelConfig) -> DecoderConfig:
    """The decoder nearest to `model` in parameters, with its vocabulary and head width and nearly its aspect ratio.

    Tokenformers grow at constant width; a decoder of the same size is wider and deeper, as usual in practice. Its
    FFN is 4 times as wide as the model if that comes within `CLOSE` of the size, else 1 to 8 times. Heads are narrower
    only if no number of heads of the same width comes as close.
    """
    target, aspect = num_parameters(model), model.hidden_size / model.num_layers

    @cache
    def counts(num_heads: int, head_width: int) -> tuple[int, int, int]:
        """Numbers of parameters: outside the layers, in a layer without its FFN, per inner unit of an FFN."""
        one, two, wider = (
            num_parameters(_config(model, _Shape(num_layers, num_heads, head_width, ffn_tokens)))
            for num_layers, ffn_tokens in ((1, 1), (2, 1), (1, 2))
        )
        return 2 * one - two, two - wider, wider - one

    def size(shape: _Shape) -> int:
        outside, layer, ffn = counts(shape.num_heads, shape.head_width)
        return outside + shape.num_layers * (layer + ffn * shape.ffn_tokens)

    def miss(shape: _Shape) -> float:
        return abs(math.log(size(shape) / target))

    def skew(shape: _Shape) -> float:
        """The penalty for an aspect ratio unlike the model's."""
        skew = abs(math.log(shape.num_heads * shape.head_width / shape.num_layers / aspect))
        return _SKEW * skew + max(0.0, skew - math.log(2))

    def distance(shape: _Shape) -> float:
        ffn_skew = abs(math.log(shape.ffn_tokens / (4 * shape.num_heads * shape.head_width)))
        return _MISS * miss(shape) + skew(shape) + _FFN_SKEW * ffn_skew

    def usual(head_width: int, around: int) -> Iterator[_Shape]:
        """For every depth, the `around` nearest shapes on either side of the target; an FFN has 4 times the width."""

        def shape(num_layers: int, num_heads: int) -> _Shape:
            return _Shape(num_layers, num_heads, head_width, 4 * num_heads * head_width)

        heads = range(1, target // (model.vocab_size * head_width) + 3)  # the last one's embedding is large enough
        for num_layers in range(1, min(MOST_LAYERS, 8 * model.num_layers) + 1):
            larger = bisect_left(heads, target, key=lambda number: size(shape(num_layers, number)))
            yield from (shape(num_layers, number) for number in heads[max(0, larger - around) : larger + around])

    def fitted(head_width: int) -> Iterator[_Shape]:
        """For every depth, a few shapes, each with the FFN (1 to 8 times the width) that brings it nearest in size."""
        for shape in usual(head_width, around=2):
            per_unit, width = counts(shape.num_heads, head_width)[2], shape.num_heads * head_width
            ffn_tokens = round((target - size(shape._replace(ffn_tokens=0))) / (shape.num_layers * per_unit))
            yield shape._replace(ffn_tokens=min(max(ffn_tokens, width), 8 * width))

    best, head_width = min(usual(model.head_width, around=1), key=lambda s: miss(s) + skew(s)), model.head_width
    while miss(best) > CLOSE and head_width >= 1:
        turned = int(head_width * model.rotary_fraction)  # rotary embeddings rotate whole pairs
        if not model.rotary_fraction or (turned >= 2 and turned % 2 == 0):
            best = min(best, *fitted(head_width), key=distance)
        head_width //= 2
    return _config(model, best)


def _config(model: ModelConfig, shape: _Shape) -> DecoderConfig:
    shared = {"vocab_size", "norm", "norm_epsilon", "qk_norm", "tie_embeddings", "image"}
    shared |= {"rotary_fraction", "rotary_base", "rotary_scaling"}
    group = model.num_heads // model.num_kv_heads
    return decoder_config(
        hidden_size=shape.num_heads * shape.head_width,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_heads // (1 if shape.num_heads % group else group),
        num_layers=shape.num_layers,
        ffn_tokens=shape.ffn_tokens,
        **{name: getattr(model, name) for name in shared},
    )
