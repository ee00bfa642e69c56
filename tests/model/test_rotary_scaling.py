"""Rotary scaling is linear interpolation, Llama 3's, NTK-aware scaling and YaRN as their authors define them."""

import math

import pytest
import torch

from model.attention import rotary_frequencies, rotary_table, self_attention
from model.config import RotaryScaling
from model.initialization import build_model
from tests.pretrained import text_config

for_each_kind = pytest.mark.parametrize("kind", ["linear", "llama3", "ntk", "yarn"])


def by_definition(kind: str, width: int, base: float, trained: int, factor: float) -> list[float]:
    """The papers' formulas, one pair of dimensions at a time."""
    plain = [base ** (-2 * pair / width) for pair in range(width // 2)]
    if kind == "linear":
        return [frequency / factor for frequency in plain]
    if kind == "ntk":
        larger = base * factor ** (width / (width - 2))
        return [larger ** (-2 * pair / width) for pair in range(width // 2)]
    if kind == "llama3":  # Llama 3.1's code: by wavelength, from 1 to 1/4 of the training length

        def smoothed(frequency: float) -> float:
            length = 2 * math.pi / frequency
            smooth = (trained / length - 1) / (4 - 1)
            if length > trained:
                return frequency / factor
            return frequency if length < trained / 4 else (1 - smooth) * frequency / factor + smooth * frequency

        return [smoothed(frequency) for frequency in plain]

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
    scaling = RotaryScaling(kind=kind, factor=factor, trained_length=trained)
    found = rotary_frequencies(width, base, scaling, dtype=torch.float64, device=torch.device("cpu"))
    assert found.tolist() == pytest.approx(by_definition(kind, width, base, trained, factor), rel=1e-12)


def test_yarn_alone_sharpens_all_attention_logits_by_its_temperature():
    scaling = RotaryScaling(kind="yarn", factor=4.0, trained_length=8)
    assert scaling.logit_factor == pytest.approx((0.1 * math.log(4.0) + 1) ** 2)
    assert (
        RotaryScaling(kind="linear", factor=4.0, trained_length=8).logit_factor
        == RotaryScaling(kind="ntk", factor=4.0, trained_length=8).logit_factor
        == 1
    )
    generator = torch.Generator().manual_seed(0)
    q_BTD, k_BTD, v_BTD = (torch.randn(1, 6, 16, generator=generator, dtype=torch.float64) for _ in range(3))
    table = rotary_table(torch.arange(6), 4, 10000.0, q_BTD, scaling)
    plain = table._replace(logit_factor=1.0)
    found = self_attention(q_BTD, k_BTD, v_BTD, 8, table)
    assert torch.allclose(found, self_attention(q_BTD * scaling.logit_factor, k_BTD, v_BTD, 8, plain))
    assert not torch.allclose(found, self_attention(q_BTD, k_BTD, v_BTD, 8, plain), atol=1e-3)


@for_each_kind
def test_scaling_belongs_to_the_call_and_leaves_the_model_as_it_is(kind):
    model = build_model(text_config(width=32, num_heads=2), seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    ids_BT = torch.randint(0, 261, (1, 20), generator=torch.Generator().manual_seed(1))
    before = model.hidden_states(ids_BT)
    scaled = model.hidden_states(ids_BT, rotary_scaling=RotaryScaling(kind=kind, factor=4.0, trained_length=5))
    assert not torch.allclose(before, scaled, atol=1e-4)
    assert torch.equal(model.hidden_states(ids_BT), before)
