"""The layer against the formula, and what growth and its ramp do to the function.

Shapes: B batch, T sequence, D model width, N parameter tokens.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.config import Generation, PattentionConfig, published_tau
from model.pattention import Pattention, pattend


def formula(x_BTD: Tensor, key_ND: Tensor, value_ND: Tensor, tau: float, score_function: str) -> Tensor:
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


@settings(deadline=None, max_examples=30)
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
    torch.testing.assert_close(pattend(x, key, value, tau, score_function), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("score_function", ["l2_norm_gelu", "gelu_l2_norm", "softmax"])
def test_gradients_are_right_in_float64(score_function):
    generator = torch.Generator().manual_seed(0)
    x, key, value = (
        torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)
        for shape in ((1, 2, 3), (4, 3), (4, 3))
    )
    assert torch.autograd.gradcheck(lambda *inputs: pattend(*inputs, 2.0, score_function), (x, key, value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_zero_scores_gives_zeros_and_finite_gradients(dtype):
    x = torch.zeros(1, 2, 4, dtype=dtype, requires_grad=True)
    key, value = torch.ones(3, 4, dtype=dtype, requires_grad=True), torch.ones(3, 4, dtype=dtype)
    out = pattend(x, key, value, math.sqrt(3), "l2_norm_gelu")
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert x.grad.isfinite().all()
    assert key.grad.isfinite().all()


def two_generations(score_function: str, ramp: float, tau: float) -> tuple[Pattention, Pattention]:
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
def test_zero_ramp_and_frozen_tau_preserve_the_function_and_a_recomputed_tau_does_not(score_function):
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


def test_a_full_ramp_is_one_layer_of_all_the_tokens():
    _, new = two_generations("l2_norm_gelu", ramp=1.0, tau=math.sqrt(12))
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    key, value = torch.cat(list(new.key_tokens.values())), torch.cat(list(new.value_tokens.values()))
    assert torch.equal(new(x), pattend(x, key, value, math.sqrt(12), "l2_norm_gelu"))


def test_a_scale_for_other_sizes_is_refused():
    _, new = two_generations("l2_norm_gelu", ramp=1.0, tau=math.sqrt(12))
    with pytest.raises(ValueError, match=r"\{'0': 5\} tokens do not fit a layer of \{'0': 5, '1': 7\}"):
        new.set_scale(PattentionConfig(generations=(Generation(num_tokens=5),), tau=1.0))
