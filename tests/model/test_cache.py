"""The KV cache: the logits of a sequence read in pieces, in rows of unequal length, are those of the sequence alone."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import TransformerConfig
from model.initialization import build_model
from tests.model.growths import SCORE_FUNCTIONS, built, histories, small_config

VOCAB_SIZE, END = 29, 3


@st.composite
def models(draw, document_end_ids: tuple[int | None, ...] = (None, END)):
    """A random float64 model of either family; a Tokenformer may have any score function, a growth, or no layers.

    It may attend within documents.
    """
    seed, end = draw(st.integers(0, 100)), {"document_end_id": draw(st.sampled_from(document_end_ids))}
    if draw(st.integers(0, 9)) == 9:
        return build_model(small_config(num_layers=0, **end), seed=seed).double()
    if draw(st.booleans()):
        grown = built(draw(histories(draw(st.sampled_from(SCORE_FUNCTIONS)), max_growths=1)), seed)
        return grown._replace(config=grown.config.model_copy(update=end)).model()
    return build_model(transformer(**end), seed=seed).double()


def transformer(document_end_id: int | None = END) -> TransformerConfig:
    shape: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_size": 16, "num_heads": 2}
    return TransformerConfig(num_layers=2, ffn_size=16, document_end_id=document_end_id, **shape)


def random_ids(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random tokens; every third or so ends a document."""
    ids = torch.randint(0, VOCAB_SIZE, (rows, length), generator=torch.Generator().manual_seed(seed))
    return ids.where(ids % 3 > 0, END)


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(models(), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_sequence_read_in_pieces_has_the_logits_of_the_sequence_read_at_once(model, pieces):
    ids = random_ids(2, sum(pieces))
    cache = model.new_cache(2, sum(pieces))
    logits = torch.cat([model(piece, cache=cache) for piece in ids.split(pieces, dim=1)], dim=1)
    assert_close(logits, model(ids).detach())


@settings(deadline=None, max_examples=40)
@given(models(), st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 3), st.data())
def test_a_row_padded_on_the_left_has_the_logits_of_the_row_alone(model, lengths, num_later, data):
    rows = [random_ids(1, length + num_later, seed)[0] for seed, length in enumerate(lengths)]
    starts = [max(lengths) - length for length in lengths]
    padding = data.draw(st.sampled_from([END, 7]))
    padded = torch.stack([torch.cat((torch.full((n,), padding), row)) for n, row in zip(starts, rows, strict=True)])
    cache = model.new_cache(len(rows), padded.shape[1], torch.tensor(starts))
    read, later = padded.split([max(lengths), num_later], dim=1)
    logits = torch.cat([model(piece, cache=cache) for piece in (read, *later.split(1, dim=1)) if piece.numel()], dim=1)
    for row, start, found in zip(rows, starts, logits, strict=True):
        assert_close(found[start:], model(row[None])[0].detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_forward_pass_with_a_cache_computes_the_bits_of_one_without(dtype):
    model = build_model(small_config(num_heads=2, rotary_fraction=0.5), seed=0).to(dtype)
    ids = random_ids(2, 9)
    with torch.no_grad():
        assert torch.equal(model(ids, cache=model.new_cache(2, 12)), model(ids))


def test_the_last_logits_alone_are_those_of_the_last_positions():
    model = build_model(small_config(), seed=0).double()
    ids = random_ids(2, 6)
    assert_close(model(ids, logits_to_keep=2), model(ids)[:, -2:])
    assert_close(model(ids, cache=model.new_cache(2, 6), logits_to_keep=1), model(ids)[:, -1:].detach())


def test_a_full_cache_rejects_more_positions_and_stays_as_it_was():
    model = build_model(small_config(), seed=0)
    cache = model.new_cache(1, 4)
    model(random_ids(1, 3), cache=cache)
    with pytest.raises(ValueError, match="the cache holds 4 positions; 3 \\+ 2 do not fit"):
        model(random_ids(1, 2), cache=cache)
    assert cache.length == 3


def test_the_cache_never_changes_its_shape_and_needs_no_gradients():
    model = build_model(small_config(), seed=0)
    cache = model.new_cache(2, 5)
    shape, address = cache.keys_LBHCE.shape, cache.keys_LBHCE.data_ptr()
    logits = model(random_ids(2, 3), cache=cache)
    logits = model(random_ids(2, 1), cache=cache)
    assert (cache.keys_LBHCE.shape, cache.keys_LBHCE.data_ptr()) == (shape, address)
    assert shape == (2, 2, 1, 5, 8)
    assert not logits.requires_grad
