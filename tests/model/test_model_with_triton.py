"""Whole models with Triton kernels, in the interpreter, match the same models without them."""

import importlib.util
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from model.config import Kernels, TokenformerConfig, TransformerConfig
from model.initialization import build_model
from model.policy import grow_config, ramp_config
from tests.model.growths import small_config, small_transformer

pytestmark = [
    pytest.mark.trains,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("triton", "liger_kernel")),
        reason="triton or liger-kernel is not installed",
    ),
]

END = 3
SIZES = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "document_end_id": END}
GROWN = ramp_config(
    grow_config(small_config(attention_tokens=20, ffn_tokens=40, **SIZES), attention_tokens=4, ffn_tokens=12), 0.5
)
CONFIGS: dict[str, TokenformerConfig | TransformerConfig] = {
    "l2_norm_gelu": GROWN,
    "gelu_l2_norm": GROWN.model_copy(update={"score_function": "gelu_l2_norm"}),
    "transformer": small_transformer(**SIZES),
}


def gradients() -> dict[str, list[tuple[Tensor, list[Tensor], list[str]]]]:
    """For each model, without Triton and with it: the loss, all gradients, and the Triton functions called."""
    from model.kernels import launch as kernels

    ids = torch.randint(0, 29, (2, 8), generator=torch.Generator().manual_seed(0))
    ids[:, 4] = END
    calls: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        kernel = getattr(kernels, name)
        return lambda *arguments: calls.append(name) or kernel(*arguments)

    kernels.forward, kernels.backward = noted("forward"), noted("backward")
    found: dict[str, list[Any]] = {name: [] for name in CONFIGS}
    choices: tuple[Kernels, ...] = ("eager", "triton")
    for name, choice in product(CONFIGS, choices):
        calls.clear()
        model = build_model(CONFIGS[name], seed=0)
        model.use_kernels(choice)
        loss = model(ids, ids)
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found[name].append((loss.detach(), grads, sorted(calls)))
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, list[tuple[Tensor, list[Tensor], list[str]]]]:
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        patch.setenv("TRITON_INTERPRET", "1")  # read when triton is imported: in a new process
        return pool.submit(gradients).result()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_has_the_same_loss_and_gradients_with_triton_kernels(name, found):
    (loss, grads, eager_calls), (triton_loss, triton_grads, triton_calls) = found[name]
    assert not eager_calls
    assert triton_calls == (["backward"] * 5 + ["forward"] * 5 if name == "l2_norm_gelu" else [])
    torch.testing.assert_close(triton_loss, loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(triton_grads, grads, rtol=1e-4, atol=1e-6)
