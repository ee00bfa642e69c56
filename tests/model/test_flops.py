"""FLOP formulas match PyTorch's own counter, and each other algebraically."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.config import TokenformerConfig, TransformerConfig, tokenformer_config
from model.flops import Flops, forward_flops_per_token, recomputed_flops_per_token, training_flops_per_token
from model.initialization import build_model
from model.policy import grow_config

SHAPE: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_heads": 2}
BASE = tokenformer_config(num_layers=2, attention_tokens=6, projection_tokens=9, ffn_tokens=50, **SHAPE)
CONFIGS: dict[str, TokenformerConfig | TransformerConfig] = {
    "grown": grow_config(BASE, attention_tokens=9, ffn_tokens=4),
    "no-layers": tokenformer_config(num_layers=0, attention_tokens=1, ffn_tokens=1, **SHAPE),
    "transformer": TransformerConfig(num_layers=2, ffn_size=128, **SHAPE),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("length", "recompute_every"), [(8, 1), (64, 2)])
def test_formulas_agree_with_the_flop_counter(name, length, recompute_every):
    config = CONFIGS[name]
    model, ids = build_model(config, seed=0), torch.randint(0, 61, (2, length))
    forward = forward_flops_per_token(config, length).total
    training = training_flops_per_token(config, length).total
    recomputing = training + recomputed_flops_per_token(config, length)
    for expected, every in ((forward, None), (training, None), (recomputing, recompute_every)):
        model.recompute_every = every
        # Without the written-out attention, the counter sees no FLOPs in it on a CPU.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            with torch.set_grad_enabled(expected != forward):
                loss = model(ids, ids)
            if expected != forward:
                loss.backward()
        assert expected * ids.numel() == pytest.approx(counter.get_total_flops(), rel=0.01)


@given(st.integers(1, 4096), st.integers(1, 500), st.integers(0, 500))
def test_growth_adds_only_parameter_flops(sequence_length, attention_tokens, ffn_tokens):
    new = grow_config(BASE, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens)
    before, after = (forward_flops_per_token(config, sequence_length) for config in (BASE, new))
    added = 2 * 2 * 32 * (4 * attention_tokens + ffn_tokens)
    assert after.parameters - before.parameters == 2 * added
    assert (after.attention, after.head) == (before.attention, before.head)


def test_flops_add_and_scale_by_part():
    assert Flops(1, 2, 3) + 2 * Flops(1, 1, 1) == Flops(3, 4, 5)
    assert (Flops(1, 2, 3) * 2).total == 12
