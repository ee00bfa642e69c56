"""Builds the process group and the DeepSpeed engine of a worker."""

import os
import socket
from typing import Any

import torch
import torch.distributed as dist

from model.language_model import LanguageModel
from model.precision import Precision, RequestedPrecision
from stages.engine.deepspeed_api import DeepSpeedEngine, deepspeed, default_pg_timeout
from stages.engine.devices import is_fast_at_bf16, resolve_precision, visible_gpus
from stages.engine.memory import reduce_bucket
from stages.engine.optimizers import build_optimizer, keep_momentum_of_rejected_updates
from stages.spec import TrainSpec

_RANKS = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
}
"""The variables that DeepSpeed's launcher sets for a rank, and the names that mpirun and srun use for them."""

LOOPBACK = "127.0.0.1"
"""The address where the ranks of one machine meet; other machines cannot reach it."""


def start_distributed() -> torch.device:
    """Joins the launcher's process group and returns this rank's device: its GPU, or else the CPU.

    If RANK is not set, the variables of mpirun or srun are used.
    """
    if "RANK" not in os.environ:
        for name, others in _RANKS.items():
            for other in others:
                if name not in os.environ and other in os.environ:
                    os.environ[name] = os.environ[other]
    if visible_gpus():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        _join("nccl", device)
        return device
    # DeepSpeed's all-reduce over shared memory would compile for 40 s at first use; gloo gives the same sums.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    _join("gloo", None)
    return torch.device("cpu")


def _join(backend: str, device: torch.device | None) -> None:
    """Creates the process group, which DeepSpeed then reuses; on several machines DeepSpeed creates it itself."""
    if os.environ.get("MASTER_ADDR") == LOOPBACK:
        store = _loopback_store()
        rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        bound = device if num_ranks > 1 else None  # as DeepSpeed does: a single rank has no peer to reach
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=num_ranks, timeout=default_pg_timeout, device_id=bound
        )
    deepspeed.init_distributed(dist_backend=backend)


def _loopback_store() -> dist.TCPStore:
    """The store through which the ranks of this machine meet.

    torch's own store would make rank 0 listen on every address of the machine.
    """
    port, num_ranks, is_first = int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"]), os.environ["RANK"] == "0"
    listener = socket.create_server((LOOPBACK, port), backlog=num_ranks).detach() if is_first else None
    return dist.TCPStore(
        LOOPBACK, port, num_ranks, is_first, default_pg_timeout, master_listen_fd=listener, use_libuv=True
    )


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
