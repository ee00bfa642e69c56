"""The Transformer baseline: the Tokenformer's attention, rotary embedding and tying, with linear layers.

Shapes: B batch, T sequence, D model width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import RotaryTable, causal_attention
from model.cache import LayerCache
from model.config import TransformerConfig
from model.language_model import LanguageModel


class TransformerBlock(nn.Module):
    """Pre-LayerNorm with gain and bias, attention and a GELU MLP: GPT-2's block with a rotary embedding."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.num_heads = config.num_heads
        self.attention_norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.ffn_norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.attention_input = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.ffn_input = nn.Linear(width, config.ffn_size)
        self.ffn_output = nn.Linear(config.ffn_size, width)

    def forward(
        self, x_BTD: Tensor, table: RotaryTable, mask_BHTT: Tensor | None = None, past: LayerCache | None = None
    ) -> Tensor:
        """(B, T, D) in, (B, T, D) out. With `past`, the positions that it holds come before those of x."""
        q_BTD, k_BTD, v_BTD = self.attention_input(self.attention_norm(x_BTD)).chunk(3, dim=-1)
        x_BTD = x_BTD + self.projection(causal_attention(q_BTD, k_BTD, v_BTD, self.num_heads, table, mask_BHTT, past))
        return x_BTD + self.ffn_output(F.gelu(self.ffn_input(self.ffn_norm(x_BTD))))


class Transformer(LanguageModel):
    """The baseline language model."""

    config: TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, (TransformerBlock(config) for _ in range(config.num_layers)))
