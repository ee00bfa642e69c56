"""Parameter groups for an optimizer: one per generation and kind of parameter."""

from collections.abc import Callable
from typing import Any

from torch import nn

from model.language_model import bare_model
from model.parameter_names import GROUP_KINDS, OptimizerName, generation_of, group_kind, group_name


def parameter_groups(
    model: nn.Module, weight_decay: float | Callable[[int], float], optimizer: OptimizerName = "adamw"
) -> list[dict[str, Any]]:
    """Groups for `torch.optim.AdamW`, from generation 0 on, without empty ones.

    Growth appends groups and does not change the earlier ones. Besides `params` and `weight_decay`, a group has its
    `name`, its `generation`, and `use_muon`, which is true for what Muon updates if that is the `optimizer`.
    `weight_decay` is that of all matrices, or a function of their generation.

    `model` may be wrapped, by `torch.compile` for example. Raises UserError if it is not a growctl model
    (`model.language_model.bare_model`).
    """
    decay_of = weight_decay if callable(weight_decay) else lambda generation: weight_decay
    groups: dict[tuple[int, int], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in bare_model(model).named_parameters():
        kind = GROUP_KINDS.index(group_kind(name, parameter.ndim, optimizer))
        groups.setdefault((generation_of(name), kind), []).append((name, parameter))
    return [
        {
            "name": group_name(named[0][0], named[0][1].ndim, optimizer),
            "generation": generation,
            "params": [parameter for _, parameter in named],
            "weight_decay": 0.0 if GROUP_KINDS[kind] == "no-decay" else decay_of(generation),
            "use_muon": GROUP_KINDS[kind] == "muon",
        }
        for (generation, kind), named in sorted(groups.items())
    ]
