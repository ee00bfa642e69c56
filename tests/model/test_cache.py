"""The logits of a sequence read in pieces, in rows of unequal length, are those of the sequence alone, and so are those
of a document wherever it lies.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.decoder_config import DecoderConfig
from model.documents import document_starts
from model.initialization import build_model
from tests.model.growths import SCORE_FUNCTIONS, built, histories, small_config, small_decoder

VOCAB_SIZE, END = 29, 3
WINDOWS: list[dict[str, int | None]] = [
    {},
    {"attention_window": 1},
    {"attention_window": 4},
    {"attention_window": 2, "full_attention_every": 2},
]

in_both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@st.composite
def models(draw, document_end_ids: tuple[int | None, ...] = (None, END)):
    """A random float64 model of either family; a Tokenformer may have any score function, a growth, or no layers.

    It may attend within documents, and to a window in some or all layers.
    """
    seed, end = draw(st.integers(0, 100)), {"document_end_id": draw(st.sampled_from(document_end_ids))}
    end |= draw(st.sampled_from(WINDOWS))
    family = draw(st.sampled_from(["no layers", "transformer", "transformer", "grown", "grown"]))
    if family == "grown":
        grown = built(draw(histories(draw(st.sampled_from(SCORE_FUNCTIONS)), max_growths=1)), seed)
        return grown._replace(config=grown.config.model_copy(update=end)).model()
    config = transformer(**end) if family == "transformer" else small_config(num_layers=0, **end)
    return build_model(config, seed=seed).double()


def transformer(**changes: int | None) -> DecoderConfig:
    return small_decoder(**{"hidden_size": 16, "num_heads": 2, "document_end_id": END} | changes)


def random_ids(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random tokens; every third or so ends a document."""
    ids = torch.randint(0, VOCAB_SIZE, (rows, length), generator=torch.Generator().manual_seed(seed))
    return ids.where(ids % 3 > 0, END)


