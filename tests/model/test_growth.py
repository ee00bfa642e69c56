"""Growth of whole models: new parameters, function-preserving policies, and how new tokens learn."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.config import PATTENTIONS, ScoreFunction, TokenformerConfig, parameter_shapes, tokenformer_config
from model.growth import added_parameters, draw_added
from model.initialization import build_model, initial_parameter
from model.parameter_names import TokensName, generation_of
from model.policy import GrowthPolicy, grow_config, is_published, preserves, ramp_config
from tests.model.growths import (
    EXACT,
    IDS,
    POSSIBLE,
    SCORE_FUNCTIONS,
    Grown,
    Growth,
    History,
    allowed,
    built,
    grow,
    growths,
    histories,
    histories_and_growths,
    small_config,
)
from tests.stages.specs import small_spec

EXACT_ONES = [(init, tau, score_function) for init, tau, score_function in POSSIBLE if (init, tau) in EXACT]
OTHERS = [possible for possible in POSSIBLE if possible not in EXACT_ONES]
BASES = [History(config, [], config) for config in (small_config(score_function=s) for s in SCORE_FUNCTIONS)]


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


def difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference, relative to the largest absolute value."""
    return ((one - other).abs().max() / other.abs().max()).item()


def base(score_function: str) -> History:
    return BASES[SCORE_FUNCTIONS.index(score_function)]


@pytest.mark.slow
@pytest.mark.parametrize(("init", "tau", "score_function"), EXACT_ONES)
@settings(max_examples=12)
@given(data=st.data())
def test_an_exact_policy_preserves_the_function_whatever_the_history(init, tau, score_function, data):
    history = data.draw(histories(score_function, published=init == "copy"))
    growth = data.draw(growths(history.config, init, tau))
    assert preserves(growth.policy, score_function, published=is_published(history.config))
    old = built(history, data.draw(st.integers(0, 99)))
    new = grow(old, growth)
    assert difference(new.logits(), old.logits()) < 1e-11
    assert difference(new.logits(torch.float32), old.logits(torch.float32)) < 1e-4
    again = grow(new, data.draw(growths(new.config, init, tau)))  # without a step in between
    assert difference(again.logits(), old.logits()) < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize(("init", "tau", "score_function"), OTHERS)
@settings(max_examples=4)
@given(data=st.data())
def test_all_other_policies_change_the_function_except_separately_normalised_copies(init, tau, score_function, data):
    """Separately normalised copies preserve a published formula too, although growctl requires allow_jump."""
    history = base(score_function)
    if data.draw(st.booleans()):
        history = history.then(data.draw(growths(history.config, "random", "recompute")))
    old = built(history, data.draw(st.integers(0, 99)))
    assert is_published(old.config)
    new = grow(old, data.draw(growths(history.config, init, tau, everywhere=True)))
    changed = difference(new.logits(), old.logits())
    assert changed < 1e-11 if (init, tau) == ("copy", "per-generation") else changed > 1e-4


@settings(max_examples=40)
@given(st.data(), st.sampled_from(SCORE_FUNCTIONS))
@pytest.mark.slow
def test_copies_change_the_function_of_a_model_that_is_not_the_published_formula(data, score_function):
    history = data.draw(histories(score_function)).ramped()
    assume(not is_published(history.config))
    # A model with separately normalised copies is not the published formula, but computes it, so copies preserve it.
    assume(not any(g.policy.init == "copy" and g.policy.tau == "per-generation" for g in history.growths))
    old = built(history)
    growth = data.draw(growths(history.config, "copy", "recompute", everywhere=True))
    assert not preserves(growth.policy, score_function, published=is_published(history.config))
    assert difference(grow(old, growth).logits(), old.logits()) > 1e-5


def test_the_full_ramp_changes_the_function_and_a_small_one_little():
    old = built(base("l2_norm_gelu"))
    new = grow(old, Growth(GrowthPolicy(init="random"), [9, 9], [20, 20]))
    changed = [difference(new._replace(config=ramp_config(new.config, g)).logits(), old.logits()) for g in (1e-5, 0.5)]
    assert 0 < changed[0] < 1e-3 < 0.05 < changed[1]


def acting(model: Grown, layer: int, name: str, kind: str) -> list[Tensor]:
    """A Pattention's keys or values by generation, without ramps; later copies take their share of older values."""
    generations = getattr(model.config.blocks[layer], name).generations
    found = []
    for i, generation in enumerate(generations):
        value = model.values[f"blocks.{layer}.{name}.{kind}_tokens.{generation.number}"]
        copies = [1 + later.copies for later in generations[i + 1 :]] if kind == "value" else []
        found.append(value / math.prod(copies))
    return found


