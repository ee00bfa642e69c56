"""Compares a step of stages/train/worker.py with bare PyTorch, for Tokenformer and Transformer.

    python -m benchmarks.train_step > benchmarks/results/train_step.json    # eight minutes
    python -m benchmarks.train_step --case small                            # a quick trial

One rank, one thread, real text. In each case all loops take turns in one process, with one or more steps per turn:

- `trainer`: a Worker's train_step, with DeepSpeed ZeRO-1 and data read ahead
- `bare`: the same model, data, micro-batches and fused AdamW in plain PyTorch, with clipping and a learning rate set at
  each step; bf16 uses float32 masters, in which gradients are summed
- `transformer`: the trainer with a Transformer of the same number of parameters
- `compiled`: the trainer with compiled blocks

Ratios compare tokens per second in neighbouring turns. Peak memory is measured for each loop in a separate process.
"""

import importlib
import logging
import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import in_fresh_process, options, print_results, restart_with
from growctl.launch.local import KEPT_MEMORY

SETTINGS = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", **KEPT_MEMORY}
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


class Case(NamedTuple):
    """A model size and its training settings."""

    num_layers: int
    hidden_size: int
    num_heads: int
    attention_tokens: int
    ffn_tokens: int
    sequence_length: int
    batch_size: int
    micro_batch_size: int
    steps: int
    """Optimizer steps per turn."""


CASES = {
    "quickstart": Case(3, 64, 4, 64, 256, sequence_length=64, batch_size=64, micro_batch_size=64, steps=4),
    "context-1024": Case(6, 256, 8, 256, 1024, sequence_length=1024, batch_size=4, micro_batch_size=2, steps=1),
    "small": Case(1, 16, 2, 8, 32, sequence_length=16, batch_size=8, micro_batch_size=4, steps=1),
}
LOOPS = ("trainer", "bare", "transformer")
VOCAB_SIZE = 1024


def main() -> None:
    """Runs the benchmark and prints one JSON document."""
    parser = options(__doc__)
    parser.add_argument("--case", choices=CASES, action="append", help="repeatable; by default all but small")
    parser.add_argument("--seconds", type=float, default=60.0, help="minimum time for each case and precision")
    parser.add_argument("--compiled", action="store_true", help="also measure launch.kernels: compiled")
    arguments = parser.parse_args()
    restart_with(SETTINGS)
    loops = (*LOOPS, "compiled") if arguments.compiled else LOOPS
    with tempfile.TemporaryDirectory(prefix="growctl-train-step-") as folder:
        dataset = in_fresh_process(prepared, Path(folder))
        rows = []
        for name in arguments.case or [name for name in CASES if name != "small"]:
            for precision in ("fp32", "bf16"):
                row = in_fresh_process(measured, name, precision, dataset, loops, arguments.seconds)
                peaks = {loop: in_fresh_process(peak_bytes, name, precision, dataset, loop) for loop in loops}
                rows.append({"case": name, "precision": precision, **CASES[name]._asdict(), **row, "peak_bytes": peaks})
                print(f"{name} {precision}: {row['ratios']}", file=sys.stderr)
    load = round(os.getloadavg()[0], 2)
    print_results(arguments.note, "deepspeed", load_average=load, settings=SETTINGS, rows=rows)


def prepared(folder: Path) -> Path:
    """A dataset of the quickstart's text."""
    from stages.corpus.prepare import prepare
    from stages.data.spec import DataSpec

    return prepare(DataSpec(source="python-stdlib", vocab_size=VOCAB_SIZE, validation_fraction=0.03), folder)


