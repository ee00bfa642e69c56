"""Growth as tensors: the parameters that a growth adds, their initial values, and growth of a model in memory.

Growth only appends: old parameters keep their names, values and Adam moments. The moments of a new generation are
zeros. The policy's `init` determines the values of parameter tokens, the configuration tau (`model.policy`). New units
and heads of a decoder are random, in the scale of the old ones, and write zeros.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.config_growth import grow_config
from model.decoder_config import DecoderConfig
from model.depth import COPYING, WRITES_RESIDUAL, copied_block_id
from model.initialization import build_model, initial_parameter, initial_rms
from model.language_model import LanguageModel, bare_model
from model.parameter_names import PartName
from model.policy import GrowthPolicy
from model.shapes import ModelConfig, block_shapes, parameter_shape, parameter_shapes
from model.tokenformer_config import PattentionConfig, TokenformerConfig


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


def added_parameters(old: ModelConfig, new: ModelConfig) -> list[str]:
    """The names of the parameters that `new` has and `old` does not."""
    old_shapes = parameter_shapes(old)
    return [name for name in parameter_shapes(new) if name not in old_shapes]


def draw_added(
    old: ModelConfig,
    new: ModelConfig,
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

    old: ModelConfig
    new: ModelConfig
    seed: int
    policy: GrowthPolicy
    read: Callable[[str], Tensor] | None
    rms_of: Callable[[str], float] | None

    def initial(self, name: str) -> Tensor:
        """The initial value of a parameter that `old` does not have."""
        part = PartName.parse(name)
        assert part is not None, "growth adds to blocks only"
        return self._in_old_block(part) if part.block in self._old_blocks else self._in_new_block(part)

    def _in_old_block(self, part: PartName) -> Tensor:
        if isinstance(self.old, DecoderConfig):
            return self._zeros(part) if _writes(part) or part.kind == "bias" else self._scaled(part, self._rms(part))
        if self.policy.init == "copy":
            return self._copied(part)
        if f"{self.policy.init}_tokens" == f"zero-{part.kind}":
            return self._zeros(part)
        return self._scaled(part, self._rms(part)) if self.policy.init == "matched" else self._drawn(part)

    def _in_new_block(self, part: PartName) -> Tensor:
        """What a new block would add to the residual stream is zero. All its other parameters are random, so they have
        a gradient from the second step on."""
        if self.policy.depth in COPYING:
            copied = copied_block_id(self.policy.depth, self.old, self.new, part.block)
            return self._acting(part._replace(block=copied))
        if _writes(part):
            return self._zeros(part)
        if part.kind == "bias" or self._is_random or not self.old.num_layers:
            return self._drawn(part)
        return self._scaled(part, self._rms(*(part._replace(block=block_id) for block_id in self.old.block_ids)))

    @property
    def _is_random(self) -> bool:
        return self.policy.init == "random" and isinstance(self.old, TokenformerConfig)

    def _zeros(self, part: PartName) -> Tensor:
        return torch.zeros(parameter_shape(str(part), self.new))

    def _drawn(self, part: PartName) -> Tensor:
        return initial_parameter(str(part), self.new, self.seed)

    def _scaled(self, part: PartName, root_mean_square: float) -> Tensor:
        """A parameter as in a new model, with another root mean square."""
        return self._drawn(part) * (root_mean_square / initial_rms(str(part), self.new))

    def _rms(self, *each: PartName) -> float:
        """The root mean square of what old blocks have of one or more parts, over all generations.

        Keys are taken without their ramps, values with their shares.
        """
        key = tuple(part._replace(generation=0) for part in each)
        if key not in self._known_rms:
            assert self.rms_of is not None, "init matched and new blocks need the scale of the old parameters"
            count, squares = 0, 0.0
            for part in each:
                for old, share in self._generations(part):
                    count += (n := self._old_blocks[old.block][old.in_block][0])
                    squares += n * (share * self.rms_of(str(old))) ** 2
            self._known_rms[key] = math.sqrt(squares / count)
        return self._known_rms[key]

    @cached_property
    def _known_rms(self) -> dict[tuple[PartName, ...], float]:
        return {}

    @cached_property
    def _old_blocks(self) -> dict[int, dict[str, tuple[int, ...]]]:
        """The shapes of the parameters of each old block, by the block's id."""
        return {block_id: block_shapes(self.old, index) for index, block_id in enumerate(self.old.block_ids)}

    def _generations(self, part: PartName) -> list[tuple[PartName, float]]:
        """The names of all generations of what an old block has of a part, each with the factor on its values."""
        every = (part._replace(generation=number) for number in self.old.block(part.block).generations)
        names = [name for name in every if name.in_block in self._old_blocks[part.block]]
        has_shares = part.kind == "value_tokens" and isinstance(self.old, TokenformerConfig)
        shares = _pattention(part, self.old).value_shares if has_shares else (1.0,) * len(names)
        return list(zip(names, shares, strict=True))

    def _acting(self, part: PartName) -> Tensor:
        """What an old block has of a part, all generations joined; values with their shares."""
        assert self.read is not None, "copies need the old values"
        return torch.cat([self.read(str(old)) * share for old, share in self._generations(part)])

    def _copied(self, part: PartName) -> Tensor:
        """Copies of all older tokens. Values are divided, so that old tokens and copies together give the old output.

        The configuration holds the share of the old tokens (`value_shares`). The noise on values sums to zero over the
        copies of each token, so the values of a single copy get no noise.
        """
        is_value, noise = part.kind == "value_tokens", self.policy.copy_noise
        copies = _pattention(part, self.new).generations[-1].copies
        token_ND = self._acting(part) / (1 + copies if is_value else 1)
        copy_CND = token_ND.expand(copies, *token_ND.shape)
        if noise:
            noise_CND = noise * self._drawn(part).view(copies, *token_ND.shape)
            copy_CND = copy_CND + (noise_CND - noise_CND.mean(0) if is_value else noise_CND)
        return copy_CND.reshape(-1, token_ND.shape[-1])


