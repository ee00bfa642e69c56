"""Configurations, and growth of configurations: what preserves, what ramps, what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from model.config import (
    Generation,
    PattentionConfig,
    TransformerConfig,
    generation_of,
    grow_config,
    num_parameters,
    parameter_shapes,
    parse_model_config,
    ramp_config,
    tokenformer_config,
)
from model.initialization import build_model

SHAPE = {"vocab_size": 61, "hidden_size": 32, "num_heads": 2}

# Sizes of the growth ladder in arXiv 2410.23168, with the counts that follow from them
PAPER_SIZES = [(576, 2304, 123.6e6), (2140, 8560, 354.2e6), (4850, 19400, 753.8e6), (8620, 34480, 1.310e9)]


def small_config(**changes):
    return tokenformer_config(**({"num_layers": 2, "attention_tokens": 6, "ffn_tokens": 10} | SHAPE | changes))


@pytest.mark.parametrize(("attention_tokens", "ffn_tokens", "expected"), PAPER_SIZES)
def test_the_papers_sizes_have_the_published_parameter_counts(attention_tokens, ffn_tokens, expected):
    config = tokenformer_config(
        num_layers=12,
        attention_tokens=attention_tokens,
        ffn_tokens=ffn_tokens,
        vocab_size=50304,
        hidden_size=768,
        num_heads=12,
    )
    assert num_parameters(config) == pytest.approx(expected, rel=5e-4)
    assert num_parameters(config) == sum(p.numel() for p in build_model(config, device="meta").parameters())


@pytest.mark.parametrize(
    "config",
    [
        small_config(projection_tokens=7),
        grow_config(small_config(), attention_tokens=3, ffn_tokens=0),
        TransformerConfig(num_layers=3, ffn_size=128, **SHAPE),
    ],
    ids=["tokenformer", "grown", "transformer"],
)
def test_parameter_shapes_are_those_of_the_built_model_in_its_order(config):
    built = {name: tuple(p.shape) for name, p in build_model(config, device="meta").named_parameters()}
    assert parameter_shapes(config) == built
    assert list(parameter_shapes(config)) == list(built)


def test_a_configuration_comes_back_from_its_json_with_taus_and_ramps():
    config = ramp_config(grow_config(small_config(), attention_tokens=4, ffn_tokens=8), 0.3)
    assert parse_model_config(config.model_dump_json()) == config
    assert hash(parse_model_config(config.model_dump_json())) == hash(config)
    transformer = TransformerConfig(num_layers=3, ffn_size=128, **SHAPE)
    assert parse_model_config(transformer.model_dump_json()) == transformer


def test_growth_keeps_tau_and_the_old_generations_and_adds_one_at_ramp_zero():
    old = small_config()
    new = grow_config(old, attention_tokens=4, ffn_tokens=8)
    for before, after in zip(old.blocks, new.blocks, strict=True):
        assert after.query.tau == before.query.tau == math.sqrt(6)
        assert after.query.generations == (*before.query.generations, Generation(num_tokens=4, number=1, key_ramp=0.0))
        assert after.ffn.generations[-1] == Generation(num_tokens=8, number=1, key_ramp=0.0)
    assert new.newest_generation == 1
    added = set(parameter_shapes(new)) - set(parameter_shapes(old))
    assert {generation_of(name) for name in added} == {1}
    assert {generation_of(name) for name in parameter_shapes(old)} == {0}


def test_each_growth_is_a_generation_of_its_own_also_where_it_skips_a_pattention():
    ffn_only = grow_config(small_config(), attention_tokens=0, ffn_tokens=8)
    both = grow_config(ffn_only, attention_tokens=4, ffn_tokens=0)
    added = set(parameter_shapes(both)) - set(parameter_shapes(ffn_only))
    assert {generation_of(name) for name in added} == {2}
    assert "blocks.0.query.key_tokens.2" in added
    assert "blocks.0.query.key_tokens.1" not in parameter_shapes(both)
    built = {name: tuple(p.shape) for name, p in build_model(both, device="meta").named_parameters()}
    assert list(parameter_shapes(both).items()) == list(built.items())
    with pytest.raises(ValidationError, match="numbered \\[0, 0\\]"):
        PattentionConfig(generations=(Generation(num_tokens=1), Generation(num_tokens=1)), tau=1.0)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=4))
def test_a_finished_ramp_is_the_published_formula_whatever_the_history(growths):
    config = small_config()
    for attention_tokens, ffn_tokens in growths:
        config = ramp_config(grow_config(config, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens), 1.0)
    total = 6 + sum(attention for attention, _ in growths)
    for pattention in (config.blocks[0].query, config.blocks[1].projection):
        assert pattention.num_tokens == total
        assert pattention.tau == math.sqrt(total)
        assert {generation.key_ramp for generation in pattention.generations} == {1.0}


@given(st.floats(0, 1), st.floats(0, 1))
def test_tau_rises_with_the_ramp_and_a_ramp_never_falls(first, second):
    grown = grow_config(small_config(), attention_tokens=10, ffn_tokens=10)
    low, high = sorted((first, second))
    at_low, at_high = ramp_config(grown, low), ramp_config(grown, high)
    assert at_low.blocks[0].query.tau == pytest.approx(math.sqrt(6 + low**2 * 10))
    assert at_low.blocks[0].query.tau <= at_high.blocks[0].query.tau
    assert ramp_config(at_high, low) == at_high
    assert ramp_config(grown, 0.0) == grown


def test_softmax_and_transformers_and_empty_growth_are_refused():
    with pytest.raises(ValueError, match=r"softmax.*exp\(0\) = 1"):
        grow_config(small_config(score_function="softmax"), attention_tokens=4, ffn_tokens=4)
    with pytest.raises(ValueError, match="only a tokenformer grows"):
        grow_config(TransformerConfig(num_layers=1, ffn_size=8, **SHAPE), attention_tokens=4, ffn_tokens=4)
    for attention_tokens, ffn_tokens in [(0, 0), (-1, 4)]:
        with pytest.raises(ValueError, match="growth adds"):
            grow_config(small_config(), attention_tokens=attention_tokens, ffn_tokens=ffn_tokens)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"num_heads": 3}, "must be a multiple of num_heads"), ({"rotary_fraction": 0.2}, "must be an even number")],
)
def test_impossible_shapes_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        small_config(**change)
