"""The runs that a schedule generates to be compared with: each a schedule of its own."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from growctl.plan import plan_stages, total_flops
from growctl.schema import Schedule, StageBlock
from model.config import TokenformerConfig, TransformerConfig, num_parameters

_NO_GROWTH = dict.fromkeys(("layers", "num_layers", "hidden_size", "ffn_size"))
"""What a control's only stage does not say."""


@dataclass(frozen=True)
class ControlPlan:
    """A run to compare a ladder with: a schedule of its own."""

    kind: str
    name: str
    schedule: Schedule


def plan_controls(schedule: Schedule, steps_done: Sequence[int] = ()) -> list[ControlPlan]:
    """The controls of `schedule`, each a schedule of one stage whose FLOPs are a multiple of the whole ladder's.

    `steps_done` as in `plan_stages`.
    The same data, seed, batch and learning-rate block; the control's own warm-up and its own full decay.
    """
    plans = plan_stages(schedule, steps_done)
    controls = []
    for block in schedule.controls:
        for budget in block.budgets:
            last = schedule.stages[-1].model_copy(update=_NO_GROWTH)
            update: dict[str, object] = {"controls": []}
            if block.kind == "transformer-scratch":
                largest = plans[-1].model
                shape = largest if isinstance(largest, TransformerConfig) else equal_size_transformer(largest)
                update["model"] = schedule.model.model_copy(
                    update={
                        "family": "transformer",
                        "num_layers": shape.num_layers,
                        "hidden_size": shape.hidden_size,
                        "num_heads": shape.num_heads,
                        "ffn_size": shape.ffn_size,
                    }
                )
                last = last.model_copy(update={"attention_tokens": None, "ffn_tokens": None})
            whole = schedule.model_copy(update=update | {"stages": [_with_steps(last, 1)]})
            steps = round(budget * total_flops(plans).total / plan_stages(whole)[0].step_flops.total)
            suffix = "" if budget == 1 else f"-{budget:g}x"
            name = f"{schedule.name}-control-{block.kind}{suffix}"
            stages = [_with_steps(last, max(1, steps))]
            controls.append(ControlPlan(block.kind, name, whole.model_copy(update={"name": name, "stages": stages})))
    return controls


def equal_size_transformer(model: TokenformerConfig | TransformerConfig) -> TransformerConfig:
    """The Transformer nearest to `model` in parameters, of the same vocabulary, head width and nearly its aspect ratio.

    Tokenformers grow at constant width; a Transformer of that size is wider and deeper, as one would build it.
    """
    aspect = model.hidden_size / model.num_layers
    target = num_parameters(model)

    def shaped(num_layers: int, num_heads: int) -> TransformerConfig:
        width = num_heads * model.head_width
        return TransformerConfig(
            vocab_size=model.vocab_size,
            hidden_size=width,
            num_heads=num_heads,
            num_layers=num_layers,
            ffn_size=4 * width,
            rotary_fraction=model.rotary_fraction,
            rotary_base=model.rotary_base,
        )

    @cache
    def one_and_two_layers(num_heads: int) -> tuple[int, int]:
        return num_parameters(shaped(1, num_heads)), num_parameters(shaped(2, num_heads))

    def size(num_layers: int, num_heads: int) -> int:
        one, two = one_and_two_layers(num_heads)
        return one + (num_layers - 1) * (two - one)

    def nearest(num_layers: int) -> list[tuple[int, int]]:
        heads = range(1, model.num_heads * 4 + 1)
        larger = bisect_left(heads, target, key=lambda num_heads: size(num_layers, num_heads))
        return [(num_layers, num_heads) for num_heads in heads[max(0, larger - 1) : larger + 1]]

    def distance(shape: tuple[int, int]) -> float:
        num_layers, num_heads = shape
        skew = abs(math.log(num_heads * model.head_width / num_layers / aspect))
        return abs(math.log(size(*shape) / target)) + 0.02 * skew + max(0.0, skew - math.log(2))

    depths = range(max(1, model.num_layers // 2), model.num_layers * 4 + 1)
    return shaped(*min((shape for depth in depths for shape in nearest(depth)), key=distance))


def _with_steps(stage: StageBlock, steps: int) -> StageBlock:
    return stage.model_copy(update={"train_tokens": None, "train_steps": steps})