def measured(name: str, precision: str, dataset: Path, loops: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Runs turns of all loops for `seconds`: tokens per second, and the ratios of neighbouring turns."""
    case = CASES[name]
    join()
    steps = {loop: loop_of(loop, case, precision, dataset) for loop in loops}
    speeds: dict[str, list[float]] = {loop: [] for loop in loops}
    for step in steps.values():
        step()
        step()  # allocates memory and compiles
    started = time.perf_counter()
    for turn in count():
        if time.perf_counter() - started > seconds and turn >= 6:
            break
        for loop in loops if turn % 2 else reversed(loops):
            start = time.perf_counter()
            for _ in range(case.steps):
                steps[loop]()
            num_tokens = case.steps * case.batch_size * case.sequence_length
            speeds[loop].append(num_tokens / (time.perf_counter() - start))
    pairs = {"trainer_over_bare": ("trainer", "bare"), "tokenformer_over_transformer": ("trainer", "transformer")}
    if "compiled" in loops:
        pairs["compiled_over_eager"] = ("compiled", "trainer")
    ratios = {
        pair: [one / other for one, other in zip(speeds[first], speeds[second], strict=True)]
        for pair, (first, second) in pairs.items()
    }
    return {
        "num_turns": len(speeds["trainer"]),
        "tokens_per_second": {loop: round(statistics.median(each)) for loop, each in speeds.items()},
        "ratios": {pair: round(statistics.median(each), 3) for pair, each in ratios.items()},
        "quartiles": {
            pair: [round(q, 3) for q in statistics.quantiles(each, n=4)[::2]] for pair, each in ratios.items()
        },
    }


def peak_bytes(name: str, precision: str, dataset: Path, loop: str) -> int:
    """Peak resident bytes in three steps, minus those from before the model was built."""
    join()
    importlib.import_module("stages.train.worker")
    importlib.import_module("growctl.ladder.controls")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = loop_of(loop, CASES[name], precision, dataset)
    for _ in range(3):
        step()
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def join() -> None:
    """Creates a process group of one rank. Sends all libraries' output to stderr: stdout is for the document."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import torch
    from deepspeed.utils import logger

    from growctl.launch.local import free_port
    from stages.engine.rank_process import start_distributed

    warnings.filterwarnings("ignore")
    logger.setLevel(logging.ERROR)
    torch.set_num_threads(1)
    os.environ |= RANK | {"MASTER_PORT": str(free_port())}
    start_distributed()


def loop_of(loop: str, case: Case, precision: str, dataset: Path) -> Callable[[], object]:
    """A function that runs one optimizer step of `loop`."""
    from growctl.ladder.controls import equal_size_decoder
    from model.tokenformer_config import tokenformer_config

    config = tokenformer_config(
        num_layers=case.num_layers,
        attention_tokens=case.attention_tokens,
        ffn_tokens=case.ffn_tokens,
        vocab_size=VOCAB_SIZE,
        hidden_size=case.hidden_size,
        num_heads=case.num_heads,
    )
    model = equal_size_decoder(config) if loop == "transformer" else config
    spec = train_spec(case, precision, dataset, model, "compiled" if loop == "compiled" else "eager")
    return bare_step(spec) if loop == "bare" else trainer_step(spec)


def train_spec(case: Case, precision: Any, dataset: Path, model: Any, kernels: Any) -> Any:
    """The spec that a worker would get."""
    from stages.spec import LearningRate, Optimizer, TrainSpec

    steps = 10**6
    return TrainSpec(
        stage="benchmark",
        attempt=1,
        directory=tempfile.mkdtemp(dir=dataset.parent),
        dataset=str(dataset),
        model=model,
        initial=None,
        resume=None,
        seed=0,
        samples_seen=0,
        num_steps=steps,
        batch_size=case.batch_size,
        micro_batch_size=case.micro_batch_size,
        sequence_length=case.sequence_length,
        window_length=case.sequence_length,
        evaluation_length=case.sequence_length,
        learning_rate=LearningRate(
            shape="wsd", peak=1e-3, final=0.0, warmup_steps=10, decay_steps=0, total_steps=steps, first_step=0
        ),
        optimizer=Optimizer(betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, gradient_clipping=1.0),
        ramp_steps=0,
        zero_stage=1,
        precision=precision,
        kernels=kernels,
        log_every=steps,
        evaluate_every=steps,
        checkpoint_every=steps,
        keep_checkpoints=1,
        evaluation_sequences=1,
        launched_at=time.time(),
    )


def trainer_step(spec: Any) -> Callable[[], object]:
    """A step of the worker, without logging and checkpoints."""
    import torch

    from stages.train.worker import Worker

    worker = Worker(spec, torch.device("cpu"))
    engine, micro_batches, numbers = worker.start_engine(), worker.data.micro_batches(0), count()
    return lambda: worker.train_step(engine, next(numbers), micro_batches)


def bare_step(spec: Any) -> Callable[[], object]:
    """The same step in plain PyTorch."""
    import torch

    from model.initialization import build_model
    from stages.data.samples import TrainingSamples

    samples = TrainingSamples(Path(spec.dataset), spec.sequence_length, spec.seed)
    model = build_model(spec.model, seed=0)
    in_bf16 = spec.precision == "bf16"
    parameters: list[torch.Tensor] = list(model.parameters())
    masters = [parameter.detach().clone() for parameter in parameters] if in_bf16 else parameters
    if in_bf16:
        model.bfloat16()
        for master in masters:
            master.grad = torch.zeros_like(master)
    sums = [master.grad for master in masters if master.grad is not None]
    groups = [
        {"params": [master for master in masters if master.ndim > 1], "weight_decay": spec.optimizer.weight_decay},
        {"params": [master for master in masters if master.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=spec.optimizer.betas, eps=spec.optimizer.epsilon, fused=True)
    num_micro_batches = spec.batch_size // spec.micro_batch_size
    numbers = count()

    def step() -> float:
        number, total = next(numbers), torch.zeros(())
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate.at(number)
        for i in range(num_micro_batches):
            first = number * spec.batch_size + i * spec.micro_batch_size
            tokens_BT = torch.from_numpy(samples.batch(first, spec.micro_batch_size))
            loss = model(tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous())
            (loss / num_micro_batches).backward()
            total += loss.detach() / num_micro_batches
            if in_bf16:
                torch._foreach_add_(sums, [each.grad for each in parameters if each.grad is not None])
                model.zero_grad()
        torch.nn.utils.clip_grad_norm_(masters, spec.optimizer.gradient_clipping)
        optimizer.step()
        if in_bf16:
            with torch.no_grad():
                torch._foreach_copy_(parameters, masters)
                torch._foreach_zero_(sums)
        else:
            optimizer.zero_grad()
        return total.item()

    return step


if __name__ == "__main__":
    main()
