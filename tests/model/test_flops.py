"""FLOP formulas match PyTorch's own counter."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.flops import Flops, forward_flops_per_token, recomputed_flops_per_token, training_flops_per_token
from model.initialization import build_model
from model.policy import grow_config
from model.shapes import ModelConfig
from tests.model.growths import small_config, small_decoder

BASE = small_config(attention_tokens=6, projection_tokens=9, ffn_tokens=50, hidden_size=32, num_heads=2)
CONFIGS: dict[str, ModelConfig] = {
    "grown": grow_config(BASE, attention_tokens=9, ffn_tokens=4),
    "no-layers": small_config(num_layers=0, hidden_size=32, num_heads=2),
    "transformer": small_decoder(ffn_tokens=128, hidden_size=32, num_heads=2),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("length", "recompute_every"), [(8, 1), (64, 2)])
def test_formulas_agree_with_the_flop_counter(name, length, recompute_every):
    config = CONFIGS[name]
    model, ids = build_model(config, seed=0), torch.randint(0, 29, (2, length))
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


def test_flops_add_and_scale_by_part_and_growth_adds_to_parameters_alone():
    assert Flops(1, 2, 3) + 2 * Flops(1, 1, 1) == Flops(3, 4, 5)
    assert (Flops(1, 2, 3) * 2).total == 12
    before, after = (forward_flops_per_token(config, 64) for config in (BASE, CONFIGS["grown"]))
    assert after == before + Flops(2 * 2 * 2 * 32 * (4 * 9 + 4), 0, 0)
