"""Model configurations and the names of their parameters: sizes, FLOPs, JSON, and rejected values."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from model.config_growth import grow_config, ramp_config
from model.flops import Flops, forward_flops_per_token, recomputed_flops_per_token, training_flops_per_token
from model.initialization import build_model
from model.parameter_names import TOKEN_KINDS, PartName, generation_of, in_block
from model.policy import GrowthPolicy
from model.shapes import ModelConfig, num_parameters, parameter_shapes
from model.tokenformer_config import PATTENTIONS, BlockConfig, Generation, PattentionConfig, Routing
from tests.model.growths import small_config, small_decoder

MODEL_CONFIG: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)
TRANSFORMER = small_decoder()
NUMBERS = st.integers(0, 10**6)


@pytest.mark.parametrize(("attention_tokens", "ffn_tokens", "millions"), [(576, 2304, 123.6), (8620, 34480, 1310)])
def test_the_papers_sizes_have_the_published_parameter_counts(attention_tokens, ffn_tokens, millions):
    """The first and the last size of the growth ladder in arXiv 2410.23168."""
    shape = {"num_layers": 12, "vocab_size": 50304, "hidden_size": 768, "num_heads": 12}
    config = small_config(attention_tokens=attention_tokens, ffn_tokens=ffn_tokens, **shape)
    assert num_parameters(config) == pytest.approx(millions * 1e6, rel=5e-4)


@pytest.mark.parametrize("config", [small_config(projection_tokens=7), TRANSFORMER], ids=["tokenformer", "transformer"])
def test_parameter_shapes_are_those_of_the_built_model_in_its_order(config):
    built = {name: tuple(p.shape) for name, p in build_model(config, device="meta").named_parameters()}
    assert list(parameter_shapes(config).items()) == list(built.items())
    assert num_parameters(config) == sum(p.numel() for p in build_model(config, device="meta").parameters())


def test_a_configuration_survives_a_json_round_trip_with_taus_and_ramps():
    for config in (ramp_config(grow_config(small_config(), attention_tokens=4), 0.3), TRANSFORMER):
        read = MODEL_CONFIG.validate_json(config.model_dump_json())
        assert (read, hash(read)) == (config, hash(config))


def pattention(*numbers: int) -> PattentionConfig:
    return PattentionConfig(generations=tuple(Generation(num_tokens=1, number=n) for n in numbers), tau=1.0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: small_config(num_heads=3), "must be a multiple of num_heads"),
        (lambda: small_config(rotary_fraction=0.4), "must be an even number"),
        (lambda: small_config(rotary_fraction=0.1), "rotates 0 dimensions; it must be an even number, 2 or more"),
        (lambda: small_config(rotary_base=float("inf")), "finite"),
        (lambda: small_config(block_ids=(0, 0)), r"\[0, 0\]; each of the 2 blocks needs its own"),
        (lambda: small_config(block_ids=(0,)), r"\[0\]; each of the 2 blocks needs its own"),
        (lambda: pattention(0, 0), r"numbered \[0, 0\]"),
        (lambda: pattention(1, 0), r"numbered \[1, 0\]"),
        (lambda: BlockConfig(**dict.fromkeys(PATTENTIONS, pattention(0)) | {"query": pattention(1)}), "a whole block"),
    ],
)
def test_impossible_configurations_are_rejected(build, message):
    with pytest.raises(ValidationError, match=message):
        build()


@given(st.builds(PartName, NUMBERS, st.sampled_from(PATTENTIONS), st.sampled_from(TOKEN_KINDS), NUMBERS))
def test_a_name_in_a_block_says_what_it_was_built_from(tokens):
    assert PartName.parse(str(tokens)) == tokens
    assert generation_of(str(tokens)) == tokens.generation
    assert str(tokens) == in_block(tokens.block, tokens.in_block)


@pytest.mark.parametrize(
    "name", ["embedding.weight", "blocks.3.query.weight", "query.key_tokens.1", "blocks.0.query.key_tokens.1.a"]
)
def test_other_names_are_of_no_block_and_of_generation_0(name):
    assert PartName.parse(name) is None
    assert generation_of(name) == 0


BASE = small_config(attention_tokens=6, projection_tokens=9, ffn_tokens=50, hidden_size=32, num_heads=2)
CONFIGS: dict[str, ModelConfig] = {
    "grown": grow_config(BASE, attention_tokens=9, ffn_tokens=4),
    "routed": grow_config(
        BASE, attention_tokens=80, ffn_tokens=400, policy=GrowthPolicy(routing=Routing(groups=8, read=3))
    ),
    "no-layers": small_config(num_layers=0, hidden_size=32, num_heads=2),
    "transformer": small_decoder(ffn_tokens=128, hidden_size=32, num_heads=2),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("length", "recompute_every"), [(8, 1), (64, 2)])
def test_formulas_agree_with_the_flop_counter(name, length, recompute_every):
    config = CONFIGS[name]
    model, ids = build_model(config, seed=0), torch.randint(0, 29, (2, length))
    forward = forward_flops_per_token(config, length).total
    training = training_flops_per_token(config, length).total
    recomputing = training + recomputed_flops_per_token(config, length)
    for expected, every in ((forward, None), (training, None), (recomputing, recompute_every)):
        model.recompute_every = every
        # Without the written-out attention, the counter sees no FLOPs in it on a CPU.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            with torch.set_grad_enabled(expected != forward):
                loss = model(ids, ids)
            if expected != forward:
                loss.backward()
        assert expected * ids.numel() == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_flops_add_and_scale_by_part_and_growth_adds_to_parameters_alone():
    assert Flops(1, 2, 3) + 2 * Flops(1, 1, 1) == Flops(3, 4, 5)
    assert (Flops(1, 2, 3) * 2).total == 12
    before, after = (forward_flops_per_token(config, 64) for config in (BASE, CONFIGS["grown"]))
    assert after == before + Flops(2 * 2 * 2 * 32 * (4 * 9 + 4), 0, 0)
