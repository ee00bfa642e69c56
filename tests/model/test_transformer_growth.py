"""Growth operators of the Transformer: which preserve the function, and which sizes are rejected.

All parameters are random in float64, even biases and norm gains, so nothing is preserved just because it is 0 or 1.
"""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import TransformerConfig, parameter_shapes
from model.initialization import build_model
from model.transformer_growth import grow_transformer
from model.transformer_sizes import PRESERVING, check_transformer_growth

BASE = TransformerConfig(vocab_size=23, hidden_size=16, num_heads=2, num_layers=2, ffn_size=12)
GROWN = {
    "net2net": {"hidden_size": 32, "num_heads": 4, "ffn_size": 29},
    "hypercloning": {"hidden_size": 32, "num_heads": 4, "ffn_size": 24},
    "stack": {"num_layers": 4},
    "identity-blocks": {"num_layers": 3},
}

few = settings(max_examples=12)
seeds = st.integers(0, 2**31)
noises = st.sampled_from([0.0, 0.3])


def sized(**changes):
    return TransformerConfig(**(BASE.model_dump() | changes))


def random_parameters(config, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, dtype=torch.float64, generator=generator) * 0.4 + name.endswith("norm.weight")
        for name, shape in parameter_shapes(config).items()
    }


def model_of(config, parameters):
    model = build_model(config).double()
    model.load_state_dict(parameters)
    return model


def logits(config, parameters):
    ids = torch.randint(0, config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(1))
    return model_of(config, parameters)(ids)


def grow(old, new, operator, parameters, **options):
    return dict(grow_transformer(old, new, operator, parameters.__getitem__, **options))


def assert_preserved(old, new, operator, seed, **options):
    parameters = random_parameters(old, seed)
    grown = grow(old, new, operator, parameters, seed=seed, **options)
    before, after = logits(old, parameters), logits(new, grown)
    assert before.std() > 0.1
    torch.testing.assert_close(after, before, rtol=0, atol=1e-10)


@few
@given(st.integers(1, 30), noises, seeds)
def test_net2net_of_the_ffn_alone_preserves_the_function(added, noise, seed):
    assert_preserved(BASE, sized(ffn_size=12 + added), "net2net", seed, noise=noise)


@few
@given(st.integers(2, 3), st.integers(0, 30), noises, seeds)
def test_net2net_of_width_and_ffn_preserves_the_function(factor, added, noise, seed):
    new = sized(hidden_size=16 * factor, num_heads=2 * factor, ffn_size=12 + added)
    assert_preserved(BASE, new, "net2net", seed, noise=noise)


@few
@given(st.integers(2, 4), noises, seeds)
def test_hypercloning_preserves_the_function_with_noise_and_without(factor, noise, seed):
    new = sized(hidden_size=16 * factor, num_heads=2 * factor, ffn_size=12 * factor)
    assert_preserved(BASE, new, "hypercloning", seed, noise=noise)


@few
@given(st.integers(1, 4).flatmap(lambda n: st.tuples(st.just(n), st.integers(n + 1, 2 * n))), seeds)
def test_identity_blocks_preserve_the_function_at_every_depth(depths, seed):
    assert_preserved(sized(num_layers=depths[0]), sized(num_layers=depths[1]), "identity-blocks", seed)


@pytest.mark.parametrize("operator", sorted(PRESERVING))
def test_a_model_that_has_grown_can_grow_again(operator):
    once = sized(**GROWN[operator])
    twice = sized(**{name: 2 * size for name, size in GROWN[operator].items()})
    parameters = random_parameters(BASE)
    grown = grow(once, twice, operator, grow(BASE, once, operator, parameters))
    torch.testing.assert_close(logits(twice, grown), logits(BASE, parameters), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("depth", "order"), [(3, "0 1 1z"), (4, "0 0z 1 1z")])
def test_identity_blocks_are_evenly_spread_copies_that_write_zeros(depth, order):
    parameters = random_parameters(BASE)
    grown = grow(BASE, sized(num_layers=depth), "identity-blocks", parameters)
    for i, source in enumerate(order.split()):
        for layer in ("attention_norm", "attention_input", "projection", "ffn_norm", "ffn_input", "ffn_output"):
            for kind in ("weight", "bias"):
                expected = parameters[f"blocks.{source[0]}.{layer}.{kind}"]
                if source.endswith("z") and layer in ("projection", "ffn_output"):
                    expected = torch.zeros_like(expected)
                assert torch.equal(grown[f"blocks.{i}.{layer}.{kind}"], expected)


