"""Data tokens that read only the parameter tokens with the largest factors.

Shapes: B batch, T sequence, D model width, N parameter tokens, n those of one norm.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.errors import UserError
from model.flops import forward_flops_per_token
from model.initialization import build_model
from model.pattention import Pattention, joined, token_factors
from model.tokenformer import reading_top
from model.tokenformer_config import PATTENTIONS
from model.top_tokens import TopTokens, require_tokens, share_and_flops_read
from tests.model.growths import IDS, SCORE_FUNCTIONS, built, formula, histories, small_config, small_decoder
from tests.model.test_pattention import ALL_KINDS, all_kinds

any_history = st.sampled_from(SCORE_FUNCTIONS).flatmap(lambda function: histories(function, max_growths=2))
norms = st.sampled_from(["all", "chosen"])


@settings(max_examples=25)
@given(any_history, norms, st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_reading_all_tokens_gives_the_bits_of_a_dense_model(history, norm, dtype):
    model = built(history).model(dtype)
    with torch.no_grad():
        dense = model(IDS)
    for kinds in (PATTENTIONS, ("ffn",)):
        with reading_top(model, TopTokens(amount=1.0, norm=norm), kinds):
            assert torch.equal(model(IDS), dense)


def written_out(layer: Pattention, x_BTD: Tensor, num_read: int, norm: str) -> Tensor:
    """The published formula for each data token alone, of the tokens that it chooses by a plain sort."""
    out_BTD = torch.zeros_like(x_BTD)
    groups = layer.token_groups()
    for place in torch.cartesian_prod(*map(torch.arange, x_BTD.shape[:2])).tolist():
        x_1D = x_BTD[place[0], place[1]][None]
        factors = [token_factors(x_1D, group, layer.score_function)[0] for group in groups]
        least = torch.cat(factors).abs().sort(descending=True).values[num_read - 1]
        for group, factor_n in zip(groups, factors, strict=True):
            is_read_n = factor_n.abs() >= least
            key_nD, value_nD = joined(group.keys, group.key_ramps), joined(group.values, group.value_shares)
            if norm == "all":
                out_BTD[*place] += factor_n[is_read_n] @ value_nD[is_read_n]
            elif is_read_n.any():
                out_BTD[*place] += formula(
                    x_1D, key_nD[is_read_n], value_nD[is_read_n], group.tau, layer.score_function
                )[0]
    return out_BTD


@settings(max_examples=30)
@given(st.sampled_from(SCORE_FUNCTIONS), norms, st.integers(1, ALL_KINDS.num_tokens))
def test_each_data_token_reads_those_with_the_largest_factors_over_all_norms_of_a_pattention(function, norm, num_read):
    layer, x_BTD = all_kinds(function, torch.float64)
    layer.top = TopTokens(amount=num_read, norm=norm)
    with torch.no_grad():
        torch.testing.assert_close(layer(x_BTD), written_out(layer, x_BTD, num_read, norm), rtol=1e-12, atol=1e-12)


def test_only_the_kinds_that_are_named_leave_tokens_out_and_all_read_everything_afterwards():
    model = build_model(small_config(), seed=0)
    with reading_top(model, TopTokens(amount=0.5), ("key", "ffn")):
        assert [name for name in PATTENTIONS if getattr(model.blocks["1"], name).top] == ["key", "ffn"]
        assert not model(IDS).requires_grad
    with reading_top(model, TopTokens(amount=0.5), ("key",), layer=0):
        assert [block.key.top is None for block in model.blocks.values()] == [False, True]
    assert not any(getattr(block, name).top for block in model.blocks.values() for name in PATTENTIONS)
    assert model(IDS).requires_grad


@given(st.integers(1, 4))
def test_flops_are_those_of_all_keys_and_of_the_values_that_are_read(num_read):
    full, small = (small_config(attention_tokens=n, ffn_tokens=n) for n in (4, num_read))
    expected = sum(forward_flops_per_token(config, 9).total for config in (full, small)) / 2
    for amount in (num_read, num_read / 4):
        assert share_and_flops_read(full, TopTokens(amount=amount), PATTENTIONS, 9) == (num_read / 4, expected)
    by_layer = [share_and_flops_read(full, TopTokens(amount=num_read), PATTENTIONS, 9, layer) for layer in (0, 1)]
    assert by_layer == [(num_read / 4, (expected + forward_flops_per_token(full, 9).total) / 2)] * 2
    share, flops = share_and_flops_read(full, TopTokens(amount=num_read), ("ffn",), 9)
    dense = forward_flops_per_token(full, 9).total
    assert (share, dense - flops) == (num_read / 4, (dense - expected) / 5)


def test_a_decoder_and_more_tokens_than_there_are_are_refused():
    require_tokens(small_config(), [TopTokens(amount=4), TopTokens(amount=0.01)])
    with pytest.raises(UserError, match="a decoder has no parameter tokens"):
        require_tokens(small_decoder(), [TopTokens(amount=0.5)])
    with pytest.raises(UserError, match=r"top-k tokens = 5: of each query Pattention, only 4 are read; give fewer"):
        require_tokens(small_config(), [TopTokens(amount=5)])
