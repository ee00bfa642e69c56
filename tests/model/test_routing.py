"""Routed generations, of which each data token reads the best groups.

Shapes: M data tokens, D model width, N parameter tokens, G groups.
"""

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config_growth import grow_config, ramp_config, shrink_config
from model.errors import UserError
from model.growth import grow_model
from model.initialization import build_model
from model.pattention import Pattention, joined
from model.policy import GrowthPolicy, is_published, preserves
from model.routing import BALANCING_SPEED
from model.tokenformer_config import Generation, PattentionConfig, Routing, tokens_read
from tests.model.growths import EXACT, IDS, allowed, formula, moved, small_config

COPIES = allowed("copy", "recompute", routing=Routing(groups=2, read=1))
FUNCTIONS = ("l2_norm_gelu", "gelu_l2_norm")


def mixed(routing: Routing | None, biases: tuple[float, ...] = ()) -> PattentionConfig:
    """A whole generation, a routed one that is ramped in halfway, and a routed one with a norm of its own."""
    apart = routing and Routing(groups=3, read=3 if routing.read == routing.groups else routing.read)
    generations = (
        Generation(num_tokens=5),
        Generation(num_tokens=12, number=1, routing=routing, biases=biases, key_ramp=0.5, tau_before=2.0),
        Generation(num_tokens=6, number=2, routing=apart, tau=1.5),
    )
    return PattentionConfig(generations=generations, tau=2.5)


def layers(function: Any, *configs: PattentionConfig) -> list[Pattention]:
    """Layers of these configurations with the same float64 parameters."""
    made = [Pattention(config, (7, 4), function).double() for config in configs]
    torch.manual_seed(1)
    for tensors in zip(*(layer.parameters() for layer in made), strict=True):
        value = torch.randn_like(tensors[0])
        for tensor in tensors:
            tensor.data.copy_(value)
    return made


def results(layer: Pattention, x_MD: torch.Tensor) -> list[torch.Tensor]:
    """The output, and the gradients of a sum of it with fixed weights."""
    x_MD = x_MD.clone().requires_grad_()
    out = layer(x_MD[None])[0]
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), [x_MD, *layer.parameters()])]


