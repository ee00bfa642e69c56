"""What a data token may attend to: its own document, whose beginning the token ids tell, and a window of positions.

A document ends with the end of text; the next token begins another one. A sequence may begin inside a document. A model
with a `document_end_id` attends within documents only, and counts positions from the start of each.

Shapes: B batch, T sequence, C columns of keys, H heads (1: the same for all).
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def document_starts(input_ids_BT: Tensor, end_id: int) -> Tensor:
    """The place where the document of each token begins in its row, or 0 if it begins before: (B, T) int64."""
    begins_BT = F.pad(input_ids_BT[:, :-1] == end_id, (1, 0), value=True)
    return last_starts(begins_BT, torch.arange(input_ids_BT.shape[1], device=input_ids_BT.device))


def last_starts(begins_BT: Tensor, place_T: Tensor) -> Tensor:
    """The last of the places up to each token at which a document begins, 0 if there is none: (B, T) int64."""
    return torch.where(begins_BT, place_T, 0).cummax(dim=1).values


def attention_mask(
    query_starts_BT: Tensor, key_starts_BC: Tensor, dtype: torch.dtype, window: int | None = None
) -> Tensor:
    """What attention adds to its scores: 0 where a query may see a key, else -inf: (B, 1, T, C) in `dtype`.

    The queries are the last T of the C columns. A query sees its own document up to itself, and of that the last
    `window` positions. Layers with the same window share one mask: from a boolean one, each layer would make such a
    tensor of its own and save it for the backward pass.
    """
    num_queries, num_keys = query_starts_BT.shape[1], key_starts_BC.shape[1]
    key_C = torch.arange(num_keys, device=key_starts_BC.device)
    query_T1 = key_C[-num_queries:, None]
    visible_BTC = (query_starts_BT[:, :, None] == key_starts_BC[:, None]) & (key_C <= query_T1)
    if window is not None:
        visible_BTC &= key_C > query_T1 - window
    mask_BTC = torch.zeros(visible_BTC.shape, dtype=dtype, device=visible_BTC.device)
    return mask_BTC.masked_fill_(~visible_BTC, float("-inf"))[:, None]
