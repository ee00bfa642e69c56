"""Runs kernels for tests/model/test_kernels.py in a new process with Triton's interpreter on or off."""

import sys
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from model.config import Kernels
from model.config_growth import grow_config, ramp_config
from model.initialization import build_model
from model.kernels import launch as kernels
from model.shapes import ModelConfig
from tests.model.growths import small_config, small_decoder


def run(device: str, function: str, *arguments: Tensor | float | str) -> tuple[Tensor, ...] | Tensor | bool:
    """Calls a function of model/kernels/launch.py with tensors on `device` and returns its results on the CPU.

    Uninitialised memory is filled with NaN.
    """
    torch.use_deterministic_algorithms(True)
    moved = [argument.to(device) if isinstance(argument, Tensor) else argument for argument in arguments]
    result = getattr(kernels, function)(*moved)
    return tuple(tensor.to("cpu") for tensor in result) if isinstance(result, tuple) else result


def has_triton() -> bool:
    """Whether this process has imported triton. It has already imported model/kernels/launch.py."""
    return "triton" in sys.modules


def compile_for_hopper(calls: list[tuple[int, int, int, int, float]]) -> Counter[str]:
    """Compiles, but does not launch, the kernels of a forward and backward pass in bfloat16 for each (M, N, D, O, tau).

    Returns how often each kernel was compiled.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    class Hopper:
        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

    triton.runtime.driver.set_active(Hopper())
    compiled: dict[int, tuple[str, Any]] = {}
    run = triton.JITFunction.run

    def compile_only(self, *arguments, grid, warmup, **options):
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        compiled[id(kernel)] = self.__name__, kernel
        return kernel

    triton.JITFunction.run = compile_only
    for num_rows, num_tokens, width, out_width, tau in calls:
        x, key, value, grad_out = (
            torch.zeros(size, dtype=torch.bfloat16)
            for size in ((num_rows, width), (num_tokens, width), (num_tokens, out_width), (num_rows, out_width))
        )
        _, score, norm = kernels.forward(x, key, value, tau)
        kernels.backward(grad_out, x, key, value, score, norm, tau)
    return Counter(name for name, _ in compiled.values())


def train_models() -> dict[str, list[tuple[Tensor, list[Tensor], list[str]]]]:
    """For each model, without Triton and with it: the loss, all gradients, and the kernels called."""
    sizes = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "document_end_id": 3}
    base = small_config(attention_tokens=20, ffn_tokens=40, **sizes)
    grown = ramp_config(grow_config(base, attention_tokens=4, ffn_tokens=12), 0.5)
    models: dict[str, ModelConfig] = {
        "l2_norm_gelu": grown,
        "gelu_l2_norm": grown.model_copy(update={"score_function": "gelu_l2_norm"}),
        "transformer": small_decoder(**sizes),
    }
    ids = torch.randint(0, 29, (2, 8), generator=torch.Generator().manual_seed(0))
    ids[:, 4] = 3
    calls: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        kernel = getattr(kernels, name)
        return lambda *arguments: calls.append(name) or kernel(*arguments)

    kernels.forward, kernels.backward = noted("forward"), noted("backward")
    choices: tuple[Kernels, ...] = ("eager", "triton")
    found: dict[str, list[Any]] = {name: [] for name in models}
    for name, choice in product(models, choices):
        calls.clear()
        model = build_model(models[name], seed=0)
        model.use_kernels(choice)
        loss = model(ids, ids)
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found[name].append((loss.detach(), grads, sorted(calls)))
    return found
