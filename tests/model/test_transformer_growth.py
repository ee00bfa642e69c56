"""Growth of the Transformer: what preserves the function, and which sizes are rejected.

All parameters are random in float64, even biases and norm gains, so nothing is preserved just because it is 0 or 1.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import parameter_shapes
from model.depth import COPYING, check_transformer_growth
from model.initialization import build_model
from model.transformer_growth import grow_transformer
from tests.model.growths import IDS, small_transformer

BASE = small_transformer(hidden_size=16, num_heads=2, ffn_size=12)
WIDE = {"hidden_size": 32, "num_heads": 4, "ffn_size": 24}


def sized(**changes):
    return BASE.model_copy(update=changes)


def random_parameters(seed=0, dtype=torch.float64):
    model, generator = build_model(BASE).to(dtype), torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(p.shape, dtype=torch.float64, generator=generator) * 0.4 + name.endswith("norm.weight")).to(
            p
        )
        for name, p in model.state_dict().items()
    }


def model_of(config, parameters):
    model = build_model(config).double()
    model.load_state_dict(parameters)
    return model


def grow(old, new, parameters, **options):
    return dict(grow_transformer(old, new, parameters.__getitem__, **options))


@settings(max_examples=12)
@given(
    factor=st.integers(1, 3),
    new_layers=st.integers(0, 4),
    more=st.integers(0, 30),
    depth=st.sampled_from(["append", "interleave"]),
    noise=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**31),
)
def test_growth_in_width_depth_and_ffn_units_alone_and_together_preserves_the_function(
    factor, new_layers, more, depth, noise, seed
):
    """And so does growing again what has grown."""
    old, grown = BASE, random_parameters(seed)
    before = model_of(old, grown)(IDS)
    assert before.std() > 0.1
    for _ in range(2):
        sizes = {name: factor * getattr(old, name) for name in ("hidden_size", "num_heads", "ffn_size")}
        new = sized(**sizes | {"ffn_size": sizes["ffn_size"] + more, "num_layers": old.num_layers + new_layers})
        old, grown = new, grow(old, new, grown, seed=seed, noise=noise, depth=depth)
    torch.testing.assert_close(model_of(old, grown)(IDS), before, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("depth", "num_layers", "order"),
    [
        ("append", 4, "01zz"),
        ("interleave", 3, "01z"),
        ("interleave", 4, "0z1z"),
        ("copy-stack", 6, "010101"),
        ("copy-middle", 3, "001"),
        ("copy-middle", 4, "0101"),
    ],
)
def test_depth_places_blocks_as_in_a_tokenformer_and_new_ones_write_zeros(depth, num_layers, order):
    new, parameters = sized(num_layers=num_layers), random_parameters()
    grown = grow(BASE, new, parameters, depth=depth)
    for i, source in enumerate(order):
        for layer in ("attention_norm", "attention_input", "projection", "ffn_norm", "ffn_input", "ffn_output"):
            value = grown[f"blocks.{i}.{layer}.weight"]
            if source != "z":
                assert torch.equal(value, parameters[f"blocks.{source}.{layer}.weight"])
            else:
                assert bool(value.any()) is (layer not in ("projection", "ffn_output"))
    moved = (model_of(new, grown)(IDS) - model_of(BASE, parameters)(IDS)).abs().max().item()
    assert (moved > 0.1) is (depth in COPYING)


def test_every_parameter_of_a_new_block_and_of_new_units_is_trained_from_the_second_step_on():
    new = sized(num_layers=3, ffn_size=20)
    model = model_of(new, grow(BASE, new, random_parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(IDS[:, :-1], IDS[:, 1:]).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad[12 if "ffn_input" in name else 0 :].any(), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_growth_reads_and_gives_one_parameter_after_the_other_with_its_shape_its_dtype_and_its_own_memory(dtype):
    new, parameters, names = sized(**WIDE, num_layers=3), random_parameters(dtype=dtype), list[str]()
    grown = {}
    for name, value in grow_transformer(BASE, new, lambda name: names.append(name) or parameters[name], noise=0.1):
        grown[name] = value
        assert len(names) == len(grown)
    assert [(name, tuple(value.shape)) for name, value in grown.items()] == list(parameter_shapes(new).items())
    assert {value.dtype for value in grown.values()} == {dtype}
    storages = {value.data_ptr() for value in (*parameters.values(), *grown.values())}
    assert len(storages) == len(parameters) + len(grown)


def test_noise_has_the_requested_size_depends_on_the_seed_and_differs_between_copies():
    new, parameters = sized(**WIDE), random_parameters()
    quiet = grow(BASE, new, parameters)
    noisy, again, other = (grow(BASE, new, parameters, seed=s, noise=0.2) for s in (1, 1, 2))
    for name, value in noisy.items():
        assert torch.equal(value, again[name])
        if value.ndim == 1 or name == "embedding.weight":
            assert torch.equal(value, quiet[name])
        else:
            assert ((value - quiet[name]).norm() / quiet[name].norm()).item() == pytest.approx(0.2, rel=0.1)
            assert not torch.equal(value, other[name])
            parts = value.unflatten(0, (3 if "attention_input" in name else 1, 2, -1))
            assert not torch.isclose(parts[:, 0], parts[:, 1]).any(-1).all(-1).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 5}, "needs as many new layers, or a multiple, as the model has: 2, not 3"),
        ({"ffn_size": 11}, "of hidden_size 16, num_heads 2, ffn_size 12, num_layers 2 cannot grow to .* ffn_size 11"),
        ({"hidden_size": 24, "num_heads": 3}, "hidden_size and num_heads can grow by one whole factor"),
        ({"hidden_size": 32}, "cannot grow to hidden_size 32, num_heads 2, ffn_size 12"),
        ({"hidden_size": 8, "num_heads": 1}, "cannot grow to hidden_size 8, num_heads 1"),
        ({"hidden_size": 32, "num_heads": 4}, "ffn_size by that factor or more"),
        ({"num_layers": 1}, "cannot grow to .* num_layers 1: .*num_layers by any number"),
        ({"vocab_size": 24}, "the rest must stay"),
    ],
)
def test_sizes_that_a_transformer_cannot_reach_are_rejected_with_what_can_grow(changes, message):
    with pytest.raises(ValueError, match=message):
        check_transformer_growth(BASE, sized(**changes), "copy-stack" if "num_layers" in changes else "append")
