"""Times a Pattention on a CPU, forward and backward, against its lower bound, the six matrix products.

    python -m benchmarks.pattention > benchmarks/results/pattention.json    # five minutes
    python -m benchmarks.pattention --size small                            # a quick trial

Four forms take turns at each size, on one thread, with the allocator settings of CPU workers:

- floor: two products forward and four backward, nothing else
- written_out: the published formula operator by operator, with a mask of ones multiplied in, as the official code does
- ours: `model.pattention`, as used in training
- compiled: the same under torch.compile

Saved bytes are what autograd keeps for the backward pass, without the input and the weights.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.machine import options, print_results, restart_with
from growctl.launch.local import KEPT_MEMORY
from model.pattention import TokenGroup, pattend

PAPER = [(4096, 768, num_tokens) for num_tokens in (576, 2140, 2304, 8560)]
"""Data tokens, width, parameter tokens: the layers of the 124M and 354M models."""

QUICKSTART = [(4096, 64, num_tokens) for num_tokens in (16, 64, 256)]
SIZES = {"all": PAPER + QUICKSTART, "small": [(64, 16, 12)]}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    """Runs the benchmark and prints one JSON document."""
    parser = options(__doc__)
    parser.add_argument("--size", choices=SIZES, default="all")
    parser.add_argument("--seconds", type=float, default=10.0, help="minimum time for each size and precision")
    parser.add_argument("--plain-allocator", action="store_true", help="use the system's allocator settings")
    arguments = parser.parse_args()
    settings = {"OMP_NUM_THREADS": "1"} | ({} if arguments.plain_allocator else KEPT_MEMORY)
    restart_with(settings)
    torch.set_num_threads(1)
    rows = []
    for dtype in DTYPES:
        for size in SIZES[arguments.size]:
            rows.append(row(*size, dtype, arguments.seconds))
            print(f"{size} {dtype}: {rows[-1]['over_floor']}", file=sys.stderr)
    print_results(arguments.note, settings=settings, rows=rows)


def row(num_rows: int, width: int, num_tokens: int, dtype: str, seconds: float) -> dict[str, Any]:
    """One size in one precision: medians over turns, and the ratios of each turn's times to its floor."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DTYPES[dtype])

    x_MD = draw(num_rows, width).requires_grad_()
    key_ND, value_ND = ((0.02 * draw(num_tokens, width)).detach().requires_grad_() for _ in range(2))
    grad_MD = draw(num_rows, width)
    layers = forms(x_MD, key_ND, value_ND, math.sqrt(num_tokens))

    def step(layer: Callable[[], Tensor]) -> None:
        torch.autograd.grad(layer(), (x_MD, key_ND, value_ND), grad_MD)

    turns: dict[str, list[float]] = {name: [] for name in ("floor", *layers)}
    for layer in layers.values():
        step(layer)  # allocates memory and compiles
    started = time.perf_counter()
    while time.perf_counter() - started < seconds or len(turns["floor"]) < 5:
        turns["floor"].append(timed(lambda: six_products(x_MD.detach(), key_ND.detach(), value_ND.detach(), grad_MD)))
        for name, layer in layers.items():
            turns[name].append(timed(partial(step, layer)))
    ratios = {name: [time / floor for time, floor in zip(turns[name], turns["floor"], strict=True)] for name in layers}
    known = {tensor.untyped_storage().data_ptr() for tensor in (x_MD, key_ND, value_ND)}
    return {
        "tokens": num_rows,
        "width": width,
        "num_tokens": num_tokens,
        "dtype": dtype,
        "num_turns": len(turns["floor"]),
        "milliseconds": {name: round(1e3 * statistics.median(times), 3) for name, times in turns.items()},
        "over_floor": {name: round(statistics.median(each), 3) for name, each in ratios.items()},
        "over_floor_quartiles": {
            name: [round(q, 3) for q in statistics.quantiles(each, n=4)[::2]] for name, each in ratios.items()
        },
        "saved_bytes": {name: saved_bytes(layers[name], known) for name in ("written_out", "ours")},
    }


def forms(x_MD: Tensor, key_ND: Tensor, value_ND: Tensor, tau: float) -> dict[str, Callable[[], Tensor]]:
    """The forward passes to compare."""
    group = TokenGroup.of(key_ND, value_ND, tau)
    mask_MN = torch.ones(len(x_MD), len(key_ND), dtype=x_MD.dtype)
    compiled = torch.compile(pattend, dynamic=True)
    return {
        "written_out": lambda: written_out(x_MD, key_ND, value_ND, tau, mask_MN),
        "ours": lambda: pattend(x_MD, group, "l2_norm_gelu"),
        "compiled": lambda: compiled(x_MD, group, "l2_norm_gelu"),
    }


def written_out(x_MD: Tensor, key_ND: Tensor, value_ND: Tensor, tau: float, mask_MN: Tensor) -> Tensor:
    """gelu(A tau / |A|) V, one operation at a time."""
    score_MN = (x_MD @ key_ND.mT) * mask_MN
    return F.gelu(score_MN / torch.norm(score_MN, p=2, dim=-1, keepdim=True) * tau) @ value_ND


def six_products(x_MD: Tensor, key_ND: Tensor, value_ND: Tensor, grad_MD: Tensor) -> None:
    """The matrix products of a forward and backward pass."""
    score_MN = x_MD @ key_ND.mT
    score_MN @ value_ND
    grad_MN = grad_MD @ value_ND.mT
    score_MN.mT @ grad_MD
    grad_MN.mT @ x_MD
    grad_MN @ key_ND


def saved_bytes(layer: Callable[[], Tensor], known: set[int]) -> int:
    """Bytes that autograd keeps from a forward pass: each storage once, without those in `known`."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer()
    del out
    return sum(storages.values())


def timed(work: Callable[[], None]) -> float:
    """The seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
