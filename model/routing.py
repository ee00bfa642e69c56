"""Routed generations: a data token reads those groups of parameter tokens whose mean keys suit it best.

A mixture of experts in a Pattention's own terms. The affinity of a group is the cosine between the input and the mean
of the group's keys, so routing has no parameters and no gradient: keys learn from the scores that are read. To this
affinity a bias is added, which evens out how often groups are read, without a loss of its own (DeepSeek-V3, arXiv
2412.19437, section 2.1.2).

Shapes: M data tokens, D width of the input, O width of the output, N parameter tokens of a generation in G groups of S,
of which a data token reads g, so R = g S tokens. Its g groups, in order, are g pairs; P = M g of them in all.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from model.tokenformer_config import Generation

BALANCING_SPEED = 1e-3
"""How far a step moves the bias of a group: up if it was read less often than the average, else down (DeepSeek-V3)."""


class Reading(NamedTuple):
    """Which groups each data token reads. Its products cost what is read."""

    pair_P: Tensor
    """The pairs in the order of the groups that they read."""

    counts: tuple[int, ...]
    """For each group, how many pairs read it."""

    num_read: int
    """g."""

    def scores(self, x_MD: Tensor, weight_ND: Tensor) -> Tensor:
        """The products of each data token with the tokens that it reads, (M, R)."""
        score_PS = x_MD.new_empty(len(x_MD) * self.num_read, len(weight_ND) // len(self.counts))
        for (pairs, tokens), weight_SD in zip(self._by_group(), weight_ND.chunk(len(self.counts)), strict=True):
            score_PS[pairs] = x_MD[tokens] @ weight_SD.mT
        return score_PS.view(len(x_MD), -1)

    def sums(self, factor_MR: Tensor, weight_NO: Tensor) -> Tensor:
        """For each data token, the sum of the tokens that it reads, each times its factor: (M, O)."""
        out_MO = factor_MR.new_zeros(len(factor_MR), weight_NO.shape[-1])
        factor_PS = self._of_pairs(factor_MR)
        for (pairs, tokens), weight_SO in zip(self._by_group(), weight_NO.chunk(len(self.counts)), strict=True):
            out_MO.index_add_(0, tokens, factor_PS[pairs] @ weight_SO)
        return out_MO

    def gradient(self, factor_MR: Tensor, x_MD: Tensor) -> Tensor:
        """For each token, the sum of the rows of x of the data tokens that read it, each times its factor: (N, D)."""
        factor_PS = self._of_pairs(factor_MR)
        return torch.cat([factor_PS[pairs].mT @ x_MD[tokens] for pairs, tokens in self._by_group()])

    def mask(self, num_tokens: int) -> Tensor:
        """Where each data token does not read one of the N tokens, (M, N)."""
        shape = len(self.pair_P) // self.num_read, len(self.counts)
        unread_MG = self.pair_P.new_ones(shape, dtype=torch.bool)
        for group, (_, tokens) in enumerate(self._by_group()):
            unread_MG[tokens, group] = False
        return unread_MG.repeat_interleave(num_tokens // len(self.counts), dim=-1)

    def _of_pairs(self, factor_MR: Tensor) -> Tensor:
        return factor_MR.reshape(len(factor_MR) * self.num_read, -1)

    def _by_group(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The pairs that read each group, and their data tokens."""
        token_P = self.pair_P // self.num_read
        return zip(self.pair_P.split(self.counts), token_P.split(self.counts), strict=True)


class Router:
    """Chooses which groups of a generation each data token reads, and balances how often they are."""

    def __init__(self, generation: Generation) -> None:
        assert generation.routing
        self.routing = generation.routing
        biases = generation.biases or (0.0,) * generation.routing.groups
        self.bias_G = torch.tensor(biases, dtype=torch.float32, device="cpu")
        self.load_G = torch.zeros(len(biases), dtype=torch.int64, device="cpu")
        """How many data tokens have read each group with gradients since `balance`."""

    @torch.no_grad()
    def _groups(self, x_MD: Tensor, key_ND: Tensor) -> Tensor:
        """The numbers of the groups that each data token reads, in order: (M, g)."""
        dtype = torch.promote_types(x_MD.dtype, torch.float32)
        mean_GD = key_ND.to(dtype).unflatten(0, (self.routing.groups, -1)).mean(dim=1)
        cosine_MG = F.normalize(x_MD.to(dtype), dim=-1) @ F.normalize(mean_GD, dim=-1).mT
        return (cosine_MG + self.bias_G).topk(self.routing.read, dim=-1).indices.sort(dim=-1).values

    def read(self, x_MD: Tensor, key_ND: Tensor) -> Reading:
        """What each data token reads of the generation with these keys, without their ramp."""
        if self.bias_G.device != x_MD.device:
            self.bias_G, self.load_G = (tensor.to(x_MD.device) for tensor in (self.bias_G, self.load_G))
        group_P = self._groups(x_MD, key_ND).flatten()
        count_G = group_P.bincount(minlength=self.routing.groups)
        if torch.is_grad_enabled():
            self.load_G += count_G
        return Reading(group_P.argsort(stable=True), tuple(count_G.tolist()), self.routing.read)

    def balance(self, load_G: Tensor) -> None:
        """Moves the biases once, towards groups with less than the average of `load_G`, and begins to count again."""
        self.bias_G += BALANCING_SPEED * (load_G.sum() - load_G * len(load_G)).sign()
        self.load_G.zero_()
