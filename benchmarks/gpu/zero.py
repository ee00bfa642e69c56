"""Compares growctl's DeepSpeed engine (ZeRO-1, one rank) with the plain loop, and its memory with `plan`'s."""

import os
import socket
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.section import Section
from benchmarks.gpu.settings import KERNELS, Kernels
from benchmarks.gpu.timing import free_memory, spread, step_seconds
from benchmarks.gpu.training import Batch, PlainLoop, filled_model, forget_compiled, random_batch, tokenformer
from model.tokenformer_config import TokenformerConfig
from stages.engine.engine import build_engine
from stages.engine.engine_state import start_moments
from stages.engine.memory import TrainingMemory
from stages.engine.rank_process import start_distributed
from stages.probe.time_steps import step_memory
from stages.spec import LearningRate, Optimizer, TrainSpec


def measure(section: Section) -> None:
    """Measures every size with all kernels that a run can use; `plan` assumes eager ones."""
    section.facts |= {"context": section.settings.context, "micro_batches": section.settings.micro_batches}
    join_alone()
    for kernels in KERNELS[:1] if section.trial else KERNELS:
        if kernels in section.without:
            continue
        for size in section.settings.zero_sizes:
            section.case(partial(one_size, section, size, kernels), size=size, kernels=kernels)


def one_size(section: Section, size: str, kernels: Kernels) -> dict[str, Any]:
    """Seconds per step of both loops over the same micro-batches; the engine's bytes and `plan`'s."""
    forget_compiled()
    settings, device = section.settings, section.device
    config = tokenformer(settings, size)
    micro_batch_size = settings.rows // settings.context
    batch = random_batch(config.vocab_size, micro_batch_size, settings.context, settings.micro_batches, device)
    plain_seconds = timed(section, partial(PlainLoop(filled_model(config, device), kernels).step, batch))
    free_memory()
    spec = train_spec(config, kernels, micro_batch_size, settings.context, settings.micro_batches)
    engine = build_engine(filled_model(config, device), spec, "bf16")
    start_moments(engine, {})
    engine_seconds = timed(section, partial(engine_step, engine, batch))
    found = {
        "plain_seconds": plain_seconds,
        "engine_seconds": engine_seconds,
        "engine_over_plain": round(engine_seconds["median"] / plain_seconds["median"], 4),
    }
    if device.type == "cuda":
        ids_BT = batch[0][0]
        measured = step_memory(engine, (ids_BT, ids_BT), settings.micro_batches)
        found |= memory(config, measured.model_dump(), settings, ids_BT)
    engine.destroy()
    return found | {"says": f"ZeRO-1 takes {found['engine_over_plain']} times the plain loop's time"}


def memory(config: TokenformerConfig, measured: dict[str, int], settings: Any, ids_BT: torch.Tensor) -> dict[str, Any]:
    """Bytes by part: as allocated, as `plan` predicts, and their ratio."""
    planned = TrainingMemory(
        config, zero_stage=1, world_size=1, precision="bf16", sequence_length=settings.context, device="cuda"
    ).of(len(ids_BT))
    parts = {
        "lasting_bytes": planned.parameters + planned.gradients + planned.optimizer,
        "activation_bytes": planned.activations,
        "peak_bytes": planned.total,
    }
    return {
        "measured_memory": measured,
        "planned_memory": parts,
        "planned_over_measured": {name: round(parts[name] / max(1, measured[name]), 4) for name in parts},
    }


def timed(section: Section, step: Any) -> dict[str, Any]:
    """The seconds of each step after the warm-up."""
    step_seconds(step, section.device, section.settings.warm_up_steps)
    return spread(step_seconds(step, section.device, section.settings.steps))


def engine_step(engine: Any, batch: Batch) -> None:
    """Makes one update as stages/train/worker.py does."""
    for input_ids_BT, targets_BT in batch:
        engine.backward(engine(input_ids_BT, targets_BT))
        engine.step()


def join_alone() -> None:
    """Creates a process group of only this process, without a launcher; it lasts as long as the process."""
    if dist.is_initialized():
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    start_distributed()


def train_spec(
    model: TokenformerConfig, kernels: Kernels, micro_batch_size: int, context: int, micro_batches: int
) -> TrainSpec:
    """The spec that a worker would get, with a constant learning rate and without data."""
    rate = LearningRate(
        shape="wsd", peak=1e-4, final=0.0, warmup_steps=0, decay_steps=0, total_steps=10**6, first_step=0
    )
    return TrainSpec(
        stage="benchmark",
        attempt=1,
        directory="",
        dataset="",
        model=model,
        initial=None,
        resume=None,
        seed=0,
        samples_seen=0,
        num_steps=10**6,
        batch_size=micro_batch_size * micro_batches,
        micro_batch_size=micro_batch_size,
        sequence_length=context,
        window_length=context,
        evaluation_length=context,
        learning_rate=rate,
        optimizer=Optimizer(betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, gradient_clipping=1.0),
        ramp_steps=0,
        zero_stage=1,
        precision="bf16",
        kernels=kernels,
        log_every=10**6,
        evaluate_every=10**6,
        checkpoint_every=10**6,
        keep_checkpoints=1,
        evaluation_sequences=None,
        launched_at=0.0,
    )
