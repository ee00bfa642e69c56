"""The KV cache: keys and values of the positions that a model has read, so that new ones do not compute them again.

Shapes: L layers, B batch, K heads of keys and values, T new positions, C columns of the cache, E head width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.documents import attention_mask, last_starts
from model.errors import UserError
from model.shapes import ModelConfig


class LayerCache(NamedTuple):
    """One layer's part of the cache in one forward pass: where it stores new keys, and what its queries may see."""

    keys_BKCE: Tensor
    values_BKCE: Tensor
    length: int
    """Columns that were filled before this forward pass."""

    first: int
    """The first column that any query sees: above 0 in a layer with a window."""

    mask_BHTC: Tensor | None
    """What attention adds to its scores (model/documents.py); H is 1. None: `is_causal` says it all."""

    is_causal: bool

    def append(self, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the keys and values of new positions; returns views of the filled columns that any query sees."""
        end = self.length + k_BKTE.shape[2]
        self.keys_BKCE[:, :, self.length : end] = k_BKTE
        self.values_BKCE[:, :, self.length : end] = v_BKTE
        return self.keys_BKCE[:, :, self.first : end], self.values_BKCE[:, :, self.first : end]


class KVCache:
    """Keys and values of all layers in two tensors that never change their shape; `LanguageModel.new_cache` makes one.

    Each forward pass with the cache appends a batch of positions of all rows. Rows of unequal length are padded on the
    left: `starts_B` holds the number of padding columns of each row. Padding may be any token id. A padded row gives
    the logits of the row alone, those at padding columns mean nothing.

    The cache also holds where the document of each column begins; without a document mask, a row is one document.

    Attention reads views of the filled columns, so its shapes grow with the text. The cache keeps all positions in
    layers with a window too, which read those within it. Raises UserError for a model of images.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        num_columns: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        starts_B: Tensor | None = None,
    ) -> None:
        if config.image is not None:
            raise UserError("a model of images reads an image at once; it has no KV cache and generates no text")
        shape = (config.num_layers, batch_size, config.num_kv_heads, num_columns, config.head_width)
        self.keys_LBKCE, self.values_LBKCE = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.starts_B = starts_B.to(device) if starts_B is not None and starts_B.any() else None
        self.length = 0
        """Columns filled so far, padding included."""

        self._config, self._end_id = config, config.document_end_id
        self._has_starts = self._end_id is not None or self.starts_B is not None
        """Whether documents or padding make a column other than the first the start of a document."""
        self._document_starts_BC = torch.zeros((batch_size, num_columns), dtype=torch.int64, device=device)
        self._ended_B = torch.ones(batch_size, dtype=torch.bool, device=device)
        """Whether the column before the next one ends a document; true at the start."""

    @property
    def num_columns(self) -> int:
        """The most columns that the cache can hold, padding included."""
        return self.keys_LBKCE.shape[3]

    def begin_with(self, row: "KVCache") -> None:
        """Fills the first columns of every row with those of the cache `row`, which holds one row without padding."""
        self.length = row.length
        self.keys_LBKCE[:, :, :, : row.length] = row.keys_LBKCE[:, :, :, : row.length]
        self.values_LBKCE[:, :, :, : row.length] = row.values_LBKCE[:, :, :, : row.length]
        self._document_starts_BC[:, : row.length] = row._document_starts_BC[:, : row.length]
        self._ended_B[:] = row._ended_B

    def positions(self, input_ids_BT: Tensor) -> Tensor:
        """The positions of the next columns, int64: (T,) or, where rows differ, (B, 1, T). Padding has no meaning.

        Stores where their documents begin, if the model needs it. Raises ValueError if the columns do not fit.
        """
        num_new = input_ids_BT.shape[1]
        end = self._end(num_new)
        column_T = torch.arange(self.length, end, device=self.keys_LBKCE.device)
        if not self._has_starts:
            return column_T
        self._add_documents(input_ids_BT, column_T)
        return (column_T - self._document_starts_BC[:, self.length : end])[:, None]

    def layers(self, num_new: int) -> list[LayerCache]:
        """What each layer needs to append `num_new` columns, whose `positions` were asked for before."""
        end = self._end(num_new)
        windows = self._config.windows(end)
        views = {window: self._view(end, window) for window in set(windows)}
        return [
            LayerCache(keys_BKCE, values_BKCE, self.length, *views[window])
            for keys_BKCE, values_BKCE, window in zip(self.keys_LBKCE, self.values_LBKCE, windows, strict=True)
        ]

    def _view(self, end: int, window: int | None) -> tuple[int, Tensor | None, bool]:
        """The last fields of a `LayerCache` for the layers with that window, which is below `end`."""
        first = max(0, self.length + 1 - window) if window else 0
        several = end - self.length > 1
        # Without padding, a single new position sees all keys, and a first forward pass is the ordinary causal one.
        if not (self._has_starts or (several and (self.length > 0 or window))):
            return first, None, several
        starts_BC = self._document_starts_BC[:, first:end]
        return (
            first,
            attention_mask(starts_BC[:, self.length - first :], starts_BC, self.keys_LBKCE.dtype, window),
            False,
        )

    def _end(self, num_new: int) -> int:
        end = self.length + num_new
        if end > self.num_columns:
            raise ValueError(f"the cache holds {self.num_columns} positions; {self.length} + {num_new} do not fit")
        return end

    def _add_documents(self, input_ids_BT: Tensor, column_T: Tensor) -> None:
        """Stores where the documents of new columns begin. The first column after a row's padding begins one."""
        ends_BT = input_ids_BT.eq(-1 if self._end_id is None else self._end_id)
        begins_BT = torch.cat((self._ended_B[:, None], ends_BT[:, :-1]), dim=1)
        if self.starts_B is not None:
            begins_BT = begins_BT | (column_T == self.starts_B[:, None])
        starts_BT = last_starts(begins_BT, column_T)
        if self.length:
            starts_BT = starts_BT.maximum(self._document_starts_BC[:, self.length - 1, None])
        self._document_starts_BC[:, self.length : self.length + len(column_T)] = starts_BT
        self._ended_B = ends_BT[:, -1].clone()

    def advance(self, num_new: int) -> None:
        """Counts `num_new` columns as filled, once all layers have appended them."""
        self.length += num_new
