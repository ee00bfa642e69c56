"""The fused output head and loss match the reference, in one slice of the batch and in several."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model import memory
from model.loss import IGNORED, linear_cross_entropy, token_scores

M, D, V = 11, 6, 9


def inputs(dtype: torch.dtype, ignored: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and targets; the first `ignored` targets do not count."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, D, generator=generator, dtype=torch.float64).to(dtype) for n in (M, V))
    targets = torch.randint(V, (M,), generator=generator)
    targets[:ignored] = IGNORED
    return x.requires_grad_(), weight.requires_grad_(), targets


def written_out(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The same from PyTorch's own cross-entropy, with all logits at once."""
    logits = F.linear(x, weight)
    return F.cross_entropy(logits if logits.dtype.itemsize >= 4 else logits.float(), targets)


@pytest.fixture(params=[1, 4, M, 100], ids=lambda count: f"{count}-at-once")
def shapes(request, monkeypatch) -> list[tuple[int, ...]]:
    """Limits the data tokens whose logits exist at a time, and collects the shapes of the logits."""
    monkeypatch.setattr(memory, "LOGITS_AT_ONCE", request.param * V)
    seen, log_softmax = list[tuple[int, ...]](), torch.log_softmax
    monkeypatch.setattr(torch, "log_softmax", lambda x, dim: seen.append(tuple(x.shape)) or log_softmax(x, dim))
    return seen


@pytest.mark.parametrize("ignored", [0, 2])
def test_loss_and_gradients_are_the_written_out_ones_also_a_second_time(shapes, ignored):
    x, weight, targets = inputs(torch.float64, ignored)
    loss, wanted = linear_cross_entropy(x, weight, targets), written_out(x, weight, targets)
    torch.testing.assert_close(loss, wanted, rtol=1e-13, atol=0)
    first, again = (torch.autograd.grad(3 * loss, (x, weight), retain_graph=True) for _ in range(2))
    expected = torch.autograd.grad(3 * wanted, (x, weight))
    torch.testing.assert_close(first, expected, rtol=1e-12, atol=1e-15)
    assert all(map(torch.equal, first, again))
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(x, weight, targets), loss)
    scores, logits = token_scores(x, weight, targets), F.linear(x, weight)
    torch.testing.assert_close(scores.loss_M, F.cross_entropy(logits, targets, reduction="none"))
    assert torch.equal(scores.is_likeliest_M, logits.argmax(dim=-1) == targets)
    at_once = memory.LOGITS_AT_ONCE // V
    assert shapes == 3 * [(min(at_once, M - start), V) for start in range(0, M, at_once)]


def test_half_precision_is_as_accurate_as_the_written_out_form(shapes):
    x, weight, targets = inputs(torch.bfloat16)
    wanted = torch.autograd.grad(written_out(x.double(), weight.double(), targets), (x, weight))
    errors = []
    for form in (linear_cross_entropy, written_out):
        loss = form(x, weight, targets)
        assert loss.dtype == torch.float32
        found = torch.autograd.grad(loss, (x, weight))
        errors.append(sum(float((a.double() - b.double()).norm()) for a, b in zip(found, wanted, strict=True)))
    assert errors[0] < 2 * errors[1] + 1e-3


def test_a_batch_of_ignored_targets_gives_no_loss_and_no_gradient():
    x, weight, targets = inputs(torch.float32, ignored=M)
    loss = linear_cross_entropy(x, weight, targets)
    assert loss.isnan()
    assert not any(grad.any() for grad in torch.autograd.grad(loss, (x, weight)))
