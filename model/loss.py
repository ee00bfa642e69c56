"""The output head fused with cross-entropy, which never materializes the logits of a whole batch.

The idea is Liger's (arXiv 2410.10989, section 3.2). Shapes: M data tokens, D model width, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.config import Kernels
from model.memory import tokens_at_once

IGNORED = -100
"""The loss ignores targets of this value."""

_log_softmax_backward = torch.ops.aten._log_softmax_backward_data


def linear_cross_entropy(x_MD: Tensor, weight_VD: Tensor, targets_M: Tensor, kernels: Kernels = "eager") -> Tensor:
    """The mean cross-entropy of the logits x W^T, in nats: a 0-d tensor, at least float32. Targets are int64.

    The forward pass already computes the gradients of x and the weight, in their dtypes, and saves them for the
    backward pass. With `triton` kernels, Liger computes the loss.
    """
    if kernels == "triton":
        return _liger_loss(x_MD, weight_VD, targets_M)
    if torch.is_grad_enabled():
        return _LinearCrossEntropy.apply(x_MD, weight_VD, targets_M)
    parts = [
        _log_probabilities(x_mD, weight_VD, targets_m)[1]
        for x_mD, targets_m in _slices(len(weight_VD), x_MD, targets_M)
    ]
    return torch.stack(parts).sum() / (targets_M != IGNORED).sum()


class TokenScores(NamedTuple):
    """How a model judges each of M data tokens."""

    loss_M: Tensor
    """Cross-entropy in nats, at least float32; 0 where the target is ignored."""

    is_likeliest_M: Tensor
    """Whether no other token is likelier than the target; false where the target is ignored."""


@torch.no_grad()
def token_scores(x_MD: Tensor, weight_VD: Tensor, targets_M: Tensor) -> TokenScores:
    """The scores of all targets under the logits x W^T. Fewer rows of W leave tokens out of the softmax."""
    losses, likeliest = [], []
    for x_mD, targets_m in _slices(len(weight_VD), x_MD, targets_M):
        log_mV, loss_m = _log_probabilities(x_mD, weight_VD, targets_m, reduction="none")
        losses.append(loss_m)
        likeliest.append(log_mV.argmax(dim=-1) == targets_m)
    return TokenScores(torch.cat(losses), torch.cat(likeliest))


def _liger_loss(x_MD: Tensor, weight_VD: Tensor, targets_M: Tensor) -> Tensor:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Liger  # with triton

    loss, *_ = Liger.apply(
        x_MD, weight_VD, targets_M, None, None, IGNORED, 0.0, 0.0, "mean", None, False, torch.float32
    )
    return loss.float()


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, weight_VD: Tensor, targets_M: Tensor) -> Tensor:
        grad_x_MD = torch.empty_like(x_MD)
        dtype = torch.promote_types(x_MD.dtype, torch.float32)
        sums, grad_weight_VD = [], torch.zeros((), dtype=dtype, device=x_MD.device)
        count = (targets_M != IGNORED).sum()
        share = count.clamp_min(1).to(dtype).reciprocal()
        for x_mD, targets_m, grad_mD in _slices(len(weight_VD), x_MD, targets_M, grad_x_MD):
            loss, grad_mV = _loss_and_gradient(x_mD, weight_VD, targets_m, share)
            sums.append(loss)
            torch.mm(grad_mV, weight_VD, out=grad_mD)
            more_VD = grad_mV.mT @ x_mD
            del grad_mV  # free it before the next slice needs the memory
            grad_weight_VD = grad_weight_VD.add_(more_VD) if grad_weight_VD.dim() else more_VD.to(dtype)
            del more_VD
        ctx.save_for_backward(grad_x_MD, grad_weight_VD.to(weight_VD.dtype))
        return torch.stack(sums).sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_x_MD, grad_weight_VD = ctx.saved_tensors
        return grad_x_MD * grad_loss, grad_weight_VD * grad_loss, None


def _loss_and_gradient(x_mD: Tensor, weight_VD: Tensor, targets_m: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of a slice's losses, and the gradient of the mean loss for its logits: (m, V), in x's dtype."""
    log_mV, loss = _log_probabilities(x_mD, weight_VD, targets_m)
    counts_m1 = (targets_m != IGNORED).unsqueeze(-1).to(log_mV.dtype) * share
    grad_mV = torch.zeros_like(log_mV).scatter_(1, targets_m.clamp_min(0).unsqueeze(-1), -counts_m1)
    grad_mV = _log_softmax_backward(grad_mV, log_mV, 1, log_mV.dtype)
    del log_mV
    return loss, grad_mV.to(x_mD.dtype)


def _log_probabilities(
    x_mD: Tensor, weight_VD: Tensor, targets_m: Tensor, reduction: Literal["sum", "none"] = "sum"
) -> tuple[Tensor, Tensor]:
    """All log-probabilities (m, V), and the targets' negative log-probabilities or their sum, in at least float32."""
    dtype = torch.promote_types(x_mD.dtype, torch.float32)
    log_mV = torch.log_softmax((x_mD @ weight_VD.mT).to(dtype), dim=-1)
    return log_mV, F.nll_loss(log_mV, targets_m, ignore_index=IGNORED, reduction=reduction)


def _slices(vocab_size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Splits all tensors into the same slices of data tokens, each small enough for its logits to exist at once."""
    at_once = tokens_at_once(vocab_size)
    yield from zip(*(tensor.split(at_once) for tensor in tensors), strict=True)
