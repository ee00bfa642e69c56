"""Pattention: attention of data tokens over learnable parameter tokens (arXiv 2410.23168, section 3.1).

Shapes: B batch, T sequence, M data tokens (B x T), D model width, N parameter tokens, O output width.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from model.config import Kernels
from model.kernels import launch as triton_kernels
from model.routing import Reading, Router
from model.scores import score_factors, score_gradients
from model.tokenformer_config import PattentionConfig, ScoreFunction
from model.top_tokens import TopTokens

Scale = Tensor | None
"""A factor: 0-d, float64, on the CPU. None: 1. It is a tensor so that a compiled model accepts a new value without
recompiling."""


class TokenGroup(NamedTuple):
    """Parameter tokens that share one norm: one or more parameters, with the factors on their keys and values."""

    keys: tuple[Tensor, ...]
    """(N_g, D) each."""

    values: tuple[Tensor, ...]
    """(N_g, O) each."""

    key_ramps: tuple[Scale, ...]
    value_shares: tuple[Scale, ...]
    tau: Tensor
    """0-d, float64, on the CPU."""

    readings: tuple[Reading | None, ...]
    """What data tokens read of a routed generation. None: all, as of any other."""

    @classmethod
    def of(cls, key_ND: Tensor, value_NO: Tensor, tau: float) -> "TokenGroup":
        """A group of one generation, without factors on keys or values."""
        return cls((key_ND,), (value_NO,), (None,), (None,), _number(tau), (None,))

    def acting_keys(self) -> "_Tokens":
        """The keys with their ramps."""
        return _Tokens(self.keys, self.key_ramps, self.readings)

    def acting_values(self) -> "_Tokens":
        """The values with their shares."""
        return _Tokens(self.values, self.value_shares, self.readings)


class _Tokens(NamedTuple):
    """Keys or values of a group, D wide. R is how many a data token reads, N without routed generations.

    The columns of scores and factors are those of all generations that are read whole, then of each routed one.
    """

    parts: Sequence[Tensor]
    scales: Sequence[Scale]
    readings: Sequence[Reading | None]

    def _pieces(self) -> Iterator[tuple[list[int], Reading | None]]:
        """The parts that are multiplied at once."""
        whole = [i for i, reading in enumerate(self.readings) if reading is None]
        if whole:
            yield whole, None
        yield from (([i], reading) for i, reading in enumerate(self.readings) if reading)

    def _joined(self, piece: list[int]) -> Tensor:
        return joined([self.parts[i] for i in piece], [self.scales[i] for i in piece])

    def _columns(self, factor_MR: Tensor) -> Iterator[tuple[list[int], Reading | None, Tensor]]:
        """The pieces, each with its columns."""
        first = 0
        for piece, reading in self._pieces():
            num_tokens = sum(len(self.parts[i]) for i in piece)
            width = num_tokens // len(reading.counts) * reading.num_read if reading else num_tokens
            yield piece, reading, factor_MR[:, first : first + width]
            first += width

    def scores(self, x_MD: Tensor) -> Tensor:
        """The products of the data tokens with the tokens that they read, (M, R)."""
        whole = ((self._joined(piece), reading) for piece, reading in self._pieces())
        scores = [reading.scores(x_MD, part) if reading else x_MD @ part.mT for part, reading in whole]
        return scores[0] if len(scores) == 1 else torch.cat(scores, dim=-1)

    def sums(self, factor_MR: Tensor) -> Tensor:
        """For each data token, the sum of the tokens that it reads, each times its factor: (M, D)."""
        out_MD: Tensor | None = None
        for piece, reading, factor_Mr in self._columns(factor_MR):
            part = self._joined(piece)
            sum_MD = reading.sums(factor_Mr, part) if reading else factor_Mr @ part
            out_MD = sum_MD if out_MD is None else out_MD.add_(sum_MD)
        assert out_MD is not None
        return out_MD

    def gradients(self, factor_MR: Tensor, x_MD: Tensor) -> list[Tensor]:
        """The gradient of each part, of `scores` of x with the gradient `factor_MR`, or the other way round."""
        grads: dict[int, Tensor] = {}
        for piece, reading, factor_Mr in self._columns(factor_MR):
            grad_ND = reading.gradient(factor_Mr, x_MD) if reading else factor_Mr.mT @ x_MD
            parts, scales = [self.parts[i] for i in piece], [self.scales[i] for i in piece]
            grads |= zip(piece, _parted(grad_ND, parts, scales), strict=True)
        return [grads[i] for i in range(len(self.parts))]


def pattend(x_BTD: Tensor, group: TokenGroup, function: ScoreFunction, kernels: Kernels = "eager") -> Tensor:
    """Attention of the data tokens over the parameter tokens: theta(X K^T) V, (B, T, O) in x's dtype.

    `model.scores` has the score functions theta; the Triton kernels support the default one. Besides the input and the
    parameters, autograd saves the scores in x's dtype and one norm per data token.
    """
    device = x_BTD.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        # Cast here, where autograd records it: backward passes run outside autocast.
        x_BTD, group = _cast(x_BTD, group, torch.get_autocast_dtype(device))
        with torch.autocast(device, enabled=False):
            return pattend(x_BTD, group, function, kernels)
    x_MD = x_BTD.flatten(0, -2)
    if torch.is_grad_enabled():
        has_kernel = kernels == "triton" and function == "l2_norm_gelu" and not any(group.readings)
        pattend_with = _TritonPattend if has_kernel else _Pattend
        parts = (*group.keys, *group.values, *group.key_ramps, *group.value_shares)
        out_MO = pattend_with.apply(x_MD, group.tau, function, group.readings, *parts)
    else:
        score_MR = group.acting_keys().scores(x_MD)
        score_factors(score_MR, group.tau, function, factor_MN=score_MR)
        out_MO = group.acting_values().sums(score_MR)
    return out_MO.unflatten(0, x_BTD.shape[:-1])


def _cast(x_BTD: Tensor, group: TokenGroup, dtype: torch.dtype) -> tuple[Tensor, TokenGroup]:
    keys, values = (tuple(part.to(dtype) for part in parts) for parts in (group.keys, group.values))
    return x_BTD.to(dtype), group._replace(keys=keys, values=values)


def token_factors(x_MD: Tensor, group: TokenGroup, function: ScoreFunction, unread_MN: Tensor | None = None) -> Tensor:
    """The factor on each parameter token's value at each data token: theta(X K^T), (M, N), without a gradient.

    The norm leaves out the scores where `unread_MN` is true, and those that routing leaves unread. There, the factors
    are 0 or, of softmax, mean nothing.
    """
    score_MN = x_MD @ joined(group.keys, group.key_ramps).mT
    if any(group.readings):
        parts = zip(group.keys, group.readings, strict=True)
        read_MN = torch.zeros_like(score_MN, dtype=torch.bool)
        masks = [reading.mask(len(key)) if reading else read_MN[:, : len(key)] for key, reading in parts]
        unread_MN = torch.cat(masks, dim=-1) | (read_MN if unread_MN is None else unread_MN)
    if unread_MN is not None:
        score_MN.masked_fill_(unread_MN, float("-inf") if function == "softmax" else 0.0)
    score_factors(score_MN, group.tau, function, factor_MN=score_MN)
    return score_MN


class _Pattend(torch.autograd.Function):
    """Two matrix products forward, four backward. The backward pass recomputes the elementwise work between them.

    Both passes join the keys and values of several generations again, so autograd saves no joined copy.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_MD: Tensor,
        tau: Tensor,
        function: ScoreFunction,
        readings: tuple[Reading | None, ...],
        *parts: Tensor | None,
    ) -> Tensor:
        keys, values, ramps, shares = _by_kind(parts, len(readings))
        score_MR = _Tokens(keys, ramps, readings).scores(x_MD)
        factor_MR = torch.empty_like(score_MR)
        norm_M1 = score_factors(score_MR, tau, function, factor_MR)
        # Saved by autograd, so that activation checkpointing frees them too.
        pairs = [reading and reading.pair_P for reading in readings]
        ctx.save_for_backward(x_MD, score_MR, norm_M1, tau, *parts, *pairs)
        ctx.function, ctx.counts = function, [reading and reading[1:] for reading in readings]
        return _Tokens(values, shares, readings).sums(factor_MR)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out_MO: Tensor) -> tuple[Tensor | None, ...]:
        x_MD, saved_MR, norm_M1, tau, *parts = ctx.saved_tensors
        num_parts = len(ctx.counts)
        key_parts, value_parts, ramps, shares, pairs = _by_kind(parts, num_parts)
        readings = [counts and Reading(pair_P, *counts) for pair_P, counts in zip(pairs, ctx.counts, strict=True)]
        keys, values = _Tokens(key_parts, ramps, readings), _Tokens(value_parts, shares, readings)
        needs_x, needs_parts = ctx.needs_input_grad[0], _by_kind(ctx.needs_input_grad[4:], num_parts)
        grad_MR = values.scores(grad_out_MO)
        factor_MR = score_gradients(saved_MR, norm_M1, tau, ctx.function, grad_MR)
        grads: list[Tensor | None] = [None] * (4 * num_parts)
        if any(needs_parts[1]):
            grads[num_parts : 2 * num_parts] = values.gradients(factor_MR, grad_out_MO)
        del factor_MR
        if any(needs_parts[0]):
            grads[:num_parts] = keys.gradients(grad_MR, x_MD)
        return keys.sums(grad_MR) if needs_x else None, None, None, None, *grads


