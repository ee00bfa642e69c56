"""Activation checkpointing changes no bit of a loss or a gradient, and computes again only what training needs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from model.config_growth import grow_config, ramp_config
from model.initialization import build_model
from model.language_model import LanguageModel
from model.shapes import ModelConfig
from tests.model.growths import IDS, small_config, small_decoder

BASE = small_config(num_layers=3, attention_tokens=6, ffn_tokens=50, hidden_size=32, num_heads=2)
CONFIGS: dict[str, ModelConfig] = {
    "grown": ramp_config(grow_config(BASE, attention_tokens=9, ffn_tokens=4), 0.5),
    "within-documents": BASE.model_copy(update={"document_end_id": 0}),
    "windows": BASE.model_copy(update={"attention_window": 3, "full_attention_every": 2}),
    "transformer": small_decoder(num_layers=3, ffn_tokens=128, hidden_size=32, num_heads=2),
}


def trained(model: LanguageModel, every: int | None) -> list[Any]:
    """The losses of two micro-batches, and the gradients of their sum."""
    model.zero_grad()
    model.recompute_every = every
    losses = [model(ids, ids.roll(-1, 1)) for ids in (IDS, IDS.flip(0, 1))]
    torch.stack(losses).sum().backward()
    return [*losses, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.slow
def test_the_loss_and_every_gradient_have_the_same_bits_as_without(name, dtype):
    model = build_model(CONFIGS[name], seed=0).to(dtype)
    plain = trained(model, None)
    for every in (1, 2, 5):
        assert all(map(torch.equal, trained(model, every), plain)), every


def test_only_a_backward_pass_of_training_computes_blocks_again():
    model, calls = build_model(BASE, seed=0), list[None]()
    model.recompute_every = 2
    for block in model.blocks.values():
        block.register_forward_hook(lambda *_: calls.append(None))

    runs: list[tuple[int, Callable[[], Any]]] = [
        (6, lambda: model(IDS, IDS).backward()),
        (3, torch.no_grad()(lambda: model(IDS))),
        (3, lambda: model(IDS, cache=model.new_cache(*IDS.shape))),
        (3, lambda: model.eval()(IDS, IDS).backward()),
    ]
    for passes, run in runs:
        calls.clear()
        run()
        assert len(calls) == passes
