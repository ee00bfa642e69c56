"""Activation checkpointing changes no bit of a loss or a gradient, and computes again only what training needs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.config import TokenformerConfig, TransformerConfig, tokenformer_config
from model.flops import recomputed_flops_per_token
from model.initialization import build_model
from model.language_model import LanguageModel
from model.policy import grow_config, ramp_config

SHAPE: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_heads": 2}
BASE = tokenformer_config(num_layers=3, attention_tokens=6, ffn_tokens=50, **SHAPE)
CONFIGS: dict[str, TokenformerConfig | TransformerConfig] = {
    "tokenformer": BASE,
    "grown": ramp_config(grow_config(BASE, attention_tokens=9, ffn_tokens=4), 0.5),
    "within-documents": BASE.model_copy(update={"document_end_id": 0}),
    "transformer": TransformerConfig(num_layers=3, ffn_size=128, **SHAPE),
}
IDS = torch.randint(0, 61, (2, 24), generator=torch.Generator().manual_seed(3))


def trained(model: LanguageModel, every: int | None) -> list[torch.Tensor]:
    """The losses of two micro-batches, and the gradients of their sum."""
    model.zero_grad()
    model.recompute_every = every
    losses = [model(ids, ids.roll(-1, 1)) for ids in (IDS, IDS.flip(0, 1))]
    for loss in losses:
        loss.backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(grads) == len(list(model.parameters()))
    return [*(loss.detach() for loss in losses), *grads]


def calls(model: LanguageModel, run: Callable[[], Any]) -> int:
    """How many passes through a block `run` makes."""
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1

    hooks = [block.register_forward_hook(counted) for block in model.blocks.values()]
    run()
    for hook in hooks:
        hook.remove()
    return count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.slow
def test_the_loss_and_every_gradient_have_the_same_bits_as_without(name, dtype):
    model = build_model(CONFIGS[name], seed=0).to(dtype)
    plain = trained(model, None)
    for every in (1, 2, 5):
        assert all(map(torch.equal, trained(model, every), plain)), every


@pytest.mark.parametrize("name", ["tokenformer", "transformer"])
def test_only_a_backward_pass_of_training_computes_blocks_again(name):
    model = build_model(CONFIGS[name], seed=0)
    model.recompute_every = 2
    assert calls(model, lambda: model(IDS, IDS).backward()) == 6
    model.eval()
    assert calls(model, lambda: model(IDS, IDS).backward()) == 3
    model.train()
    with torch.no_grad():
        assert calls(model, lambda: model(IDS)) == 3
        whole = model(IDS)
    assert torch.allclose(model(IDS, cache=model.new_cache(2, 24)), whole, atol=1e-5)


@pytest.mark.parametrize("name", ["grown", "transformer"])
@pytest.mark.parametrize("every", [1, 2])
def test_the_recomputed_flops_are_those_of_the_blocks_once_more(name, every):
    config = CONFIGS[name]
    model, counted = build_model(config, seed=0), []
    for model.recompute_every in (None, every):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(IDS, IDS).backward()
        counted.append(counter.get_total_flops())
    recomputed = recomputed_flops_per_token(config, attended_tokens=24)
    assert recomputed * IDS.numel() == pytest.approx(counted[1] - counted[0], rel=0.01)
