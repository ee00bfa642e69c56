"""Attention within documents: a document has the logits that it has alone, wherever it lies and whoever reads it."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.documents import document_starts
from model.initialization import build_model
from model.policy import grow_config
from tests.model.growths import small_config
from tests.model.test_cache import END, VOCAB_SIZE, models, transformer


def text(lengths: list[int], seed: int = 0) -> torch.Tensor:
    """Documents of these lengths, each with its end of text, one after the other."""
    ids = torch.randint(END + 1, VOCAB_SIZE, (sum(lengths),), generator=torch.Generator().manual_seed(seed))
    ids[torch.tensor(lengths).cumsum(0) - 1] = END
    return ids


lengths_of_documents = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@settings(deadline=None, max_examples=20)
@given(models((END,)), st.lists(lengths_of_documents, min_size=1, max_size=3), st.integers(1, 12))
def test_in_a_batch_of_documents_each_has_the_logits_that_it_has_alone(model, rows, length):
    rows = [[*lengths, 20] for lengths in rows]
    ids_BT = torch.stack([text(lengths, seed)[:length] for seed, lengths in enumerate(rows)])
    logits_BTV = model(ids_BT)
    for lengths, ids_T, logits_TV in zip(rows, ids_BT, logits_BTV, strict=True):
        bounds = [0, *torch.tensor(lengths).cumsum(0).clamp_max(length).unique().tolist()]
        alone = torch.cat([model(ids_T[None, start:stop])[0] for start, stop in pairwise(bounds)])
        torch.testing.assert_close(logits_TV, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ended", [False, True], ids=["in-a-document", "after-a-document"])
def test_rows_that_begin_with_the_cache_of_one_prompt_go_on_in_its_document(ended):
    model, prompt, later = build_model(transformer(), seed=1).double(), text([3, 4]), text([2, 3], seed=5)
    prompt = prompt if ended else prompt[:-1]
    row = model.new_cache(1, len(prompt))
    model(prompt[None], cache=row)
    cache = model.new_cache(2, len(prompt) + len(later))
    cache.begin_with(row)
    found = torch.cat([model(ids.expand(2, 1), cache=cache) for ids in later.split(1)], dim=1)
    expected = model(torch.cat((prompt, later))[None])[:, len(prompt) :].detach().expand(2, -1, -1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=20)
@given(models((END,)))
def test_no_gradient_flows_from_one_document_to_another(model):
    ids = text([4, 5, 3])
    vectors = []
    model.embedding.register_forward_hook(lambda _, inputs, x_BTD: (vectors.append(x_BTD), x_BTD.retain_grad())[1])
    model.requires_grad_(True)
    model(ids[None])[0, 4:9].square().sum().backward()
    reached = vectors[0].grad[0].abs().sum(dim=-1) > 0
    assert reached.tolist() == [False] * 4 + [True] * 5 + [False] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "config", [small_config(document_end_id=END), transformer()], ids=["tokenformer", "transformer"]
)
def test_in_training_precisions_a_batch_of_documents_has_their_loss_and_gradients_alone(config, dtype):
    model = build_model(config, seed=1).to(dtype)
    rows = [text([3, 5]), text([8], seed=1)]
    targets = torch.stack(rows).roll(-1, dims=1)
    together = model(torch.stack(rows), targets)
    documents = [*rows[0].split([3, 5]), rows[1]]
    wanted = [*targets[0].split([3, 5]), targets[1]]
    sums = [model(ids[None], next[None]) * len(ids) for ids, next in zip(documents, wanted, strict=True)]
    alone = torch.stack(sums).sum() / 16
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(together, alone, rtol=tolerance, atol=0)
    parameters = list(model.parameters())
    for found, expected in zip(
        torch.autograd.grad(together, parameters), torch.autograd.grad(alone, parameters), strict=True
    ):
        largest = max(expected.abs().max().item(), 1e-3)
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * 5 * largest)


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
    config, ids = small_config(document_end_id=END), text([9])
    plain = config.model_copy(update={"document_end_id": None})
    masked, unmasked = (build_model(each, seed=4).double()(ids[None]) for each in (config, plain))
    torch.testing.assert_close(masked, unmasked, rtol=0, atol=1e-12)


def test_a_grown_model_attends_as_the_model_that_it_grew_from():
    grown = grow_config(small_config(document_end_id=END), attention_tokens=2, ffn_tokens=3)
    assert grown.document_end_id == END
