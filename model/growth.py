"""Growth as tensors: the parameters that a growth adds, their initial values, and growth of a model in memory.

Growth only appends: old parameters keep their names, values and Adam moments. The moments of a new generation are
zeros. The policy's `init` determines its values; the configuration determines tau (`model.policy`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.config import PATTENTIONS, PattentionConfig, TokenformerConfig, parameter_shape, parameter_shapes
from model.depth import COPYING, WRITES_RESIDUAL, copied_block_id
from model.initialization import initial_parameter, initial_std
from model.language_model import bare_model
from model.parameter_names import TOKEN_KINDS, TokenKind, TokensName
from model.policy import GrowthPolicy, grow_config
from model.tokenformer import Tokenformer


class ParameterState(NamedTuple):
    """One parameter with its Adam moments: three float32 tensors of the same shape.

    `exp_avg` of a matrix that Muon updates is its momentum; `exp_avg_sq` is then empty.
    """

    fp32: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


def root_mean_square(value: Tensor) -> float:
    """sqrt(mean of squares) to six digits, so that it does not depend on the number of threads."""
    return float(f"{torch.linalg.vector_norm(value).item() / math.sqrt(value.numel()):.6g}")


def added_parameters(old: TokenformerConfig, new: TokenformerConfig) -> list[str]:
    """The names of the parameters that `new` has and `old` does not."""
    old_shapes = parameter_shapes(old)
    return [name for name in parameter_shapes(new) if name not in old_shapes]


def draw_added(
    old: TokenformerConfig,
    new: TokenformerConfig,
    seed: int,
    policy: GrowthPolicy | None = None,
    read: Callable[[str], Tensor] | None = None,
    rms_of: Callable[[str], float] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """The parameters that growth from `old` to `new` under `policy` adds, one at a time, float32 on the CPU.

    `read(name)` returns the value of an old parameter; init `copy` and copies of layers need it. `rms_of(name)` returns
    the root mean square of an old parameter; init `matched` needs it, and so does every new block but those of init
    `random`.
    """
    drawing = _Drawing(old, new, seed, policy or GrowthPolicy(), read, rms_of)
    for name in added_parameters(old, new):
        yield name, drawing.initial(name)


@dataclass(frozen=True)
class _Drawing:
    """The arguments of `draw_added`."""

    old: TokenformerConfig
    new: TokenformerConfig
    seed: int
    policy: GrowthPolicy
    read: Callable[[str], Tensor] | None
    rms_of: Callable[[str], float] | None

    def initial(self, name: str) -> Tensor:
        """The initial value of a parameter that `old` does not have."""
        tokens = TokensName.parse(name)
        assert tokens is not None, "growth adds parameter tokens only"
        return self._in_old_block(tokens) if tokens.block in self._old_ids else self._in_new_block(tokens)

    def _in_old_block(self, tokens: TokensName) -> Tensor:
        if self.policy.init == "copy":
            return self._copied(tokens)
        if f"zero-{tokens.kind}" == self.policy.init:
            return self._zeros(tokens)
        return self._scaled(tokens, self._rms(tokens)) if self.policy.init == "matched" else self._drawn(tokens)

    def _in_new_block(self, tokens: TokensName) -> Tensor:
        """The values that a new block would add to the residual stream are zero. All its other parameters are random,
        so they have a gradient from the second step on."""
        if self.policy.depth in COPYING:
            copied = copied_block_id(self.policy.depth, self.old, self.new, tokens.block)
            return self._acting(tokens._replace(block=copied))
        if tokens.kind == "value" and tokens.pattention in WRITES_RESIDUAL:
            return self._zeros(tokens)
        if self.policy.init == "random" or not self.old.num_layers:
            return self._drawn(tokens)
        return self._scaled(tokens, self._rms_of_blocks[tokens.pattention, tokens.kind])

    def _zeros(self, tokens: TokensName) -> Tensor:
        return torch.zeros(parameter_shape(str(tokens), self.new))

    def _drawn(self, tokens: TokensName) -> Tensor:
        return initial_parameter(str(tokens), self.new, self.seed)

    def _scaled(self, tokens: TokensName, root_mean_square: float) -> Tensor:
        return self._drawn(tokens) * (root_mean_square / initial_std(str(tokens), self.new))

    def _rms(self, *each: TokensName) -> float:
        """The root mean square of the old keys or values of one or more Pattentions, over all generations.

        Keys are taken without their ramps, values with their shares.
        """
        assert self.rms_of is not None, "init matched and new blocks need the scale of the old tokens"
        num_tokens, squares = 0, 0.0
        for tokens in each:
            for old, share in self._generations(tokens):
                num_tokens += (n := parameter_shape(str(old), self.old)[0])
                squares += n * (share * self.rms_of(str(old))) ** 2
        return math.sqrt(squares / num_tokens)

    @cached_property
    def _old_ids(self) -> frozenset[int]:
        return frozenset(self.old.block_ids)

    @cached_property
    def _rms_of_blocks(self) -> dict[tuple[str, TokenKind], float]:
        """The root mean square of the keys and of the values of each Pattention, over all old blocks."""
        return {
            (name, kind): self._rms(*(TokensName(block_id, name, kind, 0) for block_id in self.old.block_ids))
            for name, kind in product(PATTENTIONS, TOKEN_KINDS)
        }

    def _generations(self, tokens: TokensName) -> list[tuple[TokensName, float]]:
        """The names of all generations of an old Pattention's keys or values, each with the factor on its values."""
        pattention = _pattention(tokens, self.old)
        shares = pattention.value_shares if tokens.kind == "value" else (1.0,) * len(pattention.generations)
        numbers = (generation.number for generation in pattention.generations)
        return [(tokens._replace(generation=n), share) for n, share in zip(numbers, shares, strict=True)]

    def _acting(self, tokens: TokensName) -> Tensor:
        """The keys or values of all generations of an old Pattention, joined; values with their shares."""
        assert self.read is not None, "copies need the old values"
        return torch.cat([self.read(str(old)) * share for old, share in self._generations(tokens)])

    def _copied(self, tokens: TokensName) -> Tensor:
        """Copies of all older tokens. Values are divided, so that old tokens and copies together give the old output.

        The configuration holds the share of the old tokens (`value_shares`). The noise on values sums to zero over the
        copies of each token, so the values of a single copy get no noise.
        """
        kind, noise = tokens.kind, self.policy.copy_noise
        copies = _pattention(tokens, self.new).generations[-1].copies
        token_ND = self._acting(tokens) / (1 + copies if kind == "value" else 1)
        copy_CND = token_ND.expand(copies, *token_ND.shape)
        if noise:
            noise_CND = noise * self._drawn(tokens).view(copies, *token_ND.shape)
            copy_CND = copy_CND + (noise_CND - noise_CND.mean(0) if kind == "value" else noise_CND)
        return copy_CND.reshape(-1, token_ND.shape[-1])


