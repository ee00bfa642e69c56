"""Sums over the batches of a text: of a layer's outputs, of the gradients through it, and of a Pattention's scores.

Sums stay on the model's device until the end, so no batch waits for the device, and do not grow with the text.
Shapes: B batch, T sequence, D model width, O output width, N parameter tokens.
"""

import math

import torch
from torch import Tensor

from model.pattention import Pattention
from stages.inspect.facts import DEAD_BELOW, Distribution, GenerationUse, Scores


class OutputSums:
    """The power sums of a layer's outputs, in float64."""

    def __init__(self) -> None:
        self._powers = torch.zeros(())
        self._num_elements = self._num_vectors = 0

    def add(self, x_BTO: Tensor) -> None:
        """Adds the outputs of a batch."""
        self._num_vectors += x_BTO.shape[:-1].numel()
        self._num_elements += x_BTO.numel()
        exact_BTO = x_BTO.detach().double()
        square_BTO = exact_BTO.square()
        powers = (exact_BTO, square_BTO, square_BTO * exact_BTO, square_BTO.square())
        self._powers = self._powers + torch.stack([power_BTO.sum() for power_BTO in powers])

    @property
    def rms_norm(self) -> float:
        """The root mean square, over data tokens, of the L2 norm of a layer's output vector."""
        return math.sqrt(self._powers[1].item() / self._num_vectors)

    def distribution(self) -> Distribution:
        """Root mean square and kurtosis of all elements."""
        first, second, third, fourth = (power / self._num_elements for power in self._powers.tolist())
        variance = second - first**2
        central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
        kurtosis = None if variance <= 1e-14 * second else central / variance**2
        return Distribution(rms=math.sqrt(second), kurtosis=kurtosis)


class GainSums:
    """The squared norms of the gradients at a layer's input and output."""

    def __init__(self) -> None:
        self._squares = torch.zeros(())

    def add(self, grad_in_BTD: Tensor, grad_out_BTO: Tensor) -> None:
        """Adds the gradients of a batch."""
        norms = [torch.linalg.vector_norm(grad).double() for grad in (grad_in_BTD, grad_out_BTO)]
        self._squares = self._squares + torch.stack(norms).square()

    def gain(self) -> float | None:
        """The norm at the input over the norm at the output; None if no gradient arrives at the output."""
        at_input, at_output = self._squares.tolist()
        return math.sqrt(at_input / at_output) if at_output else None


class ScoreSums:
    """Sums over the scores of one Pattention: how sparse they are, and which parameter tokens the text uses."""

    def __init__(self, pattention: Pattention) -> None:
        self._pattention = pattention
        self._num_rows = 0
        self._effective = self._mass_N = self._largest_N = torch.zeros(())

    @torch.no_grad()
    def add(self, x_BTD: Tensor) -> None:
        """Adds a batch of inputs of the Pattention."""
        size_BTN = torch.cat(list(self._pattention.scores(x_BTD).values()), dim=-1).abs()
        sum_BT1 = size_BTN.sum(dim=-1, keepdim=True)
        share_BTN = size_BTN / sum_BT1.clamp_min(torch.finfo(size_BTN.dtype).tiny)
        used_BT = torch.special.entr(share_BTN).sum(dim=-1).exp() * (sum_BT1[..., 0] > 0)
        self._num_rows += used_BT.numel()
        self._effective = self._effective + used_BT.sum(dtype=torch.float64)
        self._mass_N = self._mass_N + size_BTN.sum(dim=(0, 1), dtype=torch.float64)
        largest_N = size_BTN.amax(dim=(0, 1))
        self._largest_N = torch.maximum(self._largest_N.to(largest_N), largest_N)

    @torch.no_grad()
    def scores(self, output_rms_norm: float) -> Scores:
        """The facts of all batches. Dead tokens are measured by `output_rms_norm`, the RMS norm of the layer's
        output."""
        config = self._pattention.config
        value_norm_N = torch.cat(
            [
                torch.linalg.vector_norm(self._pattention.value_tokens[str(g.number)], dim=-1).double() * share
                for g, share in zip(config.generations, config.value_shares, strict=True)
            ]
        )
        dead_N = self._largest_N * value_norm_N < DEAD_BELOW * output_rms_norm
        if not output_rms_norm:
            dead_N = torch.ones_like(dead_N)
        share_N, mass_N = _shares(self._mass_N * value_norm_N), _shares(self._mass_N)
        sizes = [generation.num_tokens for generation in config.generations]
        parts = zip(config.generations, share_N.split(sizes), mass_N.split(sizes), dead_N.split(sizes), strict=True)
        generations = tuple(
            GenerationUse(
                generation=generation.number,
                num_tokens=generation.num_tokens,
                key_ramp=generation.key_ramp,
                score_mass=mass_n.sum().item(),
                contribution=share_n.sum().item(),
                dead=tuple(dead_n.nonzero().flatten().tolist()),
            )
            for generation, share_n, mass_n, dead_n in parts
        )
        return Scores(config.num_tokens, self._effective.item() / self._num_rows, generations)


def _shares(part_N: Tensor) -> Tensor:
    return part_N / part_N.sum().clamp_min(1e-300)
