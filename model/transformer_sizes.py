"""The sizes that each Transformer growth operator allows.

Imports no torch, so that plans start fast.

`model.transformer_growth` has the operators themselves, with references.
"""

from typing import Literal, get_args

from model.config import TransformerConfig
from model.errors import UserError

Operator = Literal["net2net", "hypercloning", "stack", "identity-blocks"]

PRESERVING: frozenset[Operator] = frozenset({"net2net", "hypercloning", "identity-blocks"})
"""Operators that preserve the function, up to floating-point rounding."""

WIDENING: frozenset[Operator] = frozenset({"net2net", "hypercloning"})
"""Operators that increase hidden_size, num_heads and ffn_size; the others increase num_layers."""


def check_transformer_growth(old: TransformerConfig, new: TransformerConfig, operator: Operator) -> None:
    """Raises UserError, naming the allowed sizes, unless `operator` can grow `old` to `new`.

    No operator changes the head width (so the rotary embedding and 1/sqrt(E) stay the same), the vocabulary, the rotary
    embedding or norm_epsilon. At least one size must increase.
    """
    if operator not in get_args(Operator):
        raise UserError(f"operator {operator!r} is unknown; it must be one of {', '.join(get_args(Operator))}")
    sizes = ("hidden_size", "num_heads", "ffn_size") if operator in WIDENING else ("num_layers",)
    for field, value in old.model_dump(exclude=set(sizes)).items():
        if getattr(new, field) != value:
            raise UserError(
                f"{field} is {getattr(new, field)}; it must stay {value}, because {operator} only grows "
                f"{', '.join(sizes)}"
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
        raise UserError(f"{operator} cannot grow to {asked}; it can grow to {allowed}")