class _TritonPattend(torch.autograd.Function):
    """The same for `l2_norm_gelu` without routing, with the kernels of `model.kernels`."""

    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, tau: Tensor, function: ScoreFunction, readings: tuple[None, ...], *parts: Tensor | None
    ) -> Tensor:
        num_parts = len(readings)
        keys, values, ramps, shares = _by_kind(parts, num_parts)
        x_MD = x_MD.contiguous()
        out_MO, score_MN, norm_M = triton_kernels.forward(x_MD, joined(keys, ramps), joined(values, shares), tau.item())
        ctx.save_for_backward(x_MD, score_MN, norm_M, tau, *parts)
        ctx.num_parts = num_parts
        return out_MO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out_MO: Tensor) -> tuple[Tensor | None, ...]:
        x_MD, score_MN, norm_M, tau, *parts = ctx.saved_tensors
        keys, values, ramps, shares = _by_kind(parts, ctx.num_parts)
        grad_x_MD, grad_key_ND, grad_value_NO = triton_kernels.backward(
            grad_out_MO.contiguous(),
            x_MD,
            joined(keys, ramps),
            joined(values, shares),
            score_MN,
            norm_M,
            tau.item(),
        )
        grads = *_parted(grad_key_ND, keys, ramps), *_parted(grad_value_NO, values, shares)
        return grad_x_MD, None, None, None, *grads, *(None,) * (2 * ctx.num_parts)