def _pattention(tokens: TokensName, config: TokenformerConfig) -> PattentionConfig:
    return config.block(tokens.block).pattentions()[tokens.pattention]


def grow_model(
    model: nn.Module,
    *,
    attention_tokens: int | Sequence[int] = 0,
    ffn_tokens: int | Sequence[int] | None = None,
    new_layers: int = 0,
    layer_tokens: tuple[int, int] | None = None,
    policy: GrowthPolicy | None = None,
    seed: int = 0,
) -> Tokenformer:
    """`model` with one more generation of parameter tokens, in memory. `model` itself does not change.

    The grown model shares the old parameters, so an optimizer that holds them keeps their moments; add the new ones to
    it (`model.parameter_groups`). Nothing here follows `policy.moments`: they are the caller's. Token numbers, new
    layers and the default policy are those of `grow_config`. With the same seed, the new tokens are those that `growctl
    expand` draws, in the embedding's dtype and on its device. `model` may be wrapped, by `torch.compile` for example;
    the grown model is not.

    Raises UserError if the growth is invalid, as `grow_config` does, or if `model` is not a growctl model.
    """
    model = bare_model(model)
    config = grow_config(
        model.config,
        attention_tokens=attention_tokens,
        ffn_tokens=ffn_tokens,
        new_layers=new_layers,
        layer_tokens=layer_tokens,
        policy=policy,
    )
    assert isinstance(model.config, TokenformerConfig)
    old = dict(model.named_parameters())

    def read(name: str) -> Tensor:
        return old[name].detach().to("cpu", torch.float32)

    added = draw_added(model.config, config, seed, policy, read, lambda name: root_mean_square(read(name)))
    new = {name: value.to(model.embedding.weight) for name, value in added}
    with torch.device("meta"):
        grown = Tokenformer(config)
    for name, parameter in grown.named_parameters():
        parameter.requires_grad_(name not in old or old[name].requires_grad)
    grown.load_state_dict(old | new, assign=True)
    grown.use_kernels(model.kernels)
    return grown.train(model.training)
