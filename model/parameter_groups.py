"""Parameter groups for an optimizer: one per generation and decay/no-decay."""

from collections.abc import Callable
from typing import Any

from torch import nn

from model.language_model import bare_model
from model.parameter_names import generation_of


def group_name(parameter_name: str, num_dimensions: int) -> str:
    """The name of a parameter's group. Only matrices decay."""
    return f"generation-{generation_of(parameter_name)}-{'no-decay' if num_dimensions < 2 else 'decay'}"


def parameter_groups(model: nn.Module, weight_decay: float | Callable[[int], float]) -> list[dict[str, Any]]:
    """Groups for `torch.optim.AdamW`, from generation 0 on, without empty ones.

    Growth appends groups and does not change the earlier ones. Besides `params` and `weight_decay`, a group has its
    `name` and its `generation`. `weight_decay` is that of all matrices, or a function of their generation.

    `model` may be wrapped, by `torch.compile` for example. Raises UserError if it is not a growctl model
    (`model.language_model.bare_model`).
    """
    decay_of = weight_decay if callable(weight_decay) else lambda generation: weight_decay
    groups: dict[tuple[int, bool], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in bare_model(model).named_parameters():
        groups.setdefault((generation_of(name), parameter.ndim < 2), []).append((name, parameter))
    return [
        {
            "name": group_name(named[0][0], named[0][1].ndim),
            "generation": generation,
            "params": [parameter for _, parameter in named],
            "weight_decay": 0.0 if is_vector else decay_of(generation),
        }
        for (generation, is_vector), named in sorted(groups.items())
    ]
