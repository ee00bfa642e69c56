"""The worker of `growctl plan --measure`: times a few optimizer steps of one size.

Started as stages.train.worker is:

    python -m stages.probe.time_steps SPEC.json

The engine is the same as in a run; the text is random tokens. Rank 0 writes `measured.json` into the spec's directory.
Shapes: B micro-batch, T sequence.
"""

import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from model.initialization import build_model
from stages.checkpoint.files import write_file
from stages.engine.deepspeed_api import DeepSpeedEngine
from stages.engine.devices import device_name, wait_for
from stages.engine.engine import build_engine, choose_precision
from stages.engine.engine_state import start_moments
from stages.engine.rank_process import run_rank
from stages.probe.records import RESULT, MeasuredSteps, StepMemory
from stages.spec import TrainSpec

WARM_UP_STEPS = 2
"""Steps that are not timed: in them, kernels are chosen and memory is allocated."""

TIMED_STEPS = 5


def measure(spec: TrainSpec, device: torch.device) -> MeasuredSteps:
    """Trains a new model for a few steps as `spec` describes, and times them. Collective."""
    num_micro_batches = spec.batch_size // (spec.micro_batch_size * dist.get_world_size())
    model = build_model(spec.model, seed=spec.seed, device=device)
    engine = build_engine(model, spec, choose_precision(spec.precision, device))
    start_moments(engine, {})
    generator = torch.Generator().manual_seed(dist.get_rank())
    batch = tuple(tensor.to(device) for tensor in drawn_batch(spec, generator))
    for _ in range(WARM_UP_STEPS):
        timed_step(engine, batch, num_micro_batches)
    times = [timed_step(engine, batch, num_micro_batches) for _ in range(TIMED_STEPS)]
    on_cuda = device.type == "cuda"
    return MeasuredSteps(
        micro_batch_seconds=statistics.median(step[0] for step in times),
        last_micro_batch_seconds=statistics.median(step[-1] for step in times),
        num_steps=TIMED_STEPS,
        num_devices=dist.get_world_size(),
        device=device_name(device),
        memory=step_memory(engine, batch, num_micro_batches) if on_cuda else None,
    )


def drawn_batch(spec: TrainSpec, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random inputs and targets of a micro-batch: tokens, or images and their classes."""
    size, classes = spec.micro_batch_size, spec.model.vocab_size
    if image := spec.model.image:
        pixels = torch.randn(size, image.channels, image.size, image.size, generator=generator)
        return pixels, torch.randint(classes, (size,), generator=generator)
    tokens_BT = torch.randint(classes, (size, spec.sequence_length + 1), generator=generator)
    return tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous()


def timed_step(engine: DeepSpeedEngine, batch: tuple[Tensor, ...], num_micro_batches: int) -> list[float]:
    """Runs one optimizer step and returns the seconds of each micro-batch; the last includes the update.

    Waits for the device around each micro-batch.
    """
    seconds, device = [], batch[0].device
    for _ in range(num_micro_batches):
        wait_for(device)
        start = time.perf_counter()
        engine.backward(engine(*batch))
        engine.step()
        wait_for(device)
        seconds.append(time.perf_counter() - start)
    return seconds


def step_memory(engine: DeepSpeedEngine, batch: tuple[Tensor, ...], num_micro_batches: int) -> StepMemory:
    """Runs one more optimizer step, on CUDA, and measures its memory."""
    device = batch[0].device
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(num_micro_batches):
        before = torch.cuda.memory_allocated(device)
        loss = engine(*batch)
        activations = torch.cuda.memory_allocated(device) - before
        engine.backward(loss)
        engine.step()
        del loss
    peak = torch.cuda.max_memory_allocated(device)
    return StepMemory(lasting_bytes=before, activation_bytes=activations, peak_bytes=peak)


def measure_to_file(spec_path: Path, device: torch.device) -> None:
    """Measures as the spec file describes; rank 0 writes the result into the spec's directory."""
    spec = TrainSpec.model_validate_json(spec_path.read_bytes())
    measured = measure(spec, device)
    if dist.get_rank() == 0:
        write_file(Path(spec.directory) / RESULT, measured.model_dump_json().encode())


if __name__ == "__main__":
    run_rank(measure_to_file)
