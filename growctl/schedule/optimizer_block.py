"""The `optimizer` block of a schedule."""

import math
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from growctl.schedule.example import example
from growctl.schedule.launch_block import Block
from model.parameter_names import OptimizerName
from stages.spec import Optimizer

Beta = Annotated[float, Field(ge=0.0, lt=1.0)]

MOMENTUM = 0.95
"""The usual momentum of Muon."""

ADAMW_RMS = 0.2
"""About the root mean square of AdamW's updates at a learning rate of 1 (Liu et al., arXiv 2502.16982)."""


class OptimizerBlock(Block):
    """AdamW, whose defaults are the paper's values, or Muon for the matrices of the blocks."""

    name: Annotated[OptimizerName, example("muon")] = "adamw"
    """adamw: AdamW for all parameters. muon: DeepSpeed's Muon for the matrices of the blocks, each generation of
    parameter tokens by itself, and AdamW for the rest."""
    betas: Annotated[
        list[Beta],
        Field(min_length=2, max_length=2),
        example([0.9, 0.98], "pure numbers"),
    ] = [0.9, 0.95]
    """Decay per step of AdamW's running means of the gradient and of its square."""
    epsilon: Annotated[PositiveFloat, example(1e-6, "pure number")] = 1e-8
    """Added to the denominator of AdamW's update, so that it is never 0."""
    weight_decay: Annotated[NonNegativeFloat, example(0.01, "pure number")] = 0.1
    """Applied to matrices only. A step takes learning rate (AdamW's, also with Muon) times this share of a weight."""
    gradient_clipping: Annotated[NonNegativeFloat, example(0.5, "L2 norm of the gradient")] = 1.0
    """Largest global gradient norm; 0 turns clipping off. With muon the default is 0 and nothing else is possible."""
    momentum: Annotated[Beta, example(0.9, "pure number")] = MOMENTUM
    """Decay per step of Muon's running mean of the gradient."""
    muon_lr_scale: Annotated[PositiveFloat | None, example(8.0, "factor")] = None
    """Muon's learning rate as a multiple of AdamW's, which is that of the learning_rate block. By default 0.2 times
    the square root of the model's width: then Muon's updates are about as large as AdamW's would be."""

    @model_validator(mode="before")
    @classmethod
    def _no_clipping_with_muon(cls, data: Any) -> Any:
        """Turns clipping off for Muon unless the schedule sets it."""
        if isinstance(data, dict) and data.get("name") == "muon":
            return {"gradient_clipping": 0.0} | data
        return data

    def optimizer(self, hidden_size: int) -> Optimizer:
        """Returns the worker's form of this block, for a model of this width."""
        first, second = self.betas
        usual_scale = ADAMW_RMS * math.sqrt(hidden_size) if self.name == "muon" else 1.0
        return Optimizer(
            name=self.name,
            betas=(first, second),
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
            gradient_clipping=self.gradient_clipping,
            momentum=self.momentum,
            muon_lr_scale=self.muon_lr_scale or usual_scale,
        )
