"""The decoder of linear layers: one block, whose options make it a GPT-NeoX, Llama, Mistral, Qwen2 or Qwen3 or,
of images, a ViT.

A unit of the FFN is a key and a value too, as is a head, so a decoder grows like a Tokenformer: each growth appends
parameters of its own, and the rows of all generations act as one matrix.

Shapes: B batch, T sequence, D model width, E head width, F units of the FFN.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import RotaryTable, normalized, normalized_heads, self_attention
from model.cache import LayerCache
from model.config import Norm
from model.decoder_config import DecoderBlockConfig, DecoderConfig, decoder_shapes
from model.depth import WRITES_RESIDUAL
from model.documents import AttentionMask
from model.language_model import LanguageModel


class Part(nn.Module):
    """A linear layer or a norm of a block: weight and, if it has one, bias, with a parameter for each generation."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """`shapes` by `weight.GENERATION` and `bias.GENERATION`."""
        super().__init__()
        self.weight, self.bias = (
            nn.ParameterDict(
                {name.split(".")[1]: nn.Parameter(torch.empty(shape)) for name, shape in shapes.items() if kind in name}
            )
            for kind in ("weight", "bias")
        )

    def joined(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias, with the rows of all generations."""
        weight, bias = (
            None if not rows else rows[0] if len(rows) == 1 else torch.cat(rows)
            for rows in (tuple(self.weight.values()), tuple(self.bias.values()))
        )
        assert weight is not None
        return weight, bias


class Reading(Part):
    """A linear layer that reads the residual stream: (B, T, D) in, (B, T, N) out."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The product with its N units."""
        return F.linear(x_BTD, *self.joined())


class Writing(Part):
    """A linear layer that writes into the residual stream: (B, T, N) in, (B, T, D) out. Its weight is (N, D) too."""

    def forward(self, x_BTN: Tensor) -> Tensor:
        """The sum of what its N units write."""
        weight_ND, bias_D = self.joined()
        return F.linear(x_BTN, weight_ND.mT, bias_D)


class GainedNorm(Part):
    """A norm with a gain and, if it is a LayerNorm, a bias: (B, T, D) in, (B, T, D) out."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], norm: Norm, epsilon: float) -> None:
        super().__init__(shapes)
        self.norm, self.epsilon = norm, epsilon

    def forward(self, x_BTD: Tensor, head_width: int | None = None) -> Tensor:
        """The norm over all D dimensions or, with `head_width`, over each head's."""
        gain, bias = self.joined()
        if head_width:
            return normalized_heads(x_BTD, head_width, self.epsilon, gain)
        return normalized(x_BTD, self.norm, self.epsilon, gain, bias)


class DecoderBlock(nn.Module):
    """x += projection(attention(norm(x))); x += ffn(norm(x)), or both of the same x (`parallel_residual`)."""

    attention_norm: GainedNorm
    query: Reading
    key: Reading
    value: Reading
    query_norm: GainedNorm
    key_norm: GainedNorm
    projection: Writing
    ffn_norm: GainedNorm
    gate: Reading
    up: Reading
    down: Writing

    def __init__(self, config: DecoderConfig, block: DecoderBlockConfig) -> None:
        super().__init__()
        self.config = config
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, shape in decoder_shapes(config, block).items():
            part, _, rest = name.partition(".")
            shapes.setdefault(part, {})[rest] = shape
        for part, own in shapes.items():
            if "norm" in part:
                self.add_module(part, GainedNorm(own, config.norm, config.norm_epsilon))
            else:
                self.add_module(part, Writing(own) if part in WRITES_RESIDUAL else Reading(own))

    def forward(
        self, x_BTD: Tensor, table: RotaryTable, mask: AttentionMask | None = None, past: LayerCache | None = None
    ) -> Tensor:
        """(B, T, D) in, (B, T, D) out. With `past`, the positions that it holds come before those of x."""
        h_BTD, width = self.attention_norm(x_BTD), self.config.head_width
        q_BTD, k_BTD, v_BTD = self.query(h_BTD), self.key(h_BTD), self.value(h_BTD)
        if self.config.qk_norm:
            q_BTD, k_BTD = self.query_norm(q_BTD, width), self.key_norm(k_BTD, width)
        is_causal = self.config.image is None
        middle_BTD = x_BTD + self.projection(self_attention(q_BTD, k_BTD, v_BTD, width, table, mask, past, is_causal))
        h_BTD = self.ffn_norm(x_BTD if self.config.parallel_residual else middle_BTD)
        return middle_BTD + self.down(self._activated(h_BTD))

    def _activated(self, h_BTD: Tensor) -> Tensor:
        """How much each unit of the FFN writes: (B, T, F)."""
        up_BTF = self.up(h_BTD)
        if self.config.activation == "swiglu":
            return F.silu(self.gate(h_BTD)) * up_BTF
        return F.gelu(up_BTF) if self.config.activation == "gelu" else F.relu(up_BTF).square()


class Decoder(LanguageModel):
    """The model of these blocks."""

    config: DecoderConfig

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config, (DecoderBlock(config, block) for block in config.blocks))