@pytest.mark.parametrize(("function", "groups"), product(FUNCTIONS, (2, 4)))
def test_reading_every_group_is_a_dense_layer_up_to_rounding(function, groups):
    dense, routed = layers(function, mixed(None), mixed(Routing(groups=groups, read=groups)))
    x_MD = torch.randn(9, 7, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(routed(x_MD[None])[0], dense(x_MD[None])[0], rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(results(routed, x_MD), results(dense, x_MD), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(FUNCTIONS), st.integers(1, 3), st.integers(1, 9), st.booleans())
def test_a_routed_layer_is_the_formula_of_the_groups_nearest_by_cosine_and_bias(function, read, num_rows, with_grad):
    biases = (0.3, 0.0, -0.2)
    (layer,) = layers(function, mixed(Routing(groups=3, read=read), biases))
    x_MD = torch.randn(num_rows, 7, dtype=torch.float64)
    keys, values = ([*tokens.values()] for tokens in (layer.key_tokens, layer.value_tokens))

    def chosen(x_D, key_ND, bias) -> torch.Tensor:
        means = key_ND.unflatten(0, (3, -1)).mean(1)
        cosine = F.cosine_similarity(x_D[None], means) + torch.tensor(bias)
        return cosine.topk(read).indices.sort().values

    rows = []
    for x_D in x_MD:
        first, second = chosen(x_D, keys[1], biases), chosen(x_D, keys[2], (0.0,) * 3)
        own = [tensor.unflatten(0, (3, -1))[first].flatten(0, 1) for tensor in (keys[1] * 0.5, values[1])]
        apart = [tensor.unflatten(0, (3, -1))[second].flatten(0, 1) for tensor in (keys[2], values[2])]
        shared = formula(x_D[None], torch.cat([keys[0], own[0]]), torch.cat([values[0], own[1]]), 2.5, function)
        rows.append((shared + formula(x_D[None], apart[0], apart[1], 1.5, function))[0])
    with torch.set_grad_enabled(with_grad):
        torch.testing.assert_close(layer(x_MD[None])[0], torch.stack(rows), rtol=1e-10, atol=1e-12)
    factors = torch.cat(list(layer.scores(x_MD[None]).values()), dim=-1)
    assert ((factors != 0).sum(-1) <= 5 + 4 * read + 2 * read).all()
    joined_values = torch.cat([joined(g.values, g.value_shares) for g in layer.token_groups()])
    torch.testing.assert_close((factors @ joined_values)[0], torch.stack(rows), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_are_those_of_finite_differences(function):
    (layer,) = layers(function, mixed(Routing(groups=3, read=2)))
    x_MD = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)

    def output(x_MD, *parameters):
        named = dict(zip(dict(layer.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(layer, named, (x_MD[None],))

    assert torch.autograd.gradcheck(output, (x_MD, *layer.parameters()))


@pytest.mark.parametrize(("init", "tau"), sorted(EXACT - {("copy", "recompute")}))
def test_routed_growth_keeps_the_function_now_and_at_the_next_growth_and_can_be_undone(init, tau):
    policy = GrowthPolicy(init=init, tau=tau, routing=Routing(groups=4, read=2))
    model: Any = build_model(small_config(), seed=0).double()
    for _ in range(2):
        assert preserves(model.config, policy)
        grown: Any = grow_model(model, attention_tokens=8, ffn_tokens=12, policy=policy)
        torch.testing.assert_close(grown(IDS), model(IDS), rtol=1e-10, atol=1e-12)
        assert shrink_config(grown.config) == model.balanced(model.config)
        assert not is_published(grown.config)
        model = grown
        for router in (router for pattention in model.pattentions() for router in pattention.routers.values()):
            router.bias_G.normal_()  # as training would
        model.set_scales(moved(model.config, tau, 1.0))


def test_tau_follows_the_tokens_that_are_read():
    config = grow_config(small_config(), attention_tokens=8, policy=GrowthPolicy(routing=Routing(groups=4, read=1)))
    query = ramp_config(config, 1.0).blocks[0].query
    assert (query.num_tokens, query.num_read, query.tau**2) == (12, 6, pytest.approx(6))


def test_balancing_raises_the_bias_of_groups_that_are_read_too_rarely_until_all_are_read():
    config = small_config(attention_tokens=16, ffn_tokens=16, routing=Routing(groups=4, read=1))
    model: Any = build_model(config, seed=0).train()
    router, layer = model.blocks["0"].ffn.routers["0"], model.blocks["0"].ffn
    layer.key_tokens["0"].data[:4] = torch.linspace(1, 2, 8)  # the first group suits every input below
    x_BTD = torch.linspace(1, 2, 8) + 0.1 * torch.randn(2, 50, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer(x_BTD)
    assert router.load_G.sum() == 0  # evaluation counts nothing
    layer(x_BTD)
    assert router.load_G.tolist() == [100, 0, 0, 0]
    router.balance(router.load_G.clone())
    torch.testing.assert_close(router.bias_G, BALANCING_SPEED * torch.tensor([-1.0, 1.0, 1.0, 1.0]))
    for _ in range(2000):
        layer(x_BTD)
        load_G = router.load_G.clone()
        router.balance(load_G)
    assert load_G.min() > 5
    balanced = model.balanced(config)
    assert balanced.blocks[0].ffn.generations[0].biases == tuple(router.bias_G.tolist())
    again: Any = build_model(type(config).model_validate_json(balanced.model_dump_json()), seed=0)
    assert torch.equal(again.blocks["0"].ffn.routers["0"].bias_G, router.bias_G)
    again.set_scales(config)
    assert again.balanced(config) == balanced


def test_configurations_without_routing_say_nothing_of_it():
    assert "routing" not in small_config().model_dump_json()
    assert "routing" not in GrowthPolicy().model_dump_json()


@pytest.mark.parametrize(
    ("grow", "words"),
    [
        (lambda: small_config(score_function="softmax", routing=Routing(groups=2, read=1)), "softmax"),
        (lambda: small_config(attention_tokens=5, routing=Routing(groups=2, read=1)), "5 tokens do not divide"),
        (lambda: Routing(groups=2, read=3), "read 3 is more than the 2 groups"),
        (lambda: Generation(num_tokens=4, routing=Routing(groups=2, read=1), biases=(0.0,)), "each group has one"),
        (
            lambda: grow_config(
                small_config(score_function="softmax"),
                attention_tokens=4,
                policy=allowed("random", "recompute", routing=Routing(groups=2, read=1)),
            ),
            "softmax",
        ),
        (
            lambda: grow_config(
                small_config(),
                attention_tokens=4,
                policy=allowed("copy", "recompute", routing=Routing(groups=2, read=1)),
            ),
            "not with routing",
        ),
        (
            lambda: grow_config(
                small_config(attention_tokens=4, ffn_tokens=4, routing=Routing(groups=2, read=1)),
                new_layers=2,
                policy=GrowthPolicy(depth="copy-stack", allow_jump=True),
            ),
            "cannot copy layers that are read in part",
        ),
    ],
)
def test_what_cannot_be_routed_is_refused_with_the_reason(grow, words):
    with pytest.raises(ValueError, match=words):
        grow()


def test_a_whole_generation_reads_all_its_tokens_and_the_error_for_groups_is_the_users():
    assert tokens_read(7, None) == 7
    with pytest.raises(UserError):
        tokens_read(7, Routing(groups=2, read=1))
