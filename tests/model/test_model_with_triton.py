"""Whole models with Triton kernels, in the interpreter, match the same models without them."""

import importlib.util
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from model.config import ScoreFunction, TokenformerConfig, TransformerConfig, tokenformer_config
from model.initialization import build_model
from model.policy import GrowthPolicy, grow_config, ramp_config

pytestmark = [
    pytest.mark.trains,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("triton", "liger_kernel")),
        reason="triton or liger-kernel is not installed",
    ),
]

END = 3
SHAPE: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_heads": 2, "document_end_id": END}


def gradients(family: str, score_function: ScoreFunction) -> dict[str, tuple[Tensor, list[Tensor], list[str]]]:
    """For each kind of kernels: the loss, all gradients, and the Triton functions called. Runs in its own process."""
    from model.kernels import launch as kernels

    config: TokenformerConfig | TransformerConfig = TransformerConfig(num_layers=1, ffn_size=40, **SHAPE)
    if family == "tokenformer":
        base = tokenformer_config(
            num_layers=1, attention_tokens=20, ffn_tokens=40, score_function=score_function, **SHAPE
        )
        grown = grow_config(base, attention_tokens=4, ffn_tokens=12, policy=GrowthPolicy())
        config = ramp_config(grown, 0.5)
    ids = torch.randint(0, 61, (2, 8), generator=torch.Generator().manual_seed(0))
    ids[:, 4] = END
    calls: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        kernel = getattr(kernels, name)
        return lambda *arguments: calls.append(name) or kernel(*arguments)

    kernels.forward, kernels.backward = noted("forward"), noted("backward")
    found = {}
    for choice in ("eager", "triton"):
        model = build_model(config, seed=0)
        model.use_kernels(choice)
        loss = model(ids, ids)
        loss.backward()
        found[choice] = loss.detach(), [p.grad for p in model.parameters() if p.grad is not None], sorted(calls)
    return found


@pytest.mark.parametrize(
    ("family", "score_function", "called"),
    [
        ("tokenformer", "l2_norm_gelu", ["backward"] * 5 + ["forward"] * 5),
        ("tokenformer", "gelu_l2_norm", []),
        ("transformer", "l2_norm_gelu", []),
    ],
)
def test_a_model_has_the_same_loss_and_gradients_with_triton_kernels(family, score_function, called, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when triton is imported: in a new process
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(gradients, family, score_function).result()
    loss, grads, eager_calls = found["eager"]
    triton_loss, triton_grads, triton_calls = found["triton"]
    assert not eager_calls
    assert triton_calls == called
    torch.testing.assert_close(triton_loss, loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(triton_grads, grads, rtol=1e-4, atol=1e-6)
