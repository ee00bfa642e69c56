"""FLOP formulas match PyTorch's own counter, and each other algebraically."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.config import TransformerConfig, tokenformer_config
from model.flops import Flops, forward_flops_per_token, training_flops_per_token
from model.initialization import build_model
from model.policy import grow_config

SHAPE: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_heads": 2}


@pytest.mark.parametrize(
    "config",
    [
        tokenformer_config(num_layers=2, attention_tokens=6, projection_tokens=9, ffn_tokens=50, **SHAPE),
        grow_config(
            tokenformer_config(num_layers=3, attention_tokens=6, ffn_tokens=50, **SHAPE),
            attention_tokens=9,
            ffn_tokens=4,
        ),
        tokenformer_config(num_layers=0, attention_tokens=1, ffn_tokens=1, **SHAPE),
        TransformerConfig(num_layers=2, ffn_size=128, **SHAPE),
    ],
    ids=["tokenformer", "grown", "no-layers", "transformer"],
)
@pytest.mark.parametrize("sequence_length", [8, 64])
def test_formulas_agree_with_the_flop_counter(config, sequence_length):
    model = build_model(config, seed=0)
    ids = torch.randint(0, 61, (2, sequence_length))
    # Without the written-out attention the counter sees no FLOPs in it on a CPU.
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            model(ids, ids)
        with FlopCounterMode(display=False) as training:
            model(ids, ids).backward()
    num_tokens = ids.numel()
    assert forward_flops_per_token(config, sequence_length).total * num_tokens == pytest.approx(
        forward.get_total_flops(), rel=0.01
    )
    assert training_flops_per_token(config, sequence_length).total * num_tokens == pytest.approx(
        training.get_total_flops(), rel=0.01
    )


@given(st.integers(1, 4096), st.integers(1, 500), st.integers(0, 500))
def test_growth_adds_only_parameter_flops(sequence_length, attention_tokens, ffn_tokens):
    old = tokenformer_config(num_layers=2, attention_tokens=6, ffn_tokens=10, **SHAPE)
    new = grow_config(old, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens)
    before, after = (forward_flops_per_token(config, sequence_length) for config in (old, new))
    added = 2 * 2 * 32 * (4 * attention_tokens + ffn_tokens)
    assert after.parameters - before.parameters == 2 * added
    assert (after.attention, after.head) == (before.attention, before.head)


def test_flops_add_and_scale_by_part():
    assert Flops(1, 2, 3) + 2 * Flops(1, 1, 1) == Flops(3, 4, 5)
    assert (Flops(1, 2, 3) * 2).total == 12
