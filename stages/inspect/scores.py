"""Streams the scores of a Pattention: how sparse they are, and which parameter tokens the text uses.

Shapes: B batch, T sequence, D model width, N parameter tokens, C contexts kept for each.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from model.pattention import Pattention
from stages.inspect.facts import (
    DEAD_BELOW,
    NUM_CONTEXTS,
    NUM_MOST_USED,
    THRESHOLDS,
    Context,
    GenerationUse,
    Scores,
    TokenUse,
)

Describe = Callable[[int, int], tuple[str, str]]
"""(sequence, position) -> the text before the place, the data token there."""


class ScoreSums:
    """Sums over the scores of one Pattention, batch after batch. Memory does not grow with the text."""

    def __init__(self, pattention: Pattention) -> None:
        self._pattention = pattention
        self._num_rows = 0
        self._below = self._entropy = self._effective = self._mass_N = self._largest_N = torch.zeros(())
        self._best_CN = self._sequence_CN = self._position_CN = torch.empty(0)

    @torch.no_grad()
    def add(self, x_BTD: Tensor, first_sequence: int) -> None:
        """Adds a batch of inputs of the Pattention, whose first sequence has the number `first_sequence`."""
        score_BTN = torch.cat(list(self._pattention.scores(x_BTD).values()), dim=-1)
        size_BTN = score_BTN.abs()
        first = self._num_rows == 0
        self._num_rows += size_BTN.shape[:-1].numel()
        self._below = self._below + torch.stack([(size_BTN < limit).sum() for limit in THRESHOLDS])
        entropy_BT = _entropy(size_BTN)
        used_BT = size_BTN.sum(dim=-1) > 0
        self._entropy = self._entropy + entropy_BT.sum(dtype=torch.float64)
        self._effective = self._effective + (entropy_BT.exp() * used_BT).sum(dtype=torch.float64)
        self._mass_N = self._mass_N + size_BTN.sum(dim=(0, 1), dtype=torch.float64)
        largest_N = size_BTN.amax(dim=(0, 1))
        self._largest_N = largest_N if first else torch.maximum(self._largest_N, largest_N)
        self._keep_contexts(score_BTN, first_sequence)

    def _keep_contexts(self, score_BTN: Tensor, first_sequence: int) -> None:
        """Keeps, for every parameter token, the sequences with its highest scores, and where in them they are."""
        score_BN, position_BN = score_BTN.max(dim=1)
        sequence_B = torch.arange(first_sequence, first_sequence + len(score_BN), device=score_BN.device)
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
        value_norm_N = torch.cat(
            [
                torch.linalg.vector_norm(value_NO, dim=-1).double() * share
                for value_NO, share in zip(self._values(), config.value_shares, strict=True)
            ]
        )
        contribution_N = self._mass_N * value_norm_N
        dead_N = self._largest_N * value_norm_N < DEAD_BELOW * output_rms_norm
        if not output_rms_norm:
            dead_N = torch.ones_like(dead_N)
        share_N, mass_N = (part_N / part_N.sum().clamp_min(1e-300) for part_N in (contribution_N, self._mass_N))
        sizes = [generation.num_tokens for generation in config.generations]
        parts = zip(config.generations, share_N.split(sizes), mass_N.split(sizes), dead_N.split(sizes), strict=True)
        num_scores = self._num_rows * config.num_tokens
        return Scores(
            num_tokens=config.num_tokens,
            tau=config.tau,
            below={
                f"{limit:g}": count / num_scores for limit, count in zip(THRESHOLDS, self._below.tolist(), strict=True)
            },
            entropy=self._entropy.item() / self._num_rows,
            effective_tokens=self._effective.item() / self._num_rows,
            generations=tuple(
                GenerationUse(
                    generation=generation.number,
                    num_tokens=generation.num_tokens,
                    key_ramp=generation.key_ramp,
                    score_mass=mass_N.sum().item(),
                    contribution=share_N.sum().item(),
                    dead=tuple(dead_N.nonzero().flatten().tolist()),
                )
                for generation, share_N, mass_N, dead_N in parts
            ),
            most_used=tuple(
                self._token_use(index, share_N[index].item(), describe)
                for index in share_N.topk(min(NUM_MOST_USED, len(share_N))).indices.tolist()
            ),
        )

    def _values(self) -> Sequence[Tensor]:
        return [self._pattention.value_tokens[str(g.number)] for g in self._pattention.config.generations]

    def _token_use(self, index: int, share: float, describe: Describe) -> TokenUse:
        places = (part_CN[:, index].tolist() for part_CN in (self._sequence_CN, self._position_CN, self._best_CN))
        generation, token = _place(index, [(g.number, g.num_tokens) for g in self._pattention.config.generations])
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


def _place(index: int, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """(generation, number in it) of the parameter token `index` of a Pattention."""
    for number, num_tokens in sizes:
        if index < num_tokens:
            return number, index
        index -= num_tokens
    raise IndexError(index)