def _by_kind(parts: Sequence[Any], num_parts: int) -> tuple[Sequence[Any], ...]:
    return tuple(parts[first : first + num_parts] for first in range(0, len(parts), num_parts))


def joined(parts: Sequence[Tensor], scales: Sequence[Scale]) -> Tensor:
    """The keys or values of a group as one tensor, each generation times its factor."""
    acting = [part if scale is None else part * scale for part, scale in zip(parts, scales, strict=True)]
    return acting[0] if len(acting) == 1 else torch.cat(acting)


def _parted(grad_ND: Tensor, parts: Sequence[Tensor], scales: Sequence[Scale]) -> list[Tensor]:
    """Splits the gradient of joined parameters into the gradients of the parts."""
    grads = grad_ND.split([len(part) for part in parts])
    return [grad if scale is None else grad * scale for grad, scale in zip(grads, scales, strict=True)]


class Pattention(nn.Module):
    """The layer that replaces a Transformer's linear layers.

    Each generation has one parameter for its keys, (num_tokens, D), and one for its values, (num_tokens, O), named by
    its number (`key_tokens.0`, `key_tokens.1`, ...). Growth therefore appends parameters and changes no old one. tau,
    key ramps and value shares come from the configuration. They are not buffers, because engines cast or drop buffers.
    """

    def __init__(self, config: PattentionConfig, widths: tuple[int, int], score_function: ScoreFunction) -> None:
        super().__init__()
        self.score_function = score_function
        self.kernels: Kernels = "eager"
        self.top: TopTokens | None = None
        """The parameter tokens that each data token reads, without gradients; None: all."""
        self._sizes = {str(generation.number): generation.num_tokens for generation in config.generations}
        self.key_tokens, self.value_tokens = (
            nn.ParameterDict([(number, nn.Parameter(torch.empty(n, width))) for number, n in self._sizes.items()])
            for width in widths
        )
        self.routers = {str(each.number): Router(each) for each in config.generations if each.routing}
        """Their biases are state: `set_scale` leaves them as they are."""
        self.set_scale(config)

    def set_scale(self, config: PattentionConfig) -> None:
        """Sets tau, key ramps and value shares from `config`. Raises ValueError if its generations differ."""
        sizes = {str(generation.number): generation.num_tokens for generation in config.generations}
        if sizes != self._sizes:
            raise ValueError(f"generations of {sizes} tokens do not match a layer of {self._sizes} tokens")
        self.config = config
        self._ramps = {str(generation.number): _scale(generation.key_ramp) for generation in config.generations}
        self._shares = dict(zip(sizes, map(_scale, config.value_shares), strict=True))
        own = [(generation.number, generation.tau) for generation in config.generations if generation.tau is not None]
        shared = [str(generation.number) for generation in config.generations if generation.tau is None]
        apart = [([str(number)], _number(tau)) for number, tau in own]
        self._norm_groups = [(shared, _number(config.tau)), *apart]
        """The numbers of the generations that share a norm, and its tau. The shared norm comes first."""

    def balanced(self, config: PattentionConfig) -> PattentionConfig:
        """`config` with the biases of the routers."""
        generations = tuple(
            g.model_copy(update={"biases": tuple(self.routers[str(g.number)].bias_G.tolist())}) if g.routing else g
            for g in config.generations
        )
        return config.model_copy(update={"generations": generations})

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) in, (B, T, O) out, in x's dtype."""
        groups = self.token_groups(x_BTD.flatten(0, -2))
        out_BTD, *others = (
            self._of_top(x_BTD, groups, self.top)
            if self.top
            else (pattend(x_BTD, group, self.score_function, self.kernels) for group in groups)
        )
        for other_BTD in others:
            out_BTD = out_BTD + other_BTD
        return out_BTD

    def _of_top(self, x_BTD: Tensor, groups: Sequence[TokenGroup], top: TopTokens) -> Iterator[Tensor]:
        """Yields what `pattend` gives, of the tokens that `top` chooses for each data token from all groups."""
        x_MD = x_BTD.flatten(0, -2)
        factors = [token_factors(x_MD, group, self.score_function) for group in groups]
        size_MN = torch.cat(factors, dim=-1).abs()
        chosen_MK = size_MN.topk(top.count(self.config.num_read), dim=-1).indices
        unread_MN = torch.ones_like(size_MN, dtype=torch.bool).scatter_(-1, chosen_MK, False)
        unread = unread_MN.split([factor_Mn.shape[-1] for factor_Mn in factors], dim=-1)
        if top.norm == "chosen":
            parts = zip(groups, unread, strict=True)
            factors = [token_factors(x_MD, group, self.score_function, unread_Mn) for group, unread_Mn in parts]
        for factor_Mn, unread_Mn, group in zip(factors, unread, groups, strict=True):
            out_MO = factor_Mn.masked_fill_(unread_Mn, 0.0) @ joined(group.values, group.value_shares)
            yield out_MO.unflatten(0, x_BTD.shape[:-1])

    def token_groups(self, x_MD: Tensor | None = None) -> list[TokenGroup]:
        """The layer's parameters with their factors, one group per norm, and what data tokens `x_MD` read of them."""

        def reading(number: str) -> Reading | None:
            router = self.routers.get(number)
            return router.read(x_MD, self.key_tokens[number]) if router and x_MD is not None else None

        return [
            TokenGroup(
                keys=tuple(self.key_tokens[number] for number in numbers),
                values=tuple(self.value_tokens[number] for number in numbers),
                key_ramps=tuple(self._ramps[number] for number in numbers),
                value_shares=tuple(self._shares[number] for number in numbers),
                tau=tau,
                readings=tuple(map(reading, numbers)),
            )
            for numbers, tau in self._norm_groups
        ]

    @torch.no_grad()
    def scores(self, x_BTD: Tensor) -> dict[int, Tensor]:
        """The factors on each generation's values, by generation number: (B, T, n_g) each, in x's dtype."""
        x_MD, lead = x_BTD.flatten(0, -2), x_BTD.shape[:-1]
        found: dict[int, Tensor] = {}
        for (numbers, _), group in zip(self._norm_groups, self.token_groups(x_MD), strict=True):
            parts = token_factors(x_MD, group, self.score_function).split([len(key) for key in group.keys], dim=-1)
            found |= {int(number): part.unflatten(0, lead) for number, part in zip(numbers, parts, strict=True)}
        return dict(sorted(found.items()))

    def extra_repr(self) -> str:
        """Sizes by generation, tau and key ramps, for print(model)."""
        ramps = tuple(generation.key_ramp for generation in self.config.generations)
        return f"generations={self._sizes}, tau={self.config.tau:.4g}, key_ramps={ramps}"


def _scale(factor: float) -> Scale:
    return None if factor == 1 else _number(factor)


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")  # the default device may be another
