"""What both families share: the embedding, the walk through the blocks, the tied head and the loss.

Shapes: B batch, T sequence, D model width, V vocabulary.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import RotaryTable, rotary_table
from model.config import TokenformerConfig, TransformerConfig

if TYPE_CHECKING:
    from collections.abc import Callable


class LanguageModel(nn.Module):
    """Token ids in, logits out; or, with targets, the mean cross-entropy. Parameters are empty until initialised."""

    if TYPE_CHECKING:
        __call__: "Callable[..., Tensor]"

    def __init__(self, config: TokenformerConfig | TransformerConfig, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)

    def forward(self, input_ids_BT: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        """`logits_BTV` in the parameters' dtype, or with `targets_BT` the mean cross-entropy, nats, float32 or wider.

        Both inputs are int64. A target of -100 does not count.
        """
        x_BTD = self.embedding(input_ids_BT)
        table: RotaryTable = rotary_table(
            input_ids_BT.shape[1], self.config.rotary_width, self.config.rotary_base, like=x_BTD
        )
        for block in self.blocks:
            x_BTD = block(x_BTD, table)
        logits_BTV = F.linear(self.final_norm(x_BTD), self.embedding.weight)
        if targets_BT is None:
            return logits_BTV
        wide = logits_BTV if logits_BTV.dtype.itemsize >= 4 else logits_BTV.float()
        return F.cross_entropy(wide.flatten(0, 1), targets_BT.flatten())
