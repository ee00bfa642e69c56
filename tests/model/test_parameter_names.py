"""Parameter names parse back to what built them, and no other name counts as a parameter token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.config import PATTENTIONS
from model.parameter_names import TOKEN_KINDS, TokensName, generation_of, in_block, split_block

NUMBERS = st.integers(0, 10**6)


@given(st.builds(TokensName, NUMBERS, st.sampled_from(PATTENTIONS), st.sampled_from(TOKEN_KINDS), NUMBERS))
def test_a_name_of_parameter_tokens_says_what_it_was_built_from(tokens):
    assert TokensName.parse(str(tokens)) == tokens
    assert generation_of(str(tokens)) == tokens.generation
    assert split_block(str(tokens)) == (tokens.block, str(tokens).removeprefix(in_block(tokens.block, "")))


@pytest.mark.parametrize(
    "name",
    [
        *("embedding.weight", "final_norm.weight", "blocks.3.ffn_input.weight"),
        *("blocks.3.query.key_tokens", "query.key_tokens.1", "blocks.0.query.key_tokens.1.more"),
    ],
)
def test_other_parameters_are_no_parameter_tokens_and_of_generation_0(name):
    assert TokensName.parse(name) is None
    assert generation_of(name) == 0
