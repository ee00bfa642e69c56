"""A layer with a window attends to exactly the last positions of the document, in training and with a cache.

tests/model/test_cache.py has models with windows too.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention

from model import documents
from model.config_growth import grow_config
from model.flops import Flops, forward_flops_per_token, training_flops_per_token
from model.initialization import build_model
from model.language_model import LanguageModel
from model.policy import GrowthPolicy
from model.shapes import ModelConfig
from tests.model.growths import small_config, small_decoder
from tests.model.test_cache import END, random_ids

FAMILIES: tuple[ModelConfig, ...] = (
    small_config(num_layers=3, num_heads=2, rotary_fraction=0.5),
    small_decoder(num_layers=3, num_heads=2, num_kv_heads=1, rotary_fraction=0.5),
)
LENGTH = 9
IDS = random_ids(2, LENGTH)


def with_window(config: ModelConfig, window: int | None, every: int | None = None, **changes: Any) -> ModelConfig:
    return config.model_copy(update={"attention_window": window, "full_attention_every": every, **changes})


configs = st.builds(
    with_window,
    st.sampled_from(FAMILIES),
    st.integers(1, LENGTH + 2),
    st.sampled_from([None, 2, 3]),
    document_end_id=st.sampled_from([None, END]),
)


@settings(max_examples=25)
@given(configs)
def test_the_logits_and_gradients_at_a_position_depend_on_all_that_its_layers_see_and_on_nothing_else(config):
    """What each layer sees is written out here, and what the model sees is the product over its layers."""
    model, states = build_model(config, seed=1).double(), list[torch.Tensor]()
    model.embedding.register_forward_hook(lambda *args: states.append(args[2]))
    logits_BTV = model(IDS)
    document_BT = torch.cat((IDS.new_zeros(2, 1), (IDS == END).cumsum(1)[:, :-1]), dim=1)
    if config.document_end_id is None:
        document_BT.zero_()
    sees_BTT = torch.eye(LENGTH).bool().expand(2, -1, -1)
    for layer in range(3):
        is_full = config.full_attention_every and layer % config.full_attention_every == config.full_attention_every - 1
        window = LENGTH if is_full else config.attention_window
        own = [
            [[s <= t < s + window and d[s] == d[t] for s in range(LENGTH)] for t in range(LENGTH)] for d in document_BT
        ]
        sees_BTT = (torch.tensor(own).double() @ sees_BTT.double()) > 0
    for t in range(LENGTH):
        (grad_BTD,) = torch.autograd.grad(logits_BTV[:, t].square().sum(), states, retain_graph=True)
        assert torch.equal(grad_BTD.abs().sum(-1) > 0, sees_BTT[:, t])


@settings(max_examples=15)
@given(configs, st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_window_of_the_context_or_more_gives_the_bits_of_full_attention(config, dtype):
    narrow, full = with_window(config, LENGTH), with_window(config, None)
    found = []
    for each in (narrow, full):
        model = build_model(each, seed=2).to(dtype)
        loss = model(IDS, IDS.roll(-1, 1))
        cache = model.new_cache(2, LENGTH)
        pieces = torch.cat([model(piece, cache=cache) for piece in IDS.split([4, 1, 4], dim=1)], dim=1)
        found.append([model(IDS), loss, pieces, *torch.autograd.grad(loss, list(model.parameters()))])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.family)
def test_float64_gradients_through_a_window_are_those_of_finite_differences(config):
    model = build_model(with_window(config, 3, 2, document_end_id=END), seed=3).double()
    parameters = dict(model.named_parameters())

    def loss(*values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, dict(zip(parameters, values, strict=True)), (IDS, IDS.roll(-1, 1)))

    assert torch.autograd.gradcheck(loss, tuple(parameters.values()), fast_mode=True)


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.family)
@pytest.mark.parametrize(("window", "end_id"), [(None, END), (100, None), (40, END)])
def test_attention_in_blocks_gives_the_logits_and_gradients_of_the_mask(monkeypatch, config, window, end_id):
    """Without the compiler, and with the check disabled by which FlexAttention refuses gradients on CPUs."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr(documents, "_compiled", lambda name: getattr(flex_attention, name))
    config = with_window(config, window, 2 if window else None, document_end_id=end_id, head_width=16)
    model, ids, found = build_model(config, seed=4).double(), random_ids(2, 384), []
    for in_blocks in (False, True):
        if in_blocks:
            monkeypatch.setattr(LanguageModel, "_mask", _mask_of_blocks)
        loss = model(ids, ids.roll(-1, 1))
        found.append([model(ids), *torch.autograd.grad(loss, list(model.parameters()))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-10)


def _mask_of_blocks(_model, start_BT, window, like):
    mask = documents.block_mask(start_BT.expand(len(like), -1), window)
    assert mask.sparsity() > 0, "blocks of 128 x 128 in which no query sees a key are left out"
    return mask


class OnGpu:
    """What the choice of a mask asks a tensor of a GPU."""

    is_cuda, is_cpu, dtype = True, False, torch.bfloat16

    def __len__(self):
        return 2


@pytest.mark.parametrize(("kernels", "width", "in_blocks"), [("eager", 16, 0), ("compiled", 16, 1), ("triton", 8, 0)])
def test_a_gpu_computes_masks_in_blocks_with_kernels_but_eager_and_wide_heads(monkeypatch, kernels, width, in_blocks):
    monkeypatch.setattr("model.language_model.block_mask", lambda start_BT, window: (start_BT.shape, window))
    model = build_model(with_window(FAMILIES[0], 3, head_width=width), seed=0)
    model.kernels = kernels
    like: Any = OnGpu()
    mask: Any = model._mask(torch.zeros(1, LENGTH), 3, like)
    assert mask == ((2, LENGTH), 3) if in_blocks else mask.shape == (1, 1, LENGTH, LENGTH)


def test_a_new_position_reads_no_more_of_the_cache_than_the_window():
    model = build_model(with_window(FAMILIES[0], 3, 2), seed=0)
    cache = model.new_cache(2, LENGTH)
    model(IDS[:, :6], cache=cache)
    new_BKTE = cache.keys_LBKCE[0, :, :, :1]
    read = [layer.append(new_BKTE, new_BKTE)[0].shape[2] for layer in cache.layers(1)]
    assert read == [3, 7, 3]
    assert all(layer.mask_BHTC is None for layer in cache.layers(1))


def test_flops_count_the_window_in_its_layers_and_full_attention_in_the_others():
    plain, windowed = FAMILIES[0], with_window(FAMILIES[0], 4, 2)
    whole, short = (forward_flops_per_token(plain, length) for length in (10, 4))
    expected = Flops(whole.parameters, (whole.attention + 2 * short.attention) / 3, whole.head)
    assert forward_flops_per_token(windowed, 10) == expected
    assert training_flops_per_token(windowed, 10) == 3 * expected
    assert forward_flops_per_token(windowed, 4) == short


def test_growth_in_depth_gives_each_old_layer_the_attention_that_it_had():
    old = with_window(small_config(num_layers=4), 3, 2)
    new = grow_config(old, new_layers=3, attention_tokens=0, ffn_tokens=0, policy=GrowthPolicy(depth="interleave"))
    before, after = (dict(zip(config.block_ids, config.windows(9), strict=True)) for config in (old, new))
    assert before == {0: 3, 1: None, 2: 3, 3: None} == {block_id: after[block_id] for block_id in before}
    assert list(new.block_ids) != sorted(new.block_ids)


def test_a_model_without_a_window_has_no_word_of_it_in_its_configuration():
    assert not {"attention_window", "full_attention_every"} & small_config().model_dump().keys()
