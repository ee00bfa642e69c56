"""Which sizes each growth operator of the Transformer allows, and when to stack. No torch: plans start fast.

The operators themselves, with their sources, are in `model.transformer_growth`.
"""

import math
from typing import Literal, get_args

from model.config import TransformerConfig
from model.errors import UserError

Operator = Literal["net2net", "hypercloning", "stack", "identity-blocks"]

PRESERVING: frozenset[Operator] = frozenset({"net2net", "hypercloning", "identity-blocks"})
"""Operators after which the model is the same function, to float rounding."""

WIDENING: frozenset[Operator] = frozenset({"net2net", "hypercloning"})
"""Operators that grow hidden_size, num_heads and ffn_size; the others grow num_layers."""


def check_transformer_growth(old: TransformerConfig, new: TransformerConfig, operator: Operator) -> None:
    """UserError, with what is allowed, unless `operator` can grow `old` to `new`.

    No operator changes the head width (rotary embedding and 1/sqrt(E) stay), the vocabulary, the rotary embedding or
    norm_epsilon. Whatever it does grow must become larger.
    """
    if operator not in get_args(Operator):
        raise UserError(f"operator {operator!r} is unknown; it must be one of {', '.join(get_args(Operator))}")
    sizes = ("hidden_size", "num_heads", "ffn_size") if operator in WIDENING else ("num_layers",)
    for field, value in old.model_dump(exclude=set(sizes)).items():
        if getattr(new, field) != value:
            raise UserError(
                f"{operator} grows {', '.join(sizes)} alone, so {field} must stay {value}; it is {getattr(new, field)}"
            )

    width, heads, ffn, depth = old.hidden_size, old.num_heads, old.ffn_size, old.num_layers
    factor = new.hidden_size // width
    multiple = (new.hidden_size, new.num_heads) == (factor * width, factor * heads)
    if operator == "net2net":
        fits = multiple and new.ffn_size >= ffn and new != old
        allowed = (
            f"hidden_size {width} and num_heads {heads} times one integer, ffn_size {ffn} or more, one of them larger"
        )
    elif operator == "hypercloning":
        fits = multiple and new.ffn_size == factor * ffn and factor > 1
        allowed = f"hidden_size {width}, num_heads {heads} and ffn_size {ffn} times one integer, 2 or more"
    elif operator == "stack":
        fits = new.num_layers % depth == 0 and new.num_layers > depth
        allowed = f"num_layers {depth} times an integer, 2 or more"
    else:
        fits = depth < new.num_layers <= 2 * depth
        allowed = f"num_layers from {depth + 1} to {2 * depth}"
    if not fits:
        asked = ", ".join(f"{size} {getattr(new, size)}" for size in sizes)
        raise UserError(f"{operator} grows to {allowed}; it is asked for {asked}")


def stack_tokens(num_parameters: float, flops: float) -> float:
    """Data tokens d to train the small model on before `stack`: log10 d = 0.88 log10 N + 163.27 / log10 C - 5.74.

    N is `num_parameters` of the stacked model, C is `flops`, the budget of the whole. Du et al. 2024 (arXiv 2405.15319,
    growth timing; they stack 4 times). Their table follows with C = 6 N D, D the data tokens of a run of the stacked
    size alone. It is a fit to large runs: d falls as C rises, and a toy budget gets more tokens than it can pay for
    (N = 1e7 and C = 1e15: 2e11 tokens, 12,000 times those of the budget).

    Raises UserError unless N is above 0 and C above 10.
    """
    if num_parameters <= 0 or flops <= 10:
        raise UserError(
            f"{num_parameters} parameters and {flops} FLOPs: the first must be above 0, the second above 10"
        )
    return 10.0 ** (0.88 * math.log10(num_parameters) + 163.27 / math.log10(flops) - 5.74)
