"""Compares training with and without activation checkpointing: memory and time of a forward and backward pass.

    python -m benchmarks.recomputation > benchmarks/results/recomputation.json    # ten minutes
    python -m benchmarks.recomputation --case small                               # a quick trial

One thread. Every setting of a case takes its turns in one process, and a ratio compares neighbouring turns with and
without checkpointing. Memory is the most bytes of tensors at a time, counted operation by operation, beside the
parameters and their gradients; beside it stands what `growctl plan` reckons.
"""

import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.machine import in_fresh_process, options, print_results, restart_with
from benchmarks.train_step import SETTINGS
from model.decoder_config import decoder_config
from model.flops import recomputed_flops_per_token, training_flops_per_token
from model.memory import ActivationMemory
from model.shapes import ModelConfig
from model.tokenformer_config import tokenformer_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from model.language_model import LanguageModel


class Case(NamedTuple):
    """A model and what it reads at a time, in float32."""

    config: ModelConfig
    sequence_length: int
    batch_size: int


SHAPE: dict[str, Any] = {"vocab_size": 1024, "hidden_size": 256, "num_heads": 8, "num_layers": 12}
CASES = {
    "tokenformer": Case(tokenformer_config(attention_tokens=256, ffn_tokens=1024, **SHAPE), 512, 2),
    "transformer": Case(decoder_config(ffn_tokens=1024, **SHAPE), 512, 2),
    "small": Case(decoder_config(ffn_tokens=64, **SHAPE | {"hidden_size": 16, "num_heads": 2}), 16, 2),
}
EVERY = (None, 1, 2, 4)
"""Blocks of a segment; None: without checkpointing."""


def main() -> None:
    """Runs the benchmark and prints one JSON document."""
    parser = options(__doc__)
    parser.add_argument("--case", choices=CASES, action="append", help="repeatable; by default all but small")
    parser.add_argument("--turns", type=int, default=8, help="turns of every setting; 0: leave time out")
    arguments = parser.parse_args()
    restart_with(SETTINGS)
    rows = []
    for name in arguments.case or [name for name in CASES if name != "small"]:
        seconds = in_fresh_process(seconds_of_turns, name, arguments.turns) if arguments.turns else None
        peaks = {every: peak_bytes(name, every) for every in EVERY}
        for every in EVERY[1:]:
            rows.append(row_of(name, every, seconds, peaks))
            print(f"{name} every {every}: {rows[-1]}", file=sys.stderr)
    load = round(os.getloadavg()[0], 2)
    print_results(arguments.note, load_average=load, settings=SETTINGS, rows=rows)


def row_of(
    name: str, every: int, seconds: dict[int | None, list[float]] | None, peaks: dict[int | None, int]
) -> dict[str, Any]:
    """One setting of a case, compared with training without checkpointing."""
    config, length, _ = CASES[name]
    ratios = [one / other for one, other in zip(seconds[every], seconds[None], strict=True)] if seconds else []
    flops = recomputed_flops_per_token(config, length) / training_flops_per_token(config, length).total
    return {
        "case": name,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "sequence_length": length,
        "every": every,
        "peak_bytes": {"without": peaks[None], "with": peaks[every]},
        "planned_bytes": {"without": planned_bytes(name, None), "with": planned_bytes(name, every)},
        "recomputed_flops": round(flops, 3),
        "time_ratio": round(statistics.median(ratios), 3) if ratios else None,
        "time_quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)[::2]] if ratios else [],
    }


def planned_bytes(name: str, every: int | None) -> int:
    """The peak of a pass, as `growctl plan` reckons it."""
    config, length, batch_size = CASES[name]
    memory = ActivationMemory(config, "fp32", "cpu", every).of(batch_size, length)
    return memory.activations + max(memory.at_loss, memory.in_blocks)


def seconds_of_turns(name: str, turns: int) -> dict[int | None, list[float]]:
    """Seconds of a pass in each turn, by setting."""
    _, step = step_of(name)
    seconds: dict[int | None, list[float]] = {every: [] for every in EVERY}
    for every in EVERY:
        step(every)
    for turn in range(turns):
        for every in EVERY if turn % 2 else reversed(EVERY):
            started = time.perf_counter()
            step(every)
            seconds[every].append(time.perf_counter() - started)
    return seconds


def peak_bytes(name: str, every: int | None) -> int:
    """The most bytes of tensors at a time in a pass, beside the parameters and their gradients."""
    from tests.memory_tracking import MemoryTracking

    model, step = step_of(name)
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    with MemoryTracking([*model.parameters(), *grads]) as memory:
        held = memory.live
        step(every)
    return memory.peak - held


def step_of(name: str) -> "tuple[LanguageModel, Callable[[int | None], None]]":
    """A case's model and its forward and backward pass, which takes how many blocks are recomputed at a time."""
    import torch

    from model.initialization import build_model

    torch.set_num_threads(1)
    config, length, batch_size = CASES[name]
    model = build_model(config, seed=0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    random = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(0, config.vocab_size, (batch_size, length), generator=random)

    def step(every: int | None) -> None:
        model.recompute_every = every
        model(ids_BT, ids_BT.roll(-1, 1)).backward()

    return model, step


if __name__ == "__main__":
    main()
