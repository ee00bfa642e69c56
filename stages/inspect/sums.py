"""Sums over the batches of a text: of a layer's outputs, of the gradients through it, and of a Pattention's scores.

Sums stay on the model's device until the end, so no batch waits for the device, and do not grow with the text.
Shapes: B batch, T sequence, D model width, O output width, N parameter tokens, C contexts kept for each.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from model.pattention import Pattention
from stages.inspect.facts import (
    DEAD_BELOW,
    NUM_CONTEXTS,
    NUM_MOST_USED,
    THRESHOLDS,
    Context,
    Distribution,
    GenerationUse,
    Scores,
    TokenUse,
)

Describe = Callable[[int, int], tuple[str, str]]
"""(sequence, position) -> the text before the place, the data token there."""


class OutputSums:
    """The power sums of a layer's outputs, in float64."""

    def __init__(self) -> None:
        self._powers = self._largest = torch.zeros(())
        self._num_elements = self._num_vectors = 0

    def add(self, x_BTO: Tensor) -> None:
        """Adds the outputs of a batch."""
        x_BTO = x_BTO.detach()
        self._num_vectors += x_BTO.shape[:-1].numel()
        self._num_elements += x_BTO.numel()
        exact_BTO = x_BTO.double()
        square_BTO = exact_BTO.square()
        powers = (exact_BTO, square_BTO, square_BTO * exact_BTO, square_BTO.square())
        self._powers = self._powers + torch.stack([power_BTO.sum() for power_BTO in powers])
        largest = x_BTO.abs().max()
        self._largest = torch.maximum(self._largest.to(largest), largest)

    @property
    def rms_norm(self) -> float:
        """The root mean square, over data tokens, of the L2 norm of a layer's output vector."""
        return math.sqrt(self._powers[1].item() / self._num_vectors)

    def distribution(self) -> Distribution:
        """Root mean square, largest magnitude and kurtosis of all elements."""
        first, second, third, fourth = (power / self._num_elements for power in self._powers.tolist())
        variance = second - first**2
        central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
        kurtosis = None if variance <= 1e-14 * second else central / variance**2
        return Distribution(rms=math.sqrt(second), largest=self._largest.item(), kurtosis=kurtosis)


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
        self._num_rows = self._num_sequences = 0
        self._below = self._entropy = self._effective = self._mass_N = self._largest_N = torch.zeros(())
        self._best_CN = self._sequence_CN = self._position_CN = torch.empty(0)

    @torch.no_grad()
    def add(self, x_BTD: Tensor) -> None:
        """Adds a batch of inputs of the Pattention. Batches arrive in the order of the text."""
        score_BTN = torch.cat(list(self._pattention.scores(x_BTD).values()), dim=-1)
        size_BTN = score_BTN.abs()
        self._num_rows += size_BTN.shape[:-1].numel()
        self._below = self._below + torch.stack([(size_BTN < limit).sum() for limit in THRESHOLDS])
        entropy_BT = _entropy(size_BTN)
        used_BT = size_BTN.sum(dim=-1) > 0
        self._entropy = self._entropy + entropy_BT.sum(dtype=torch.float64)
        self._effective = self._effective + (entropy_BT.exp() * used_BT).sum(dtype=torch.float64)
        self._mass_N = self._mass_N + size_BTN.sum(dim=(0, 1), dtype=torch.float64)
        largest_N = size_BTN.amax(dim=(0, 1))
        self._largest_N = torch.maximum(self._largest_N.to(largest_N), largest_N)
        self._keep_contexts(score_BTN)

    def _keep_contexts(self, score_BTN: Tensor) -> None:
        """Keeps, for every parameter token, the sequences with its highest scores, and where in them they are."""
        score_BN, position_BN = score_BTN.max(dim=1)
        sequence_B = torch.arange(len(score_BN), device=score_BN.device) + self._num_sequences
        self._num_sequences += len(score_BN)
        sequence_BN = sequence_B[:, None].expand_as(position_BN)
        if len(self._best_CN):
            score_BN = torch.cat((self._best_CN, score_BN))
            position_BN = torch.cat((self._position_CN, position_BN))
            sequence_BN = torch.cat((self._sequence_CN, sequence_BN))
        self._best_CN, kept_CN = score_BN.topk(min(NUM_CONTEXTS, len(score_BN)), dim=0)
        self._position_CN, self._sequence_CN = position_BN.gather(0, kept_CN), sequence_BN.gather(0, kept_CN)

    @torch.no_grad()
    def scores(self, output_rms_norm: float, describe: Describe) -> Scores:
        """The facts of all batches. `output_rms_norm` is the RMS norm of the layer's output, which dead tokens are
        measured by; `describe` returns the text around a place."""
        config = self._pattention.config
        values = zip(config.generations, config.value_shares, strict=True)
        value_norm_N = torch.cat(
            [
                torch.linalg.vector_norm(self._pattention.value_tokens[str(g.number)], dim=-1).double() * share
                for g, share in values
            ]
        )
        dead_N = self._largest_N * value_norm_N < DEAD_BELOW * output_rms_norm
        if not output_rms_norm:
            dead_N = torch.ones_like(dead_N)
        share_N, mass_N = _shares(self._mass_N * value_norm_N), _shares(self._mass_N)
        sizes = [generation.num_tokens for generation in config.generations]
        parts = zip(config.generations, share_N.split(sizes), mass_N.split(sizes), dead_N.split(sizes), strict=True)
        num_scores = self._num_rows * config.num_tokens
        most_used = share_N.topk(min(NUM_MOST_USED, len(share_N))).indices.tolist()
        return Scores(
            num_tokens=config.num_tokens,
            tau=config.tau,
            below={f"{limit:g}": n / num_scores for limit, n in zip(THRESHOLDS, self._below.tolist(), strict=True)},
            entropy=self._entropy.item() / self._num_rows,
            effective_tokens=self._effective.item() / self._num_rows,
            generations=tuple(
                GenerationUse(
                    generation=generation.number,
                    num_tokens=generation.num_tokens,
                    key_ramp=generation.key_ramp,
                    score_mass=mass_n.sum().item(),
                    contribution=share_n.sum().item(),
                    dead=tuple(dead_n.nonzero().flatten().tolist()),
                )
                for generation, share_n, mass_n, dead_n in parts
            ),
            most_used=tuple(self._token_use(index, share_N[index].item(), describe) for index in most_used),
        )

    def _token_use(self, index: int, share: float, describe: Describe) -> TokenUse:
        places = (part_CN[:, index].tolist() for part_CN in (self._sequence_CN, self._position_CN, self._best_CN))
        numbered = [(g.number, token) for g in self._pattention.config.generations for token in range(g.num_tokens)]
        generation, token = numbered[index]
        return TokenUse(
            generation=generation,
            token=token,
            share=share,
            relative=share * len(self._mass_N),
            largest_score=self._largest_N[index].item(),
            contexts=tuple(
                Context(sequence, position, score, *describe(sequence, position))
                for sequence, position, score in zip(*places, strict=True)
            ),
        )


def _entropy(size_BTN: Tensor) -> Tensor:
    """The entropy of each row's shares of its sum, in nats: (B, T). 0 for a row of zeros."""
    share_BTN = size_BTN / size_BTN.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(size_BTN.dtype).tiny)
    return torch.special.entr(share_BTN).sum(dim=-1)


def _shares(part_N: Tensor) -> Tensor:
    return part_N / part_N.sum().clamp_min(1e-300)