@pytest.mark.parametrize("factor", [2, 3])
def test_stacking_repeats_the_whole_model_in_order_and_changes_the_function(factor):
    new, parameters = sized(num_layers=2 * factor), random_parameters(BASE)
    grown = grow(BASE, new, "stack", parameters)
    for name, value in grown.items():
        source = f"blocks.{int(name.split('.')[1]) % 2}.{name.split('.', 2)[2]}" if "blocks" in name else name
        assert torch.equal(value, parameters[source])
    assert (logits(new, grown) - logits(BASE, parameters)).abs().max() > 0.1


@pytest.mark.parametrize("operator", GROWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_growth_gives_every_parameter_in_order_with_its_shape_its_dtype_and_its_own_memory(operator, dtype):
    new = sized(**GROWN[operator])
    parameters = {name: value.to(dtype) for name, value in random_parameters(BASE).items()}
    grown = grow(BASE, new, operator, parameters, noise=0.1 if "hidden_size" in GROWN[operator] else 0.0)
    assert [(name, tuple(value.shape)) for name, value in grown.items()] == list(parameter_shapes(new).items())
    assert {value.dtype for value in grown.values()} == {dtype}
    storages = [value.data_ptr() for value in (*parameters.values(), *grown.values())]
    assert len(set(storages)) == len(storages)


@pytest.mark.parametrize("operator", GROWN)
def test_parameters_are_read_one_by_one_as_they_are_needed(operator):
    parameters, names = random_parameters(BASE), []

    def read(name):
        names.append(name)
        return parameters[name]

    growth = grow_transformer(BASE, sized(**GROWN[operator]), operator, read)
    assert names == []
    for done in range(1, 4):
        next(growth)
        assert len(names) == done


def ffn_sources(parameters, grown, block=0):
    """The old unit that each new FFN unit copies, recognised by its bias, which is unique."""
    name = f"blocks.{block}.ffn_input.bias"
    return (grown[name][:, None] == parameters[name]).long().argmax(1)


def test_net2net_keeps_every_ffn_unit_and_maps_new_ones_randomly_by_seed_and_block():
    new, parameters = sized(ffn_size=60), random_parameters(BASE)
    first, again, other = (grow(BASE, new, "net2net", parameters, seed=seed) for seed in (5, 5, 6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    mapping = ffn_sources(parameters, first)
    assert torch.equal(mapping[:12], torch.arange(12))
    assert torch.equal(first["blocks.0.ffn_input.weight"], parameters["blocks.0.ffn_input.weight"][mapping])
    assert len(mapping[12:24].unique()) < 12  # drawn with replacement, not a permutation
    assert not torch.equal(mapping, ffn_sources(parameters, other))
    assert not torch.equal(mapping, ffn_sources(parameters, first, block=1))


def test_noise_has_the_requested_size_and_depends_on_the_seed():
    new, parameters = sized(**GROWN["hypercloning"]), random_parameters(BASE)
    quiet = grow(BASE, new, "hypercloning", parameters)
    noisy, again, other = (grow(BASE, new, "hypercloning", parameters, seed=s, noise=0.2) for s in (1, 1, 2))
    for name, value in noisy.items():
        assert torch.equal(value, again[name])
        if value.ndim == 1 or name == "embedding.weight":
            assert torch.equal(value, quiet[name])
        else:
            assert ((value - quiet[name]).norm() / quiet[name].norm()).item() == pytest.approx(0.2, rel=0.1)
            assert not torch.equal(value, other[name])


@pytest.mark.parametrize("operator", ["net2net", "hypercloning"])
def test_inputs_with_one_copy_get_no_noise(operator):
    new = sized(ffn_size=14) if operator == "net2net" else sized(**GROWN[operator])
    parameters = random_parameters(BASE)
    quiet, noisy = (grow(BASE, new, operator, parameters, noise=noise) for noise in (0.0, 0.2))
    copied = ffn_sources(parameters, quiet).bincount()[ffn_sources(parameters, quiet)] > 1
    changed = (quiet["blocks.0.ffn_output.weight"] != noisy["blocks.0.ffn_output.weight"]).all(0)
    assert torch.equal(changed, copied)
    attention = torch.equal(quiet["blocks.0.attention_input.weight"], noisy["blocks.0.attention_input.weight"])
    assert attention is (operator == "net2net")


@pytest.mark.parametrize("operator", ["net2net", "hypercloning"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_copies_get_equal_gradients_without_noise_and_different_ones_with_it(operator, noise):
    new, parameters = sized(**GROWN[operator]), random_parameters(BASE)
    grown = grow(BASE, new, operator, parameters, noise=noise)
    model = model_of(new, grown)
    ids = torch.randint(0, 23, (2, 8), generator=torch.Generator().manual_seed(2))
    model(ids[:, :-1], ids[:, 1:]).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}

    def differ(name, first, second):
        return ((gradients[name][first] - gradients[name][second]).abs().amax(-1) > 1e-9).tolist()

    mapping = ffn_sources(parameters, grown)
    copies = torch.arange(12, new.ffn_size)
    assert set(differ("blocks.0.ffn_input.weight", copies, mapping[12:])) == {noise > 0}
    hidden = torch.arange(16)
    for part in range(3):  # queries, keys and values of the copied heads
        rows = hidden + 32 * part
        assert set(differ("blocks.1.attention_input.weight", rows, rows + 16)) == {noise > 0}
    assert set(differ("blocks.0.projection.weight", hidden, hidden + 16)) == {noise > 0}


WRONG_SIZES = [
    ("net2net", {}, "it can grow to hidden_size 16 and num_heads 2 times one integer, ffn_size 12 or more, one of"),
    ("net2net", {"ffn_size": 11}, "net2net cannot grow to .*, ffn_size 11; .* ffn_size 12 or more, one of them larger"),
    ("net2net", {"hidden_size": 24, "num_heads": 3}, "hidden_size 16 and num_heads 2 times one integer"),
    ("net2net", {"hidden_size": 32}, "cannot grow to hidden_size 32, num_heads 2, ffn_size 12"),
    ("net2net", {"hidden_size": 8, "num_heads": 1}, "cannot grow to hidden_size 8, num_heads 1"),
    ("net2net", {"ffn_size": 13, "num_layers": 3}, "num_layers is 3; .* only grows hidden_size, num_heads, ffn_size"),
    ("hypercloning", {}, "hidden_size 16, num_heads 2 and ffn_size 12 times one integer, 2 or more"),
    ("hypercloning", {"hidden_size": 32, "num_heads": 4}, "grow to .* ffn_size 12; .* times one integer"),
    ("hypercloning", {"hidden_size": 32, "num_heads": 2, "ffn_size": 24}, "cannot grow to .* num_heads 2"),
    ("hypercloning", {"hidden_size": 32, "num_heads": 4, "ffn_size": 36}, "cannot grow to .* ffn_size 36"),
    ("stack", {}, "stack cannot grow to num_layers 2; it can grow to num_layers 2 times an integer, 2 or more"),
    ("stack", {"num_layers": 5}, "cannot grow to num_layers 5"),
    ("stack", {"num_layers": 1}, "cannot grow to num_layers 1"),
    ("stack", {"num_layers": 4, "ffn_size": 24}, "ffn_size is 24; it must stay 12, because stack only grows num_lay"),
    ("identity-blocks", {}, "identity-blocks cannot grow to num_layers 2; it can grow to num_layers from 3 to 4"),
    ("identity-blocks", {"num_layers": 5}, "num_layers 5; it can grow to num_layers from 3 to 4"),
    ("identity-blocks", {"num_layers": 1}, "cannot grow to num_layers 1"),
]


NOTHING_TO_READ: dict[str, torch.Tensor] = {}


@pytest.mark.parametrize(("operator", "changes", "message"), WRONG_SIZES)
def test_sizes_that_an_operator_cannot_reach_are_rejected_before_anything_is_read(operator, changes, message):
    with pytest.raises(ValueError, match=message):
        check_transformer_growth(BASE, sized(**changes), operator)
    with pytest.raises(ValueError, match=message):
        grow_transformer(BASE, sized(**changes), operator, NOTHING_TO_READ.__getitem__)


@pytest.mark.parametrize("operator", GROWN)
@pytest.mark.parametrize(
    ("field", "value"),
    [("vocab_size", 24), ("rotary_fraction", 0.5), ("rotary_base", 500.0), ("norm_epsilon", 1e-6)],
)
def test_vocabulary_positions_and_epsilon_must_stay(operator, field, value):
    check_transformer_growth(BASE, sized(**GROWN[operator]), operator)
    with pytest.raises(ValueError, match=f"{field} is {value}; it must stay"):
        check_transformer_growth(BASE, sized(**GROWN[operator], **{field: value}), operator)


def test_unknown_operators_and_invalid_noise_are_rejected():
    with pytest.raises(
        ValueError, match="'widen' is unknown; it must be one of net2net, hypercloning, stack, identity"
    ):
        check_transformer_growth(BASE, sized(ffn_size=24), "widen")  # type: ignore[arg-type]
    for noise in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="must be 0 or more"):
            grow_transformer(BASE, sized(ffn_size=24), "net2net", NOTHING_TO_READ.__getitem__, noise=noise)
    for operator in ("stack", "identity-blocks"):
        with pytest.raises(ValueError, match=f"it must be 0 for {operator}, which copies whole blocks"):
            grow_transformer(BASE, sized(num_layers=4), operator, NOTHING_TO_READ.__getitem__, noise=0.1)


def test_sizes_are_checked_without_torch():
    script = "import sys, model.transformer_sizes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
