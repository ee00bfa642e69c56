"""Rotary scaling is linear interpolation, NTK-aware scaling and YaRN as their papers define them."""

import math

import pytest
import torch

from model.attention import causal_attention, rotary_table
from model.initialization import build_model
from model.rotary_scaling import RotaryScaling, ScalingKind, rotary_frequencies
from tests.pretrained import text_config

for_each_kind = pytest.mark.parametrize("kind", ["linear", "ntk", "yarn"])


def by_definition(kind: ScalingKind, width: int, base: float, trained: int, factor: float) -> list[float]:
    """The papers' formulas, one pair of dimensions at a time."""
    plain = [base ** (-2 * pair / width) for pair in range(width // 2)]
    if kind == "linear":
        return [frequency / factor for frequency in plain]
    if kind == "ntk":
        larger = base * factor ** (width / (width - 2))
        return [larger ** (-2 * pair / width) for pair in range(width // 2)]

    def pair_with(turns: float) -> float:  # YaRN, section 3.2: the pair that turns so often in the training length
        return width / 2 * math.log(trained / (2 * math.pi * turns), base)

    first = max(0, math.floor(pair_with(32)))
    last = min(width - 1, math.ceil(pair_with(1)))
    slowed = [min(1.0, max(0.0, (pair - first) / (last - first))) for pair in range(width // 2)]
    return [f * (1 - part) + f / factor * part for f, part in zip(plain, slowed, strict=True)]


@for_each_kind
@pytest.mark.parametrize(
    ("width", "base", "trained", "factor"),
    [(16, 10000.0, 1024, 16.0), (64, 10000.0, 2048, 2.0), (4, 500.0, 128, 8.0), (32, 1e6, 4096, 1.5)],
)
def test_the_frequencies_are_those_of_the_papers(kind, width, base, trained, factor):
    scaling = RotaryScaling(kind, factor, trained)
    found = rotary_frequencies(width, base, scaling, dtype=torch.float64, device=torch.device("cpu"))
    assert found.tolist() == pytest.approx(by_definition(kind, width, base, trained, factor), rel=1e-12)


def test_yarn_alone_sharpens_all_attention_logits_by_its_temperature():
    scaling = RotaryScaling("yarn", 4.0, 8)
    assert scaling.logit_factor == pytest.approx((0.1 * math.log(4.0) + 1) ** 2)
    assert RotaryScaling("linear", 4.0, 8).logit_factor == RotaryScaling("ntk", 4.0, 8).logit_factor == 1
    generator = torch.Generator().manual_seed(0)
    q_BTD, k_BTD, v_BTD = (torch.randn(1, 6, 16, generator=generator, dtype=torch.float64) for _ in range(3))
    table = rotary_table(torch.arange(6), 4, 10000.0, q_BTD, scaling)
    plain = table._replace(logit_factor=1.0)
    found = causal_attention(q_BTD, k_BTD, v_BTD, 2, table)
    assert torch.allclose(found, causal_attention(q_BTD * scaling.logit_factor, k_BTD, v_BTD, 2, plain))
    assert not torch.allclose(found, causal_attention(q_BTD, k_BTD, v_BTD, 2, plain), atol=1e-3)


@for_each_kind
def test_scaling_belongs_to_the_call_and_leaves_the_model_as_it_is(kind):
    model = build_model(text_config(width=32, num_heads=2), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    ids_BT = torch.randint(0, 261, (1, 20), generator=torch.Generator().manual_seed(1))
    before = model.hidden_states(ids_BT)
    scaled = model.hidden_states(ids_BT, rotary_scaling=RotaryScaling(kind, 4.0, 5))
    assert not torch.allclose(before, scaled, atol=1e-4)
    assert torch.equal(model.hidden_states(ids_BT), before)