def _writes(part: PartName) -> bool:
    """Whether it is what its part writes into the residual stream with."""
    return part.part in WRITES_RESIDUAL and part.kind != "key_tokens"


def _pattention(part: PartName, config: ModelConfig) -> PattentionConfig:
    assert isinstance(config, TokenformerConfig)
    return config.block(part.block).pattentions()[part.part]


def grow_model(
    model: nn.Module,
    *,
    attention_tokens: int | Sequence[int] = 0,
    ffn_tokens: int | Sequence[int] | None = None,
    heads: int = 0,
    new_layers: int = 0,
    layer_tokens: tuple[int, int] | None = None,
    policy: GrowthPolicy | None = None,
    seed: int = 0,
) -> LanguageModel:
    """`model` with one more generation of parameters, in memory. `model` itself does not change.

    The grown model shares the old parameters, so an optimizer that holds them keeps their moments; add the new ones to
    it (`model.parameter_groups`). Nothing here follows `policy.moments`: they are the caller's. What is added
    and the default policy are those of `grow_config`. With the same seed, the new parameters are those that `growctl
    expand` draws, in the embedding's dtype and on its device. `model` may be wrapped, by `torch.compile` for example;
    the grown model is not.

    Raises UserError if the growth is invalid, as `grow_config` does, or if `model` is not a growctl model.
    """
    model = bare_model(model)
    before = model.balanced(model.config)
    config = grow_config(
        before,
        attention_tokens=attention_tokens,
        ffn_tokens=ffn_tokens,
        heads=heads,
        new_layers=new_layers,
        layer_tokens=layer_tokens,
        policy=policy,
    )
    old = dict(model.named_parameters())

    def read(name: str) -> Tensor:
        return old[name].detach().to("cpu", torch.float32)

    added = draw_added(before, config, seed, policy, read, lambda name: root_mean_square(read(name)))
    new = {name: value.to(model.embedding.weight) for name, value in added}
    grown = build_model(config, device="meta")
    for name, parameter in grown.named_parameters():
        parameter.requires_grad_(name not in old or old[name].requires_grad)
    grown.load_state_dict(old | new, assign=True)
    grown.use_kernels(model.kernels)
    return grown.train(model.training)
