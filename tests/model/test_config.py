"""Model configurations: sizes, names, JSON, and rejected values."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from model.config import (
    PATTENTIONS,
    BlockConfig,
    Generation,
    ModelConfig,
    PattentionConfig,
    TransformerConfig,
    num_parameters,
    parameter_shapes,
    tokenformer_config,
)
from model.initialization import build_model
from model.policy import grow_config, ramp_config

MODEL_CONFIG: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)

SHAPE: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "num_heads": 2}

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


def test_a_configuration_survives_a_json_round_trip_with_taus_and_ramps():
    config = ramp_config(grow_config(small_config(), attention_tokens=4, ffn_tokens=8), 0.3)
    assert MODEL_CONFIG.validate_json(config.model_dump_json()) == config
    assert hash(MODEL_CONFIG.validate_json(config.model_dump_json())) == hash(config)
    transformer = TransformerConfig(num_layers=3, ffn_size=128, **SHAPE)
    assert MODEL_CONFIG.validate_json(transformer.model_dump_json()) == transformer


def pattention(*numbers: int) -> PattentionConfig:
    return PattentionConfig(generations=tuple(Generation(num_tokens=1, number=n) for n in numbers), tau=1.0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: small_config(num_heads=3), "must be a multiple of num_heads"),
        (lambda: small_config(rotary_fraction=0.2), "must be an even number"),
        (lambda: small_config(rotary_base=float("inf")), "finite"),
        (lambda: small_config(norm_epsilon=float("inf")), "finite"),
        (lambda: pattention(0, 0), r"numbered \[0, 0\]"),
        (lambda: BlockConfig(**dict.fromkeys(PATTENTIONS, pattention(0)) | {"query": pattention(1)}), "a whole block"),
    ],
)
def test_impossible_configurations_are_rejected(build, message):
    with pytest.raises(ValidationError, match=message):
        build()