def documents(lengths: list[int], seed: int = 0) -> torch.Tensor:
    """Documents of these lengths, each with its end of text, one after the other."""
    ids = torch.randint(END + 1, VOCAB_SIZE, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    ids[torch.tensor(lengths).cumsum(0) - 1] = END
    return ids


def assert_close(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.slow
@settings(max_examples=25)
@given(models(), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_sequence_read_in_pieces_has_the_logits_of_the_sequence_read_at_once(model, pieces):
    ids = random_ids(2, sum(pieces))
    cache = model.new_cache(2, sum(pieces))
    logits = torch.cat([model(piece, cache=cache) for piece in ids.split(pieces, dim=1)], dim=1)
    assert_close(logits, model(ids).detach())


@settings(max_examples=25)
@given(models(), st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 3), st.sampled_from([END, 7]))
def test_a_row_padded_on_the_left_has_the_logits_of_the_row_alone(model, lengths, num_later, padding):
    rows = [random_ids(1, length + num_later, seed)[0] for seed, length in enumerate(lengths)]
    starts = [max(lengths) - length for length in lengths]
    padded = torch.stack([torch.cat((torch.full((n,), padding), row)) for n, row in zip(starts, rows, strict=True)])
    cache = model.new_cache(len(rows), padded.shape[1], torch.tensor(starts))
    pieces = padded.split([max(lengths), *[1] * num_later], dim=1)
    logits = torch.cat([model(piece, cache=cache) for piece in pieces], dim=1)
    for row, start, found in zip(rows, starts, logits, strict=True):
        assert_close(found[start:], model(row[None])[0].detach())


@in_both_precisions
def test_the_first_forward_pass_with_a_cache_computes_the_bits_of_one_without(dtype):
    model = build_model(small_config(num_heads=2, rotary_fraction=0.5), seed=0).to(dtype)
    ids = random_ids(2, 9)
    with torch.no_grad():
        assert torch.equal(model(ids, cache=model.new_cache(2, 12)), model(ids))


def test_the_last_logits_alone_are_those_of_the_last_positions():
    model, ids = build_model(small_config(), seed=0).double(), random_ids(2, 6)
    for cache in (None, model.new_cache(2, 6)):
        assert_close(model(ids, cache=cache, logits_to_keep=2).detach(), model(ids)[:, -2:].detach())


def test_a_cache_never_changes_its_shape_needs_no_gradients_and_rejects_more_positions_than_it_holds():
    model = build_model(small_config(), seed=0)
    cache = model.new_cache(2, 5)
    address = cache.keys_LBKCE.data_ptr()
    assert not model(random_ids(2, 3), cache=cache).requires_grad
    model(random_ids(2, 1), cache=cache)
    with pytest.raises(ValueError, match="the cache holds 5 positions; 4 \\+ 2 do not fit"):
        model(random_ids(2, 2), cache=cache)
    assert cache.length == 4
    assert (cache.keys_LBKCE.shape, cache.keys_LBKCE.data_ptr()) == ((2, 2, 1, 5, 8), address)


@settings(max_examples=20)
@given(
    models((END,)),
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 12),
)
def test_in_a_batch_of_documents_each_has_the_logits_that_it_has_alone(model, rows, length):
    rows = [[*lengths, 20] for lengths in rows]
    ids_BT = torch.stack([documents(lengths, seed)[:length] for seed, lengths in enumerate(rows)])
    for lengths, ids_T, logits_TV in zip(rows, ids_BT, model(ids_BT), strict=True):
        bounds = [0, *torch.tensor(lengths).cumsum(0).clamp_max(length).unique().tolist()]
        alone = torch.cat([model(ids_T[None, start:stop])[0] for start, stop in pairwise(bounds)])
        assert_close(logits_TV, alone)


@pytest.mark.parametrize("ended", [False, True], ids=["in-a-document", "after-a-document"])
def test_rows_that_begin_with_the_cache_of_one_prompt_go_on_in_its_document(ended):
    model = build_model(transformer(), seed=1).double()
    prompt, later = documents([3, 4])[: None if ended else -1], documents([2, 3], seed=5)
    row = model.new_cache(1, len(prompt))
    model(prompt[None], cache=row)
    cache = model.new_cache(2, len(prompt) + len(later))
    cache.begin_with(row)
    found = torch.cat([model(ids.expand(2, 1), cache=cache) for ids in later.split(1)], dim=1)
    assert_close(found, model(torch.cat((prompt, later))[None])[:, len(prompt) :].detach().expand(2, -1, -1))


@in_both_precisions
@pytest.mark.parametrize("config", [transformer(), small_config(document_end_id=END)], ids=lambda config: config.family)
def test_in_training_precisions_a_batch_of_documents_has_their_loss_and_gradients_alone(config, dtype):
    model = build_model(config, seed=1).to(dtype)
    ids = torch.stack([documents([3, 5]), documents([8], seed=1)])
    targets = ids.roll(-1, dims=1)
    places = [(0, slice(0, 3)), (0, slice(3, 8)), (1, slice(0, 8))]
    sums = [model(ids[row, part][None], targets[row, part][None]) * ids[row, part].numel() for row, part in places]
    losses = model(ids, targets), torch.stack(sums).sum() / 16
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(*losses, rtol=tolerance, atol=0)
    gradients = (torch.autograd.grad(loss, list(model.parameters())) for loss in losses)
    for found, expected in zip(*gradients, strict=True):
        assert_close(found, expected, 5 * tolerance * max(expected.abs().max().item(), 1e-3))


def test_a_window_that_begins_inside_a_document_belongs_to_it_until_its_end():
    ids = torch.tensor([[5, 6, END, 7, END, END, 8], [END, 5, 6, 7, 8, 9, END]])
    assert document_starts(ids, END).tolist() == [[0, 0, 0, 3, 3, 5, 6], [0, 1, 1, 1, 1, 1, 1]]


def test_positions_begin_anew_after_an_end_of_text_and_after_padding():
    cache = build_model(transformer(), seed=0).new_cache(2, 8, torch.tensor([2, 0]))
    first, later = torch.tensor([[END, END, 5, END, 6], [5, 6, 7, END, END]]), torch.tensor([[7, 8], [9, END]])
    assert cache.positions(first)[:, 0, 2:].tolist() == [[0, 1, 0], [2, 3, 0]]
    cache.advance(5)
    assert cache.positions(later)[:, 0].tolist() == [[1, 2], [0, 1]]


def test_without_an_end_of_text_in_it_a_text_has_the_logits_of_a_model_without_a_mask():
    ids = documents([9])
    masked, plain = (build_model(small_config(document_end_id=end), seed=4).double()(ids[None]) for end in (END, None))
    assert_close(masked, plain)
