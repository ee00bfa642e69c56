"""Growth as tensors: which parameters a growth adds, and the values and moments they begin with.

Growth is append-only. What was there keeps its names, its values and its Adam moments; a new generation is drawn like a
first one and enters with its keys at ramp 0, which leaves the function as it was (`model.config.grow_config`), then
`model.config.ramp_config` raises it to the published formula over the first steps.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from model.config import TokenformerConfig, parameter_shapes
from model.initialization import initial_parameter


class ParameterState(NamedTuple):
    """One parameter as an optimizer holds it: three float32 tensors of one shape."""

    fp32: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


def added_parameters(old: TokenformerConfig, new: TokenformerConfig) -> list[str]:
    """Names in `new` that `old` lacks. ValueError unless every parameter of `old` is in `new` with the same shape."""
    old_shapes, new_shapes = parameter_shapes(old), parameter_shapes(new)
    for name, shape in old_shapes.items():
        if new_shapes.get(name) != shape:
            raise ValueError(
                f"{name} has shape {list(shape)}, and {list(new_shapes.get(name, ()))} after growth; it must stay"
            )
    return [name for name in new_shapes if name not in old_shapes]


def draw_added(old: TokenformerConfig, new: TokenformerConfig, seed: int) -> Iterator[tuple[str, ParameterState]]:
    """The parameters that growth from `old` to `new` adds, one at a time: random values, moments at zero.

    Raises ValueError where `new` does not extend `old`.
    """
    for name in added_parameters(old, new):
        value = initial_parameter(name, new, seed)
        yield name, ParameterState(value, torch.zeros_like(value), torch.zeros_like(value))
