"""The Pattention layer's gradients and accuracy. Its formula: `tests/model/test_growth.py`.

Shapes: B batch, T sequence, D model width, N parameter tokens.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from model import scores
from model.pattention import Pattention, TokenGroup, pattend
from model.tokenformer_config import Generation, PattentionConfig, ScoreFunction
from tests.model.growths import formula

ALL_KINDS = PattentionConfig(
    generations=(
        Generation(num_tokens=5),
        Generation(num_tokens=7, number=1, key_ramp=0.5),
        Generation(num_tokens=3, number=3, tau=2.0),
        Generation(num_tokens=15, number=4, copies=1),
    ),
    tau=3.0,
)
for_each_score_function = pytest.mark.parametrize("score_function", ["l2_norm_gelu", "gelu_l2_norm", "softmax"])


def all_kinds(score_function: ScoreFunction, dtype: torch.dtype) -> tuple[Pattention, Tensor]:
    """A layer with every kind of generation (ramped, unramped, copied, normalised separately), and its input."""
    layer = Pattention(ALL_KINDS, (8, 8), score_function).to(dtype)
    generator = torch.Generator().manual_seed(4)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    return layer, torch.randn(2, 3, 8, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def written_out(layer: Pattention, x_BTD: Tensor) -> Tensor:
    """The layer computed operator by operator with plain autograd."""

    def joined(parts: Sequence[Tensor], scales: Sequence[Tensor | None]) -> Tensor:
        return torch.cat([part if scale is None else part * scale for part, scale in zip(parts, scales, strict=True)])

    outputs = [
        formula(x_BTD, joined(g.keys, g.key_ramps), joined(g.values, g.value_shares), g.tau, layer.score_function)
        for g in layer.token_groups()
    ]
    return torch.stack(outputs).sum(0)


def gradients(layer: Pattention, x: Tensor, out: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out.sin().sum(), (x, *layer.parameters()), retain_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_zero_scores_gives_zeros_and_contributes_no_gradient(dtype):
    x = torch.zeros(1, 2, 4, dtype=dtype, requires_grad=True)
    key, value = (torch.ones(3, 4, dtype=dtype, requires_grad=True) for _ in range(2))
    out = pattend(x, TokenGroup.of(key, value, 1.7), "l2_norm_gelu")
    out.sum().backward()
    assert not any(tensor.any() for tensor in (out, x.grad, key.grad, value.grad))  # NaN is something


def test_scales_are_on_the_cpu_for_a_layer_on_any_device():
    with torch.device("meta"):
        group = Pattention(ALL_KINDS, (8, 8), "l2_norm_gelu").token_groups()[0]
    assert group.keys[0].device.type == "meta"
    assert {scale.device.type for scale in (group.tau, *group.key_ramps) if scale is not None} == {"cpu"}


@for_each_score_function
def test_output_and_gradients_are_those_of_autograd_also_a_second_time_and_row_by_row(score_function, monkeypatch):
    layer, x = all_kinds(score_function, torch.float64)
    out, wanted = layer(x), written_out(layer, x)
    torch.testing.assert_close(out, wanted, rtol=1e-12, atol=1e-12)
    first = gradients(layer, x, out)
    torch.testing.assert_close(first, gradients(layer, x, wanted), rtol=1e-10, atol=1e-12)
    assert all(map(torch.equal, first, gradients(layer, x, out)))
    monkeypatch.setattr(scores, "ELEMENTS_AT_ONCE", 60)  # two rows of 27, or of 30
    out = layer(x)
    torch.testing.assert_close([out, *gradients(layer, x, out)], [wanted, *first], rtol=1e-12, atol=1e-12)


@for_each_score_function
def test_scores_belong_to_their_generation_even_if_generations_share_a_norm(score_function):
    layer, x = all_kinds(score_function, torch.float64)
    found = layer.scores(x)
    assert {number: score.shape for number, score in found.items()} == {
        g.number: (2, 3, g.num_tokens) for g in ALL_KINDS.generations
    }
    shares = zip(ALL_KINDS.generations, ALL_KINDS.value_shares, strict=True)
    out = sum(found[g.number] @ (layer.value_tokens[str(g.number)] * share) for g, share in shares)
    torch.testing.assert_close(out, layer(x), rtol=1e-12, atol=1e-14)


@for_each_score_function
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_pass_without_gradients_gives_the_same_bits(score_function, dtype):
    layer, x = all_kinds(score_function, dtype)
    with torch.no_grad():
        alone = layer(x)
    assert torch.equal(layer(x), alone)


@for_each_score_function
def test_half_precision_is_as_accurate_as_autograd_for_gradients_along_the_scores(score_function):
    """Against float64. Most of the gradient cancels there, and only the rounding of the row sums remains."""
    generator = torch.Generator().manual_seed(5)

    def alike(rows: int) -> Tensor:
        return torch.randn(1, 64, generator=generator) + 0.3 * torch.randn(rows, 64, generator=generator)

    x = alike(32).bfloat16().requires_grad_()
    config = PattentionConfig(generations=(Generation(num_tokens=512),), tau=8.0)
    layer, exact = (Pattention(config, (64, 64), score_function) for _ in range(2))
    layer.key_tokens["0"].data, layer.value_tokens["0"].data = alike(512), alike(512)
    layer.bfloat16()
    exact.load_state_dict(layer.state_dict())
    exact_x = x.detach().double().requires_grad_()
    out = exact.double()(exact_x)
    wanted = torch.autograd.grad(out, exact_x, out.detach())[0]
    rounded = out.detach().bfloat16()
    found, plain = (
        (torch.autograd.grad(form, x, rounded)[0] - wanted).norm() for form in (layer(x), written_out(layer, x))
    )
    assert found < 2 * plain


def test_only_parameters_that_require_gradients_get_one():
    layer, x = all_kinds("l2_norm_gelu", torch.float32)
    layer.key_tokens["0"].requires_grad_(False)
    layer.value_tokens.requires_grad_(False)
    layer(x.detach()).sum().backward()
    learning = {name for name, parameter in layer.named_parameters() if parameter.grad is not None}
    assert learning == {"key_tokens.1", "key_tokens.3", "key_tokens.4"}


def test_the_layer_computes_and_learns_in_half_precision_under_autocast():
    layer, x = all_kinds("l2_norm_gelu", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())
    torch.testing.assert_close(out.float(), layer(x), rtol=0.1, atol=0.5)
