"""Growth of whole models: new parameters, function-preserving policies, and how new tokens learn."""

import math
from itertools import product

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.config_growth import ramp_config
from model.growth import added_parameters
from model.initialization import initial_parameter
from model.parameter_names import TOKEN_KINDS, PartName, generation_of
from model.policy import GrowthPolicy, is_published, preserves
from model.shapes import parameter_shapes
from model.tokenformer_config import PATTENTIONS, ScoreFunction
from tests.model.growths import (
    IDS,
    POSSIBLE,
    SCORE_FUNCTIONS,
    Grown,
    Growth,
    History,
    allowed,
    built,
    formula,
    grow,
    growths,
    histories,
    histories_and_growths,
    small_config,
)
from tests.stages.specs import small_spec


def difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference, relative to the largest absolute value."""
    return ((one - other).abs().max() / other.abs().max()).item()


def base(score_function: ScoreFunction) -> History:
    config = small_config(score_function=score_function)
    return History(config, [], config)


@pytest.mark.slow
@pytest.mark.parametrize(("init", "tau", "score_function"), POSSIBLE)
@settings(max_examples=6)
@given(data=st.data())
def test_a_growth_preserves_the_function_if_its_policy_does_whatever_the_history(init, tau, score_function, data):
    """Copies do of a published formula. Separately normalised ones do too, although growctl requires allow_jump."""
    copies = init == "copy"
    history = data.draw(histories(score_function, published=copies and data.draw(st.booleans())))
    history = history.ramped() if copies else history
    published = is_published(history.config)
    policies = {(g.policy.init, g.policy.tau) for g in history.growths} | {(init, tau)}
    assume(published or not copies or ("copy", "per-generation") not in policies)
    old = built(history, data.draw(st.integers(0, 99)))
    growth = data.draw(growths(history.config, init, tau, everywhere=True))
    new = grow(old, growth)
    changed = difference(new.logits(), old.logits())
    if preserves(history.config, growth.policy):
        assert changed < 1e-11
        assert difference(new.logits(torch.float32), old.logits(torch.float32)) < 1e-4
        again = grow(new, data.draw(growths(new.config, init, tau)))  # without a step in between
        assert difference(again.logits(), old.logits()) < 1e-11
    elif (init, tau) == ("copy", "per-generation"):
        assert changed < 1e-11
    else:
        assert changed > 1e-5


def acting(model: Grown, layer: int, name: str, kind: str) -> list[Tensor]:
    """A Pattention's keys or values by generation, without ramps; later copies take their share of older values."""
    generations = getattr(model.config.blocks[layer], name).generations
    found = []
    for i, generation in enumerate(generations):
        value = model.values[f"blocks.{layer}.{name}.{kind}.{generation.number}"]
        copies = [1 + later.copies for later in generations[i + 1 :]] if kind == "value_tokens" else []
        found.append(value / math.prod(copies))
    return found


@settings(max_examples=30)
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
        tensors = (acting(model, layer, name, kind) for kind in TOKEN_KINDS)
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


@settings(max_examples=60)
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
    for tokens in filter(None, map(PartName.parse, added)):
        older = torch.cat(acting(old, tokens.block, tokens.part, tokens.kind))
        expected = fresh = initial_parameter(str(tokens), new.config, seed).double()
        if f"{init}_tokens" == f"zero-{tokens.kind}":
            expected = torch.zeros_like(fresh)
        elif init == "matched":
            std = 0.02 if tokens.kind == "key_tokens" else 2 / 2 / math.sqrt(8)
            expected = fresh / std * older.square().mean().sqrt()
        elif init == "copy":
            copies, noises = len(fresh) // len(older), noise * fresh
            if tokens.kind == "value_tokens":
                older = older / (1 + copies)
                noises = noises - noises.view(copies, -1, 8).mean(0).repeat(copies, 1)
            expected = older.repeat(copies, 1) + noises
        torch.testing.assert_close(new.values[str(tokens)], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("init", "tau", "score_function"), POSSIBLE)
@pytest.mark.slow
def test_every_new_token_learns_from_the_first_update_and_fully_from_the_second(init, tau, score_function):
    """On a base model with plain SGD, on a grown model with AdamW."""
    start = base(score_function)
    grown = start.then(Growth(allowed("random", "recompute"), [4, 2], [6, 0]))
    for history, optimizer, rate in [(start, torch.optim.SGD, 0.1), (grown, torch.optim.AdamW, 1e-3)]:
        sizes = [block.query.num_tokens for block in history.config.blocks]
        growth = Growth(allowed(init, tau), sizes, [block.ffn.num_tokens for block in history.config.blocks])
        new = grow(built(history), growth)
        spec = small_spec(new.config, ramp_steps=5 if tau == "ramp" else 0, anneal_steps=5 if tau == "anneal" else None)
        module = new.model()
        learned: dict[str, list[Tensor]] = {kind: [] for kind in TOKEN_KINDS}
        for step in (1, 2):
            module.set_scales(spec.model_after(step))
            module.zero_grad()
            module(IDS, IDS.roll(-1, 1)).backward()
            for kind, rows in learned.items():
                name = f"{kind}.{new.config.newest_generation}"
                found = [parameter.grad for path, parameter in module.named_parameters() if path.endswith(name)]
                rows.append(torch.cat([(gradient != 0).any(1) for gradient in found]))
            optimizer(module.parameters(), lr=rate).step()
        (keys, later_keys), (values, later_values) = learned.values()
        assert len(keys) == 4 * sum(growth.attention_tokens) + sum(growth.ffn_tokens)
        assert (keys | values).all()
        # zero values give their keys no gradient, except through a norm that they share with older keys
        assert bool(keys.any()) is ((init, tau) != ("zero-value", "per-generation"))
        assert bool(values.any()) is (init != "zero-key")
        assert later_keys.all()
        assert later_values.all()


def test_the_papers_three_growths_preserve_the_float32_function_at_the_papers_depth():
    """Rounding errors do not accumulate: 12 layers, an eighth of the paper's width, a tenth of its tokens."""
    config = small_config(num_layers=12, hidden_size=96, num_heads=12, attention_tokens=57, ffn_tokens=230)
    model = old = built(History(config, [], config))
    for attention_tokens, ffn_tokens in [(157, 625), (271, 1084), (377, 1508)]:
        model = grow(model, Growth(GrowthPolicy(), [attention_tokens] * 12, [ffn_tokens] * 12))
    assert difference(model.logits(torch.float32), old.logits(torch.float32)) < 1e-4
