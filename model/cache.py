"""The KV cache: keys and values of the positions that a model has read, so that new ones do not compute them again.

Shapes: L layers, B batch, H heads, T new positions, C columns of the cache, E head width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.config import TokenformerConfig, TransformerConfig


class LayerCache(NamedTuple):
    """One layer's part of the cache in one forward pass: where it stores new keys, and what its queries may see."""

    keys_BHCE: Tensor
    values_BHCE: Tensor
    length: int
    """Columns that were filled before this forward pass."""

    mask_BHTC: Tensor | None
    """True where a query may see a key; H is 1, and so is B if no row is padded. None: `is_causal` says it all."""

    is_causal: bool

    def append(self, k_BHTE: Tensor, v_BHTE: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the keys and values of new positions; returns views of all filled columns."""
        end = self.length + k_BHTE.shape[2]
        self.keys_BHCE[:, :, self.length : end] = k_BHTE
        self.values_BHCE[:, :, self.length : end] = v_BHTE
        return self.keys_BHCE[:, :, :end], self.values_BHCE[:, :, :end]


class KVCache:
    """Keys and values of all layers in two tensors that never change their shape; `LanguageModel.new_cache` makes one.

    Each forward pass with the cache appends a batch of positions of all rows. Rows of unequal length are padded on the
    left: `starts_B` holds the number of padding columns of each row. Padding may be any token id. A padded row gives
    the logits of the row alone, those at padding columns mean nothing.

    Attention reads views of the filled columns, so its shapes grow with the text.
    """

    def __init__(
        self,
        config: TokenformerConfig | TransformerConfig,
        batch_size: int,
        num_columns: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        starts_B: Tensor | None = None,
    ) -> None:
        shape = (config.num_layers, batch_size, config.num_heads, num_columns, config.head_width)
        self.keys_LBHCE, self.values_LBHCE = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.starts_B = starts_B.to(device) if starts_B is not None and starts_B.any() else None
        self.length = 0
        """Columns filled so far, padding included."""

    @property
    def num_columns(self) -> int:
        """The most columns that the cache can hold, padding included."""
        return self.keys_LBHCE.shape[3]

    def begin_with(self, row: "KVCache") -> None:
        """Fills the first columns of every row with those of the cache `row`, which holds one row without padding."""
        self.length = row.length
        self.keys_LBHCE[:, :, :, : row.length] = row.keys_LBHCE[:, :, :, : row.length]
        self.values_LBHCE[:, :, :, : row.length] = row.values_LBHCE[:, :, :, : row.length]

    def positions(self, num_new: int) -> Tensor:
        """The positions of the next `num_new` columns, int64: (T,) or, with padding, (B, 1, T). Padding is at 0."""
        column_T = torch.arange(self.length, self.length + num_new, device=self.keys_LBHCE.device)
        if self.starts_B is None:
            return column_T
        return (column_T - self.starts_B[:, None, None]).clamp_min(0)

    def layers(self, num_new: int) -> list[LayerCache]:
        """What each layer needs to append `num_new` columns. Raises ValueError if they do not fit."""
        end = self.length + num_new
        if end > self.num_columns:
            raise ValueError(f"the cache holds {self.num_columns} positions; {self.length} + {num_new} do not fit")
        # Without padding, a single new position sees all keys, and a first forward pass is the ordinary causal one.
        needs_mask = self.starts_B is not None or (self.length > 0 and num_new > 1)
        mask_BHTC = self._mask(end) if needs_mask else None
        is_causal = not needs_mask and num_new > 1
        return [
            LayerCache(keys_BHCE, values_BHCE, self.length, mask_BHTC, is_causal)
            for keys_BHCE, values_BHCE in zip(self.keys_LBHCE, self.values_LBHCE, strict=True)
        ]

    def _mask(self, end: int) -> Tensor:
        key_C = torch.arange(end, device=self.keys_LBHCE.device)
        query_T1 = key_C[self.length :, None]
        visible_TC = key_C <= query_T1
        if self.starts_B is None:
            return visible_TC[None, None]
        # A padding position sees itself: a softmax over nothing would be NaN.
        return visible_TC & ((key_C >= self.starts_B[:, None, None, None]) | (key_C == query_T1))

    def advance(self, num_new: int) -> None:
        """Counts `num_new` columns as filled, once all layers have appended them."""
        self.length += num_new
