"""Tokenformer (arXiv 2410.23168, section 3.2; layout and norms of the official code).

Shapes: B batch, T sequence, D model width.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from model.attention import RotaryTable, normalized, normalized_heads, self_attention
from model.cache import LayerCache
from model.config import Kernels
from model.documents import AttentionMask
from model.language_model import LanguageModel
from model.pattention import Pattention
from model.shapes import ModelConfig
from model.tokenformer_config import PATTENTIONS, BlockConfig, TokenformerConfig, pattention_widths
from model.top_tokens import TopTokens, require_tokens


class TokenformerBlock(nn.Module):
    """x += projection(attention(norm(x))); x += ffn(norm(x)). Every linear layer is a Pattention.

    The norms have no parameters.
    """

    def __init__(self, config: TokenformerConfig, block: BlockConfig) -> None:
        super().__init__()
        self.norm, self.norm_epsilon = config.norm, config.norm_epsilon
        self.qk_norm, self.head_width = config.qk_norm, config.head_width
        self.is_causal = config.image is None
        self.query, self.key, self.value, self.projection, self.ffn = (
            Pattention(pattention, pattention_widths(config, name), config.score_function)
            for name, pattention in block.pattentions().items()
        )

    def forward(
        self, x_BTD: Tensor, table: RotaryTable, mask: AttentionMask | None = None, past: LayerCache | None = None
    ) -> Tensor:
        """(B, T, D) in, (B, T, D) out. With `past`, the positions that it holds come before those of x."""
        h_BTD = normalized(x_BTD, self.norm, self.norm_epsilon)
        q_BTD, k_BTD, v_BTD = self.query(h_BTD), self.key(h_BTD), self.value(h_BTD)
        if self.qk_norm:
            q_BTD, k_BTD = (normalized_heads(each, self.head_width, self.norm_epsilon) for each in (q_BTD, k_BTD))
        x_BTD = x_BTD + self.projection(
            self_attention(q_BTD, k_BTD, v_BTD, self.head_width, table, mask, past, self.is_causal)
        )
        return x_BTD + self.ffn(normalized(x_BTD, self.norm, self.norm_epsilon))


class Tokenformer(LanguageModel):
    """The model that can grow. Call `set_scales` at each step while a ramp or an annealing changes its
    configuration."""

    config: TokenformerConfig

    def __init__(self, config: TokenformerConfig) -> None:
        super().__init__(config, (TokenformerBlock(config, block) for block in config.blocks))

    def use_kernels(self, kernels: Kernels) -> None:
        """Switches the model and all its Pattentions to `kernels`. Raises KernelsMissing if this machine lacks them."""
        super().use_kernels(kernels)
        for pattention in self.pattentions():
            pattention.kernels = kernels
            if kernels == "compiled" and pattention.routers:  # how many data tokens read a group changes every time
                own = partial(torch.compiler.disable(Pattention.forward), pattention)  # a copy's is the copy's own
                pattention.forward = own  # type: ignore[method-assign]

    def pattentions(self) -> Iterator[Pattention]:
        """All of them, in the order of the configuration's."""
        return (getattr(block, name) for block in self.blocks.values() for name in PATTENTIONS)

    def balance(self, all_reduce: Callable[[Tensor], object]) -> None:
        """Balances the routers, as `LanguageModel.balance` says."""
        routers = [router for pattention in self.pattentions() for router in pattention.routers.values()]
        if routers:
            load = torch.cat([router.load_G for router in routers])
            all_reduce(load)
            for router, load_G in zip(routers, load.split([len(router.load_G) for router in routers]), strict=True):
                router.balance(load_G)

    def balanced(self, config: ModelConfig) -> ModelConfig:
        """`config`, of this model's sizes, with the biases of its routers."""
        assert isinstance(config, TokenformerConfig)
        own = iter(self.pattentions())
        blocks = (
            BlockConfig(**{name: next(own).balanced(p) for name, p in block.pattentions().items()})
            for block in config.blocks
        )
        return config.model_copy(update={"blocks": tuple(blocks)}) if config.is_routed else config

    def set_scales(self, config: TokenformerConfig) -> None:
        """Sets tau, key ramps and value shares from `config`, no biases. Raises ValueError if its sizes are others."""
        for pattention, (_, own) in zip(self.pattentions(), config.pattentions(), strict=True):
            pattention.set_scale(own)
        self.config = config


@contextmanager
def reading_top(
    model: LanguageModel, top: TopTokens | None, kinds: Collection[str] = PATTENTIONS, layer: int | None = None
) -> Iterator[None]:
    """Lets data tokens read only `top` in the Pattentions of these kinds of a Tokenformer, without gradients.

    `layer`, counted from 0: in that layer alone. Without `top`, they read all tokens, in any model. Raises UserError as
    `require_tokens` does.
    """
    require_tokens(model.config, [top] if top else [])
    blocks = [*model.blocks.values()][slice(layer, None if layer is None else layer + 1)]
    pattentions = [getattr(block, name) for block in blocks for name in kinds] if top else []
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled() and top is None):
            for pattention in pattentions:
                pattention.top = top
            yield
    finally:
        for pattention in pattentions:
            pattention.top = None