@settings(max_examples=60)
@given(st.data(), st.sampled_from(SCORE_FUNCTIONS))
def test_a_grown_pattention_computes_the_written_out_formula_of_its_generations(data, score_function):
    """Ramps multiply keys, shares multiply values; generations with their own tau have their own norm."""
    history = data.draw(histories(score_function))
    if score_function != "softmax" and data.draw(st.booleans()):
        ramped = data.draw(growths(history.config, "random", "ramp"))
        history = history.then(ramped._replace(share=data.draw(st.floats(0.0, 1.0))))
    model = built(history)
    x = torch.randn(1, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    module = model.model()
    for layer, name in product(range(2), PATTENTIONS):
        pattention = getattr(model.config.blocks[layer], name)
        together: list[tuple[Tensor, Tensor]] = []
        expected = torch.zeros_like(x)
        tensors = (acting(model, layer, name, kind) for kind in ("key", "value"))
        for generation, key, value in zip(pattention.generations, *tensors, strict=True):
            if generation.tau is None:
                together.append((key * generation.key_ramp, value))
            else:
                expected += formula(x, key, value, generation.tau, score_function)
        keys, values = map(torch.cat, zip(*together, strict=True))
        expected += formula(x, keys, values, pattention.tau, score_function)
        found = module.get_submodule(f"blocks.{layer}.{name}")(x)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_a_model_follows_its_scales_while_they_move():
    """Setting the scales, as a worker does at every step, gives the same as building the model again."""
    old = built(base("l2_norm_gelu").then(Growth(allowed("copy", "recompute"), [4, 8], [6, 0])))
    new = grow(old, Growth(GrowthPolicy(), [3, 0], [5, 7]))
    module = new.model()
    for ramp in (0.0, 0.25, 1.0):
        config = ramp_config(new.config, ramp)
        module.set_scales(config)
        with torch.no_grad():
            assert torch.equal(module(IDS), new._replace(config=config).logits())
    with pytest.raises(ValueError, match="do not match a layer of"):
        module.set_scales(old.config)


@settings(max_examples=150)
@given(histories_and_growths(), st.integers(0, 3), st.sampled_from([0.0, 0.5]))
def test_every_init_draws_what_its_name_says_and_changes_no_old_parameter(drawn, seed, noise):
    """Copies have the older keys and share the older values equally; noise on values sums to zero over the copies."""
    history, growth = drawn
    init, noise = growth.policy.init, noise if growth.policy.init == "copy" else 0.0
    old = built(history)
    before = {name: value.clone() for name, value in old.values.items()}
    new = grow(old, growth._replace(policy=allowed(init, growth.policy.tau, copy_noise=noise)), seed)
    added = added_parameters(old.config, new.config)
    assert list(new.values) == [*before, *added]
    assert all(torch.equal(new.values[name], value) for name, value in before.items())
    assert {name: tuple(v.shape) for name, v in new.values.items()} == parameter_shapes(new.config)
    assert {generation_of(name) for name in added} == {new.config.newest_generation}
    for tokens in filter(None, map(TokensName.parse, added)):
        older = torch.cat(acting(old, tokens.block, tokens.pattention, tokens.kind))
        expected = fresh = initial_parameter(str(tokens), new.config, seed).double()
        if init == f"zero-{tokens.kind}":
            expected = torch.zeros_like(fresh)
        elif init == "matched":
            std = 0.02 if tokens.kind == "key" else 2 / 2 / math.sqrt(8)
            expected = fresh / std * older.square().mean().sqrt()
        elif init == "copy":
            copies, noises = len(fresh) // len(older), noise * fresh
            if tokens.kind == "value":
                older = older / (1 + copies)
                noises = noises - noises.view(copies, -1, 8).mean(0).repeat(copies, 1)
            expected = older.repeat(copies, 1) + noises
        torch.testing.assert_close(new.values[str(tokens)], expected, rtol=1e-6, atol=1e-7)


def test_the_seed_determines_the_new_values_and_no_two_generations_are_equal():
    model = built(base("l2_norm_gelu"))
    growth = Growth(GrowthPolicy(), [4, 4], [6, 6])
    once, again, other = (grow(model, growth, seed).values["blocks.0.query.key_tokens.1"] for seed in (1, 1, 2))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    twice = grow(grow(model, growth, 1), growth, 1)
    assert not torch.equal(twice.values["blocks.0.query.key_tokens.2"], once)


@settings(max_examples=30)
@given(
    st.sampled_from(["l2_norm_gelu", "gelu_l2_norm"]),
    st.sampled_from(["frozen", "recompute", "ramp"]),
    st.lists(st.integers(1, 6), min_size=4, max_size=4),
)
def test_two_growths_and_one_growth_by_their_sum_give_the_same_function(score_function, tau, counts):
    init = "zero-key" if tau == "frozen" else "random"
    growths = [Growth(allowed(init, tau), [a, a], [f, f], share=1.0) for a, f in (counts[:2], counts[2:])]
    twice = built(base(score_function).then(growths[0]).then(growths[1]))
    whole = Growth(allowed(init, tau), [counts[0] + counts[2]] * 2, [counts[1] + counts[3]] * 2, share=1.0)
    once = built(base(score_function).then(whole))
    values = {
        name: torch.cat([twice.values[name], twice.values[f"{name[:-1]}2"]]) if name.endswith("_tokens.1") else
        twice.values[name] for name in once.values
    }  # fmt: skip
    assert difference(Grown(once.config, values).logits(), twice.logits()) < 1e-11
    for a, b in zip(once.config.blocks, twice.config.blocks, strict=True):
        assert a.query.tau == pytest.approx(b.query.tau)


def scales_at(model: Grown, growth: Growth, step: int) -> Grown:
    """The model with the scales that it has for update number `step` of the stage, counted from 0."""
    tau = growth.policy.tau
    spec = small_spec(model.config, ramp_steps=5 if tau == "ramp" else 0, anneal_steps=5 if tau == "anneal" else None)
    config = spec.model_after(step + 1)
    assert isinstance(config, TokenformerConfig)
    return model._replace(config=config)


def gradients(module) -> dict[str, Tensor]:
    """The gradients of a loss on random targets."""
    module.zero_grad()
    module(IDS, IDS.roll(-1, 1)).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def rows_that_learn(found: dict[str, Tensor], number: int) -> dict[str, tuple[Tensor, Tensor]]:
    """{Pattention: (which key rows, which value rows of its generation `number` have a gradient)}."""
    stems = [name.removesuffix(f"key_tokens.{number}") for name in found if name.endswith(f".key_tokens.{number}")]

    def learn(stem: str, kind: str) -> Tensor:
        return (found[f"{stem}{kind}_tokens.{number}"] != 0).any(1)

    return {stem: (learn(stem, "key"), learn(stem, "value")) for stem in stems}


@pytest.mark.parametrize(("init", "tau", "score_function"), POSSIBLE)
@pytest.mark.slow
def test_every_new_token_learns_from_the_first_update_and_fully_from_the_second(init, tau, score_function):
    """Holds for every valid policy: on a base model with plain SGD, on a grown model with AdamW."""
    start = base(score_function)
    grown = start.then(Growth(allowed("random", "recompute"), [4, 2], [6, 0]))
    for history, optimizer, rate in [(start, torch.optim.SGD, 0.1), (grown, torch.optim.AdamW, 1e-3)]:
        sizes = [block.query.num_tokens for block in history.config.blocks]
        growth = Growth(allowed(init, tau), sizes, [block.ffn.num_tokens for block in history.config.blocks])
        new = grow(built(history), growth)
        number = new.config.newest_generation
        module = scales_at(new, growth, 0).model()
        first = rows_that_learn(gradients(module), number)
        assert len(first) == 10
        for keys, values in first.values():
            assert (keys | values).all()
            # zero values give their keys no gradient, except through a norm that they share with older keys
            assert bool(keys.any()) is ((init, tau) != ("zero-value", "per-generation"))
            assert bool(values.any()) is (init != "zero-key")
        optimizer(module.parameters(), lr=rate).step()
        module.set_scales(scales_at(new, growth, 1).config)
        for keys, values in rows_that_learn(gradients(module), number).values():
            assert keys.all()
            assert values.all()


def test_at_a_ramp_of_zero_no_new_token_would_learn():
    """Therefore the first update has a ramp above 0, and zero values cannot be combined with ramped keys."""
    growth = Growth(GrowthPolicy(), [4, 4], [6, 6])
    new = grow(built(base("l2_norm_gelu")), growth)
    assert new.config.blocks[0].query.generations[1].key_ramp == 0
    for keys, values in rows_that_learn(gradients(new.model()), 1).values():
        assert not (keys | values).any()
    at_first = scales_at(new, growth, 0).config.blocks[0].query
    assert at_first.generations[1].key_ramp == pytest.approx(1 / 6)
    assert at_first.tau == pytest.approx(math.sqrt(4 + 4 / 36))


def test_the_papers_three_growths_preserve_the_float32_function_at_the_papers_depth():
    """Rounding errors do not accumulate: 12 layers, an eighth of the paper's width, a tenth of its tokens."""
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 96, "num_heads": 12, "num_layers": 12}
    old = tokenformer_config(attention_tokens=57, ffn_tokens=230, **sizes)
    values: dict[str, Tensor] = dict(build_model(old, seed=0).named_parameters())
    model = build_model(old)
    model.load_state_dict(values)
    config = old
    for attention_tokens, ffn_tokens in [(157, 625), (271, 1084), (377, 1508)]:
        before, config = config, grow_config(config, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens)
        values |= dict(draw_added(before, config, seed=0, rms_of=Grown(before, values).rms_of))
    grown = build_model(config)
    grown.load_state_dict(values)
    with torch.no_grad():
        assert difference(grown(IDS), model(IDS)) < 1e-4
