"""Sums over batches that an inspection needs: of a layer's outputs, and of the gradients through it.

Sums are float64 and stay on the model's device until the end, so no batch waits for the device.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from stages.inspect.facts import Distribution, GradientNorm


class OutputSums:
    """The power sums of a layer's outputs."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._largest: list[Tensor] = []
        self._count = 0
        self._vectors = 0

    def add(self, x_BTO: Tensor) -> None:
        """Adds the outputs of a batch."""
        x_BTO = x_BTO.detach()
        self._vectors += x_BTO.shape[:-1].numel()
        self._count += x_BTO.numel()
        square_BTO = x_BTO.double().square()
        sums = (x_BTO.double().sum(), square_BTO.sum(), (square_BTO * x_BTO).sum(), square_BTO.square().sum())
        self._sums = _added(self._sums, sums)
        largest = x_BTO.abs().max()
        self._largest = [largest if not self._largest else torch.maximum(self._largest[0], largest)]

    @property
    def rms_norm(self) -> float:
        """The root mean square, over data tokens, of the L2 norm of a layer's output vector."""
        return math.sqrt(self._sums[1].item() / self._vectors)

    def distribution(self) -> Distribution:
        """Root mean square, largest magnitude and kurtosis of all elements."""
        first, second, third, fourth = (total.item() / self._count for total in self._sums)
        variance = second - first**2
        central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
        constant = variance <= 1e-14 * second
        return Distribution(
            rms=math.sqrt(second),
            largest=self._largest[0].item(),
            kurtosis=None if constant else central / variance**2,
        )


class GainSums:
    """The squared norms of the gradients at a layer's input and output."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []

    def add(self, grad_in_BTD: Tensor, grad_out_BTO: Tensor) -> None:
        """Adds the gradients of a batch."""
        squares = (torch.linalg.vector_norm(grad).double().square() for grad in (grad_in_BTD, grad_out_BTO))
        self._sums = _added(self._sums, tuple(squares))

    def gain(self) -> float | None:
        """The norm at the input over the norm at the output; None if no gradient arrives at the output."""
        at_input, at_output = (total.item() for total in self._sums)
        return math.sqrt(at_input / at_output) if at_output else None


def gradient_norm(squares: Sequence[Tensor]) -> GradientNorm:
    """The norm over batches, from the squared norm of each."""
    norms = torch.stack(list(squares)).sqrt()
    mean = norms.mean().item()
    spread = norms.std(correction=1).item() / mean if len(norms) > 1 and mean else None
    return GradientNorm(mean=mean, spread=spread, largest=norms.max().item())


def _added(sums: list[Tensor], more: Sequence[Tensor]) -> list[Tensor]:
    return [total + term for total, term in zip(sums, more, strict=True)] if sums else list(more)
