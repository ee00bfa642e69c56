"""The Pattention layer matches the formula, and growth and its ramp change the function as specified.

Shapes: B batch, T sequence, D model width, N parameter tokens.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model import scores
from model.config import Generation, PattentionConfig, ScoreFunction, published_tau
from model.pattention import Pattention, TokenGroup, pattend


def formula(x_BTD: Tensor, key_ND: Tensor, value_ND: Tensor, tau: float, score_function: ScoreFunction) -> Tensor:
    """The published formulas written out token by token, with GELU from its definition."""

    def gelu(a: Tensor) -> Tensor:
        return a * 0.5 * (1 + torch.erf(a / math.sqrt(2)))

    rows = []
    for x_D in x_BTD.flatten(0, -2):
        a_N = torch.stack([x_D.dot(key_D) for key_D in key_ND])
        if score_function == "l2_norm_gelu":
            s_N = gelu(a_N * tau / a_N.pow(2).sum().sqrt())
        elif score_function == "gelu_l2_norm":
            s_N = gelu(a_N) * tau / gelu(a_N).pow(2).sum().sqrt()
        else:
            s_N = a_N.exp() * tau / a_N.exp().sum()
        rows.append(sum(s * value_D for s, value_D in zip(s_N, value_ND, strict=True)))
    return torch.stack(rows).reshape(*x_BTD.shape[:-1], -1)


@settings(max_examples=30)
@given(
    st.sampled_from(["l2_norm_gelu", "gelu_l2_norm", "softmax"]),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(0, 2**31),
)
def test_the_layer_is_the_published_formula(score_function, num_tokens, width, seed):
    generator = torch.Generator().manual_seed(seed)
    x, key, value = (
        torch.randn(*shape, width, dtype=torch.float64, generator=generator)
        for shape in ((2, 3), (num_tokens,), (num_tokens,))
    )
    tau = published_tau(score_function, num_tokens)
    expected = formula(x, key, value, tau, score_function)
    torch.testing.assert_close(
        pattend(x, TokenGroup.of(key, value, tau), score_function), expected, rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("score_function", ["l2_norm_gelu", "gelu_l2_norm", "softmax"])
def test_gradients_pass_gradcheck_in_float64(score_function):
    generator = torch.Generator().manual_seed(0)
    x, key, value = (
        torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)
        for shape in ((1, 2, 3), (4, 3), (4, 3))
    )
    assert torch.autograd.gradcheck(
        lambda x, key, value: pattend(x, TokenGroup.of(key, value, 2.0), score_function), (x, key, value)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_zero_scores_gives_zeros_and_finite_gradients(dtype):
    x = torch.zeros(1, 2, 4, dtype=dtype, requires_grad=True)
    key, value = torch.ones(3, 4, dtype=dtype, requires_grad=True), torch.ones(3, 4, dtype=dtype)
    out = pattend(x, TokenGroup.of(key, value, math.sqrt(3)), "l2_norm_gelu")
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert x.grad.isfinite().all()
    assert key.grad.isfinite().all()


def two_generations(score_function: ScoreFunction, ramp: float, tau: float) -> tuple[Pattention, Pattention]:
    """A layer of 5 tokens, and one grown from it by 7."""
    old = Pattention(PattentionConfig(generations=(Generation(num_tokens=5),), tau=math.sqrt(5)), 8, score_function)
    generations = (Generation(num_tokens=5), Generation(num_tokens=7, number=1, key_ramp=ramp))
    new = Pattention(PattentionConfig(generations=generations, tau=tau), 8, score_function)
    generator = torch.Generator().manual_seed(1)
    for parameter in (*old.parameters(), *new.parameters()):
        parameter.data = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    for kind in ("key_tokens", "value_tokens"):
        getattr(new, kind)["0"].data = getattr(old, kind)["0"].data
    return old, new


@pytest.mark.parametrize("score_function", ["l2_norm_gelu", "gelu_l2_norm"])
def test_a_zero_ramp_and_a_frozen_tau_preserve_the_function_but_a_recomputed_tau_does_not(score_function):
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    old, frozen = two_generations(score_function, ramp=0.0, tau=math.sqrt(5))
    torch.testing.assert_close(frozen(x), old(x), rtol=0, atol=1e-12)
    old, recomputed = two_generations(score_function, ramp=0.0, tau=math.sqrt(12))
    assert (recomputed(x) - old(x)).abs().max() > 0.1


def test_new_tokens_get_gradients_as_soon_as_the_ramp_leaves_zero():
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for ramp, learns in ((0.0, False), (0.01, True)):
        _, new = two_generations("l2_norm_gelu", ramp, math.sqrt(5))
        new(x).pow(2).sum().backward()
        for parameter in (new.key_tokens["1"], new.value_tokens["1"]):
            assert bool((parameter.grad.abs().sum(dim=1) > 0).all()) is learns


def test_a_finished_ramp_equals_one_layer_of_all_tokens():
    _, new = two_generations("l2_norm_gelu", ramp=1.0, tau=math.sqrt(12))
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    key, value = torch.cat(list(new.key_tokens.values())), torch.cat(list(new.value_tokens.values()))
    assert torch.equal(new(x), pattend(x, TokenGroup.of(key, value, math.sqrt(12)), "l2_norm_gelu"))


def test_a_scale_for_other_sizes_is_rejected():
    _, new = two_generations("l2_norm_gelu", ramp=1.0, tau=math.sqrt(12))
    with pytest.raises(ValueError, match=r"\{'0': 5\} tokens do not match a layer of \{'0': 5, '1': 7\}"):
        new.set_scale(PattentionConfig(generations=(Generation(num_tokens=5),), tau=1.0))


def all_kinds(score_function: ScoreFunction, dtype: torch.dtype) -> tuple[Pattention, Tensor]:
    """A layer with every kind of generation (ramped, unramped, copied, normalised separately), and its input."""
    generations = (
        Generation(num_tokens=5),
        Generation(num_tokens=7, number=1, key_ramp=0.5),
        Generation(num_tokens=3, number=3, tau=2.0),
        Generation(num_tokens=15, number=4, copies=1),
    )
    layer = Pattention(PattentionConfig(generations=generations, tau=3.0), 8, score_function).to(dtype)
    generator = torch.Generator().manual_seed(4)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    return layer, torch.randn(2, 3, 8, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def written_out(layer: Pattention, x_BTD: Tensor) -> Tensor:
    """The layer computed operator by operator with plain autograd."""
    total = torch.zeros(())
    for group in layer.token_groups():
        key_ND, value_NO = (
            torch.cat([part if scale is None else part * scale for part, scale in zip(parts, scales, strict=True)])
            for parts, scales in ((group.keys, group.key_ramps), (group.values, group.value_shares))
        )
        a_BTN = x_BTD @ key_ND.T
        if layer.score_function == "l2_norm_gelu":
            factor_BTN = F.gelu(a_BTN * group.tau / a_BTN.norm(dim=-1, keepdim=True))
        elif layer.score_function == "gelu_l2_norm":
            factor_BTN = F.gelu(a_BTN) * group.tau / F.gelu(a_BTN).norm(dim=-1, keepdim=True)
        else:
            factor_BTN = a_BTN.softmax(dim=-1) * group.tau
        total = total + factor_BTN @ value_NO
    return total


@pytest.mark.parametrize("score_function", ["l2_norm_gelu", "gelu_l2_norm", "softmax"])
def test_every_kind_of_generation_gets_the_gradient_that_autograd_gives(score_function):
    layer, x = all_kinds(score_function, torch.float64)
    wanted, found = (
        torch.autograd.grad(out.sin().sum(), (x, *layer.parameters())) for out in (written_out(layer, x), layer(x))
    )
    torch.testing.assert_close(layer(x), written_out(layer, x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("score_function", ["l2_norm_gelu", "gelu_l2_norm", "softmax"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_pass_without_gradients_gives_the_same_bits(score_function, dtype):
    layer, x = all_kinds(score_function, dtype)
    with torch.no_grad():
        alone = layer(x)
    assert torch.equal(layer(x), alone)


def test_half_precision_is_as_accurate_as_plain_autograd():
    """Against float64, over every gradient: recomputing in the backward pass must not cost accuracy."""
    exact_layer, exact_x = all_kinds("l2_norm_gelu", torch.float64)
    layer, x = all_kinds("l2_norm_gelu", torch.bfloat16)
    exact_x = x.detach().double().requires_grad_()
    for exact, rounded in zip(exact_layer.parameters(), layer.parameters(), strict=True):
        exact.data = rounded.data.double()
    wanted = torch.autograd.grad(exact_layer(exact_x).sum(), (exact_x, *exact_layer.parameters()))
    errors = []
    for out in (layer(x), written_out(layer, x)):
        found = torch.autograd.grad(out.sum(), (x, *layer.parameters()))
        errors.append(sum(float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)))
    assert errors[0] < 2 * errors[1]


def test_the_layer_saves_its_scores_and_one_norm_per_data_token_but_no_copy_of_parameters():
    layer, x = all_kinds("l2_norm_gelu", torch.bfloat16)
    known = {tensor.untyped_storage().data_ptr() for tensor in (x, *layer.parameters())}
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.dim() and tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tuple(tensor.shape), tensor.dtype
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    shared, own = 5 + 7 + 15, 3
    norm = ((6, 1), torch.float32)
    assert sorted(kept.values(), key=str) == sorted(
        [((6, shared), torch.bfloat16), norm, ((6, own), torch.bfloat16), norm], key=str
    )


def test_a_retained_graph_gives_the_same_gradients_twice():
    layer, x = all_kinds("l2_norm_gelu", torch.float32)
    loss = layer(x).sum()
    first = torch.autograd.grad(loss, (x, *layer.parameters()), retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, (x, *layer.parameters()))))


def test_only_parameters_that_require_gradients_get_one():
    layer, x = all_kinds("l2_norm_gelu", torch.float32)
    layer.key_tokens["0"].requires_grad_(False)
    layer.value_tokens.requires_grad_(False)
    layer(x.detach()).sum().backward()
    assert {name for name, parameter in layer.named_parameters() if parameter.grad is not None} == {
        "key_tokens.1",
        "key_tokens.3",
        "key_tokens.4",
    }


@pytest.mark.parametrize("score_function", ["l2_norm_gelu", "gelu_l2_norm", "softmax"])
def test_slices_of_rows_give_the_same_as_all_rows_at_once(score_function, monkeypatch):
    def results() -> list[Tensor]:
        layer, x = all_kinds(score_function, torch.float32)
        out = layer(x)
        return [out, *torch.autograd.grad(out.sum(), (x, *layer.parameters()))]

    together = results()
    monkeypatch.setattr(scores, "ELEMENTS_AT_ONCE", 60)  # two rows of 27, or of 30
    torch.testing.assert_close(results(), together)


def test_a_row_of_zero_scores_contributes_no_gradient():
    x = torch.zeros(1, 2, 4, requires_grad=True)
    key, value = torch.ones(3, 4, requires_grad=True), torch.ones(3, 4, requires_grad=True)
    pattend(x, TokenGroup.of(key, value, 1.7), "l2_norm_gelu").sum().backward()
    assert not x.grad.any()
    assert not key.grad.any()
    assert not value.grad.any()


@pytest.mark.parametrize("score_function", ["l2_norm_gelu", "gelu_l2_norm", "softmax"])
def test_half_precision_is_as_accurate_as_autograd_for_gradients_along_the_scores(score_function):
    """Most of the gradient cancels there, and only the rounding of the row sums remains."""
    generator = torch.Generator().manual_seed(5)

    def alike(rows: int) -> Tensor:
        shared = torch.randn(1, 64, generator=generator)
        return (shared + 0.3 * torch.randn(rows, 64, generator=generator)).bfloat16().requires_grad_()

    x, key, value = alike(32), alike(512), alike(512)
    layer = Pattention(PattentionConfig(generations=(Generation(num_tokens=512),), tau=8.0), 64, score_function)
    layer.bfloat16()
    layer.key_tokens["0"].data, layer.value_tokens["0"].data = key.data, value.data
    exact = Pattention(layer.config, 64, score_function).double()
    exact.key_tokens["0"].data, exact.value_tokens["0"].data = key.data.double(), value.data.double()
    exact_x = x.detach().double().requires_grad_()
    out = exact(exact_x)
    wanted = torch.autograd.grad(out, exact_x, out.detach())[0]
    errors = []
    for form in (layer(x), written_out(layer, x)):
        found = torch.autograd.grad(form, x, out.detach().bfloat16())[0]
        errors.append(float((found.double() - wanted).norm() / wanted.norm()))
    assert errors[0] < 2 * errors[1]


def test_scales_are_on_the_cpu_for_a_layer_on_any_device():
    with torch.device("meta"):
        layer, _ = two_generations("l2_norm_gelu", ramp=0.5, tau=3.0)[1], None
    group = layer.token_groups()[0]
    assert group.keys[0].device.type == "meta"
    assert {scale.device.type for scale in (group.tau, *group.key_ramps) if scale is not None} == {"cpu"}


def test_the_layer_computes_and_learns_in_half_precision_under_autocast():
    layer, x = all_kinds("l2_norm_gelu", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())
    torch.testing.assert_close(out.float(), layer(x), rtol=0.1, atol=0.5)
