"""The decoder: its options, some of them a Tokenformer's too, fit together; every growth but copies is exact.

All parameters are random in float64, even biases and norm gains, so nothing is preserved just because it is 0 or 1.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config_growth import grow_config, shrink_config
from model.decoder_growth import widened_decoder
from model.depth import COPYING
from model.growth import grow_model
from model.initialization import build_model
from model.policy import GrowthPolicy
from model.shapes import ModelConfig, parameter_shapes
from model.widening import widened
from tests.model.growths import IDS, small_config, small_decoder

BASE = small_decoder(hidden_size=16, num_heads=4, num_kv_heads=2, ffn_tokens=12, rotary_fraction=0.5)
SHARED = {
    "num_kv_heads": st.sampled_from([1, 2, 4]),
    "head_width": st.sampled_from([4, 8]),
    "norm": st.sampled_from(["layernorm", "rmsnorm"]),
}
"""Options of both families."""
FLAGS = ("qk_norm", "tie_embeddings", "parallel_residual", "qkv_bias", "output_bias", "ffn_bias")
CONFIGS = st.builds(
    lambda flags, **options: small_decoder(
        hidden_size=16, num_heads=4, ffn_tokens=12, **dict(zip(FLAGS, flags, strict=True)), **options
    ),
    flags=st.tuples(*(st.booleans() for _ in FLAGS)),
    **SHARED,
    rotary_fraction=st.sampled_from([0.0, 0.5, 1.0]),
    activation=st.sampled_from(["gelu", "swiglu", "relu2"]),
)
GROWTHS = st.fixed_dictionaries(
    {
        "ffn_tokens": st.sampled_from([0, 5]),
        "groups": st.sampled_from([0, 1, 2]),
        "new_layers": st.sampled_from([0, 1, 3]),
        "depth": st.sampled_from(["append", "interleave"]),
    }
).filter(lambda growth: growth["ffn_tokens"] or growth["groups"] or growth["new_layers"])


def random_model(config: ModelConfig = BASE, seed: int = 0):
    model, generator = build_model(config).double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.copy_(0.4 * drawn + ("norm.weight" in name))
    return model


def grown(model, groups=0, depth="append", seed=0, **added):
    policy = GrowthPolicy(depth=depth, allow_jump=depth in COPYING)
    return grow_model(model, heads=groups * model.config.group_size, policy=policy, seed=seed, **added)


def in_parts(model):
    """The logits of IDS, read in parts into a cache."""
    cache = model.new_cache(len(IDS), IDS.shape[1])
    return torch.cat([model(part, cache=cache) for part in IDS.split([2, 1, IDS.shape[1] - 3], dim=1)], dim=1)


def wide(model, factor, noise=0.0, seed=0):
    values, config = dict(model.named_parameters()), model.config
    larger = build_model(widened_decoder(config, factor)).double()
    parts = {name: widened(name, values[name].detach(), config, factor, noise, seed) for name in values}
    larger.load_state_dict(parts)
    return larger


@settings(max_examples=20)
@given(
    config=CONFIGS, growths=st.lists(GROWTHS, min_size=1, max_size=2), factor=st.integers(2, 3), seed=st.integers(0, 99)
)
def test_units_heads_layers_and_width_preserve_every_decoder_and_shrinking_reverts_them(config, growths, factor, seed):
    model = random_model(config, seed)
    before = model(IDS)
    assert before.std() > 0.1
    torch.testing.assert_close(in_parts(model), before, rtol=0, atol=1e-12)
    configs = [config]
    for growth in growths:
        model = grown(model, seed=seed, **growth)
        configs.append(model.config)
        torch.testing.assert_close(model(IDS), before, rtol=0, atol=1e-10)
    assert [shrink_config(configs[-1], n) for n in range(1, len(configs))] == configs[-2::-1]
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == parameter_shapes(model.config)
    torch.testing.assert_close(wide(model, factor)(IDS), before, rtol=0, atol=1e-10)
    torch.testing.assert_close(wide(model, factor, noise=0.3)(IDS), before, rtol=0, atol=1e-4)  # drawn in float32


@pytest.mark.parametrize(
    ("depth", "new_layers", "order"),
    [
        ("append", 2, "01zz"),
        ("interleave", 1, "01z"),
        ("interleave", 2, "0z1z"),
        ("copy-stack", 4, "010101"),
        ("copy-middle", 1, "001"),
        ("copy-middle", 2, "0101"),
    ],
)
def test_depth_places_blocks_as_in_a_tokenformer_and_new_ones_write_zeros(depth, new_layers, order):
    model = random_model()
    deeper = grown(model, new_layers=new_layers, depth=depth)
    for source, block in zip(order, deeper.blocks.values(), strict=True):
        for name, part in block.named_children():
            [weight], old = part.weight.values(), model.blocks["0" if source == "z" else source]
            if source != "z":
                assert torch.equal(weight.float(), next(iter(getattr(old, name).weight.values())).float())
            else:
                assert bool(weight.any()) is (name not in ("projection", "down"))
    moved = (deeper(IDS) - model(IDS)).abs().max().item()
    assert (moved > 0.1) is (depth in COPYING)


def test_every_parameter_that_a_growth_adds_is_trained_from_the_second_step_on():
    model = grown(random_model(), ffn_tokens=8, groups=1, new_layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(IDS[:, :-1], IDS[:, 1:]).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad.any() or ".key.bias." in name, name  # the softmax does not see a key's bias


def test_noise_has_the_requested_size_depends_on_the_seed_and_differs_between_copies():
    model = random_model()
    quiet, noisy, again, other = (
        dict(wide(model, 2, noise, seed).named_parameters()) for noise, seed in ((0.0, 1), (0.2, 1), (0.2, 1), (0.2, 2))
    )
    for name, value in noisy.items():
        assert torch.equal(value, again[name])
        if value.ndim == 1 or name == "embedding.weight":
            assert torch.equal(value, quiet[name])
        else:
            assert ((value - quiet[name]).norm() / quiet[name].norm()).item() == pytest.approx(0.2, rel=0.1)
            assert not torch.equal(value, other[name])
            first, second = value.chunk(2)
            assert not torch.isclose(first, second).all(-1).any()


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"new_layers": 3, "policy": GrowthPolicy(depth="copy-stack", allow_jump=True)}, "as the model has: 2, not 3"),
        (
            {"new_layers": 2, "policy": GrowthPolicy(depth="copy-stack")},
            "'copy-stack' changes the function; .*allow_jump",
        ),
        ({"heads": 3}, "adds 3 heads; 2 query heads share one of keys and values, so it must add a multiple of 2"),
        ({"ffn_tokens": -1}, "adds -1 ffn_tokens, 0 heads, 0 new_layers; each must be 0 or more"),
        ({}, "one of them above 0"),
        ({"widen": 0}, "multiplies the width by 0; it must be 2 or more"),
        ({"ffn_tokens": (1, 2)}, "the layers of a decoder are alike"),
        ({"attention_tokens": 4}, "have no attention tokens; add heads, layers"),
    ],
)
def test_growth_that_a_decoder_cannot_have_is_rejected_with_what_it_can(added, message):
    with pytest.raises(ValueError, match=message):
        grow_config(BASE, **added)


@settings(max_examples=10)
@given(qk_norm=st.booleans(), tie_embeddings=st.booleans(), **SHARED)
def test_a_tokenformer_with_a_decoders_options_grows_exactly_and_reads_from_a_cache(**options):
    config = small_config(hidden_size=16, num_heads=4, rotary_fraction=0.5, **options)
    model = random_model(config)
    before = model(IDS)
    larger = grow_model(model, attention_tokens=4, ffn_tokens=5, new_layers=1)
    torch.testing.assert_close(larger(IDS), before, rtol=0, atol=1e-10)
    assert {name: tuple(p.shape) for name, p in larger.named_parameters()} == parameter_shapes(larger.config)
    torch.testing.assert_close(in_parts(model), before, rtol=0, atol=1e-12)
