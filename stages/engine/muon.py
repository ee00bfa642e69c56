"""DeepSpeed's Muon on a model's parameter groups.

Muon replaces the gradient of a matrix by its momentum, orthogonalised by Newton-Schulz iterations. Each generation of
parameter tokens is such a matrix by itself.

Import this module after `stages.engine.engine.import_muon_uncompiled`.
"""

from typing import Any

import torch
from deepspeed.runtime.utils import combine_grad_norm_groups, is_invalid_grad_norm
from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

from model.errors import UserError
from model.language_model import LanguageModel
from model.parameter_groups import parameter_groups
from model.precision import Precision
from stages.engine.adamw import EagerAdamW, outside_the_compiler
from stages.engine.deepspeed_api import DeepSpeedEngine
from stages.engine.muon_limits import muon_conflicts
from stages.spec import TrainSpec


class EagerMuon(MuonWithAuxAdam):
    """DeepSpeed's Muon with EagerAdamW for the other parameters. Counts Muon's steps, as AdamW counts its own.

    The name matters: DeepSpeed's ZeRO-1 and 2 train with plain SGD unless the name of the class contains "muon".
    """

    add_param_group = outside_the_compiler(torch.optim.Optimizer, "add_param_group")
    zero_grad = outside_the_compiler(torch.optim.Optimizer, "zero_grad")
    state_dict = outside_the_compiler(torch.optim.Optimizer, "state_dict")

    @torch.no_grad()
    def step(self, closure: Any = None, step_id: int | None = None) -> Any:
        """Makes one update of the parameters in `param_groups`, whose gradients DeepSpeed has orthogonalised."""
        for group in self.param_groups:
            for flat in group["params"] if group["use_muon"] else ():
                self.state[flat]["step"] += 1
        return super().step(closure, step_id)


def muon(model: LanguageModel, spec: TrainSpec) -> EagerMuon:
    """Muon over the matrices of the model's blocks, and AdamW over its other parameters."""
    settings = spec.optimizer
    groups = parameter_groups(model, spec.weight_decay, "muon")
    for group in groups:
        group["lr"] = spec.learning_rate.at(0)
        if group["use_muon"]:
            # A step decays a weight by the product of rate and decay, which stays what it is for AdamW's matrices.
            group |= {"momentum": settings.momentum, "ns_method": "gram"}
            group["weight_decay"] /= settings.muon_lr_scale
        else:
            group |= {"betas": settings.betas, "eps": settings.epsilon}
        for parameter in group["params"]:
            parameter.use_muon = group["use_muon"]
    return EagerMuon(groups, adam_optimizer=EagerAdamW, adam_optimizer_kwargs={"fused": True})


def deepspeed_options(spec: TrainSpec, precision: Precision) -> tuple[dict[str, Any], dict[str, Any]]:
    """What DeepSpeed's configuration must say for Muon: (in general, in its section `zero_optimization`).

    With it, ZeRO-3 gathers gradients and momentum in float32. Raises UserError if this engine cannot be exact.
    """
    for conflict in muon_conflicts(
        gradient_clipping=spec.optimizer.gradient_clipping,
        offload=spec.offload,
        zero_stage=spec.zero_stage,
        precision=precision,
    ):
        raise UserError(conflict)
    return ({"communication_data_type": "fp32"}, {"reduce_scatter": False}) if spec.zero_stage == 3 else ({}, {})


def keep_momentum_of_rejected_updates(engine: DeepSpeedEngine) -> None:
    """Has ZeRO-3 leave Muon's momentum alone if any gradient is not finite.

    By itself it would update the momentum of all matrices whose own gradients are finite, and reject the update after.
    """
    wrapper = engine.optimizer
    orthogonalise = wrapper._apply_muon_to_accumulated_grads

    def orthogonalise_if_finite() -> None:
        if not is_invalid_grad_norm(combine_grad_norm_groups(wrapper._get_norm_groups())):
            orthogonalise()

    wrapper._apply_muon_to_accumulated_grads = orthogonalise_if_finite
