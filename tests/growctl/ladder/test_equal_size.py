"""The decoder control comes as close to the Tokenformer's size as its shapes allow."""

import math
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from growctl.ladder.controls import CLOSE, equal_size_decoder
from model.config import TokenformerConfig, tokenformer_config
from model.shapes import num_parameters


def tokenformer(
    num_layers: int, num_heads: int, head_width: int, attention_tokens: int, ffn_tokens: int, vocab_size: int = 1000
) -> TokenformerConfig:
    width: dict[str, Any] = {"hidden_size": num_heads * head_width, "num_heads": num_heads}
    tokens: dict[str, Any] = {"attention_tokens": attention_tokens, "ffn_tokens": ffn_tokens}
    return tokenformer_config(num_layers=num_layers, vocab_size=vocab_size, **width, **tokens)


def miss(model: TokenformerConfig) -> float:
    return abs(math.log(num_parameters(equal_size_decoder(model)) / num_parameters(model)))


@settings(max_examples=60)
@given(st.integers(2, 24), st.integers(2, 12), st.sampled_from([16, 32, 64]), st.floats(0.5, 10.0))
def test_a_tokenformer_with_as_many_tokens_as_its_width_gets_the_usual_decoder(
    num_layers: int, num_heads: int, head_width: int, factor: float
) -> None:
    tokens = math.ceil(num_heads * head_width * factor)
    model = tokenformer(num_layers, num_heads, head_width, tokens, 4 * tokens)
    found = equal_size_decoder(model)
    assert miss(model) <= CLOSE
    assert (found.head_width, found.vocab_size) == (head_width, 1000)
    assert found.hidden_size <= found.ffn_tokens <= 8 * found.hidden_size
    assert 0.25 < (found.hidden_size / found.num_layers) / (model.hidden_size / model.num_layers) < 4


LAYERS, HEADS, WIDTHS = st.integers(1, 24), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([16, 64, 128])


@settings(max_examples=60)
@given(LAYERS, HEADS, WIDTHS, st.floats(0.25, 30.0), st.sampled_from([1, 2, 4, 8]), st.sampled_from([300, 4096]))
@example(24, 1, 128, 0.07, 1, 300)
@example(8, 1, 128, 0.2578, 1, 300)
@example(12, 1, 32, 7.28, 2, 50304)
@example(1, 1, 16, 250.0, 4, 300)
def test_the_decoder_is_within_5_percent_of_any_tokenformer(
    num_layers: int, num_heads: int, head_width: int, factor: float, ffn_ratio: int, vocab_size: int
) -> None:
    tokens = math.ceil(num_heads * head_width * factor)
    assert miss(tokenformer(num_layers, num_heads, head_width, tokens, ffn_ratio * tokens, vocab_size)) < 0.05
