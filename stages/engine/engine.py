"""Builds the DeepSpeed engine of a worker, with AdamW or DeepSpeed's Muon on the model's parameter groups.

Muon replaces the gradient of a matrix by its momentum, orthogonalised by Newton-Schulz iterations. Each generation of
parameter tokens is such a matrix by itself.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from model.language_model import LanguageModel
from model.parameter_groups import parameter_groups
from model.precision import Precision, RequestedPrecision
from stages.engine.deepspeed_api import (
    ZERO_SUPPORTED_OPTIMIZERS,
    DeepSpeedEngine,
    MuonWithAuxAdam,
    combine_grad_norm_groups,
    deepspeed,
    is_invalid_grad_norm,
)
from stages.engine.devices import is_fast_at_bf16, resolve_precision
from stages.engine.memory import reduce_bucket
from stages.spec import TrainSpec


def outside_the_compiler(optimizer: type[torch.optim.Optimizer], name: str) -> Callable[..., Any]:
    """The method of torch's optimizer without its wrappers for torch's compiler."""
    return inspect.unwrap(getattr(optimizer, name))


class EagerAdamW(torch.optim.AdamW):
    """torch's AdamW, with the same bits.

    torch wraps these methods to keep them out of compiled code, and the first call imports the compiler for that: 1.5
    seconds of each worker's start. No worker compiles its optimizer.
    """

    step = torch.no_grad()(outside_the_compiler(torch.optim.AdamW, "step"))
    add_param_group = outside_the_compiler(torch.optim.AdamW, "add_param_group")
    zero_grad = outside_the_compiler(torch.optim.AdamW, "zero_grad")
    state_dict = outside_the_compiler(torch.optim.AdamW, "state_dict")
    load_state_dict = outside_the_compiler(torch.optim.AdamW, "load_state_dict")


ZERO_SUPPORTED_OPTIMIZERS.append(EagerAdamW)
"""As torch's own is. DeepSpeed warns of others."""


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


def build_optimizer(model: LanguageModel, spec: TrainSpec) -> torch.optim.Optimizer:
    """AdamW over the model's parameter groups, or Muon over the matrices of its blocks and AdamW over the others.

    Fused: one pass over each tensor without temporary memory; the default makes a dozen passes.
    """
    settings, rate = spec.optimizer, spec.learning_rate.at(0)
    groups = parameter_groups(model, spec.weight_decay, settings.name)
    if settings.name == "adamw":
        return EagerAdamW(groups, lr=rate, betas=settings.betas, eps=settings.epsilon, fused=True)
    for group in groups:
        group["lr"] = rate
        if group["use_muon"]:
            # A step decays a weight by the product of rate and decay, which stays what it is for AdamW's matrices.
            group |= {"momentum": settings.momentum, "ns_method": "gram"}
            group["weight_decay"] /= settings.muon_lr_scale
        else:
            group |= {"betas": settings.betas, "eps": settings.epsilon}
        for parameter in group["params"]:
            parameter.use_muon = group["use_muon"]
    return EagerMuon(groups, adam_optimizer=EagerAdamW, adam_optimizer_kwargs={"fused": True})


def choose_precision(requested: RequestedPrecision, device: torch.device) -> Precision:
    """The precision that a rank trains in on its device."""
    return resolve_precision(requested, is_fast_at_bf16(device))


def build_engine(model: LanguageModel, spec: TrainSpec, precision: Precision) -> DeepSpeedEngine:
    """Wraps `model` in an engine: ZeRO, gradient accumulation in float32, clipping, float32 master weights.

    The training loop sets the learning rate; DeepSpeed's schedulers are not used.
    """
    model.use_kernels(spec.kernels)
    model.recompute_every = spec.recompute_every
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    zero: dict[str, Any] = {"stage": spec.zero_stage, "reduce_bucket_size": reduce_bucket(num_parameters)}
    if spec.offload == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_batch_size": spec.batch_size,
        "train_micro_batch_size_per_gpu": spec.micro_batch_size,
        "gradient_accumulation_steps": spec.batch_size // (spec.micro_batch_size * dist.get_world_size()),
        "gradient_clipping": spec.optimizer.gradient_clipping,
        # The same float32 sums, made as gradients arrive, so that the bf16 gradients are freed during the pass.
        "bf16": {"enabled": precision == "bf16", "immediate_grad_update": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,  # offloading also uses the AdamW above: same numbers, no compiler
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000_000,
    }
    muon_on_zero_3 = spec.optimizer.name == "muon" and spec.zero_stage == 3
    if muon_on_zero_3:  # which then gathers gradients and momentum in float32
        zero["reduce_scatter"], config["communication_data_type"] = False, "fp32"
    engine, *_ = deepspeed.initialize(model=model, optimizer=build_optimizer(model, spec), config=config)
    if muon_on_zero_3:
        keep_momentum_of_rejected_updates(engine)
    return engine


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
