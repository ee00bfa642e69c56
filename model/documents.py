"""What a data token may attend to: its own document, whose beginning the token ids tell, and a window of positions.

A document ends with the end of text; the next token begins another one. A sequence may begin inside a document. A model
with a `document_end_id` attends within documents only, and counts positions from the start of each.

On GPUs, FlexAttention (arXiv 2412.05496) computes only the blocks of scores in which a query sees a key, and stores no
mask of T x T. It has no backward pass on CPUs.

Shapes: B batch, T sequence, C columns of keys, H heads (1: the same for all), K heads of keys and values, E head width.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

AttentionMask = Union[Tensor, "BlockMask"]

FLEX_HEAD_WIDTH = 16
"""FlexAttention takes no narrower heads."""


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
    visible_BTC = _sees(query_starts_BT[:, :, None], key_starts_BC[:, None], query_T1, key_C, window)
    mask_BTC = torch.zeros(visible_BTC.shape, dtype=dtype, device=visible_BTC.device)
    return mask_BTC.masked_fill_(~visible_BTC, float("-inf"))[:, None]


def block_mask(start_BT: Tensor, window: int | None) -> "BlockMask":
    """What `attention_mask` says of whole sequences, in blocks for `attention_in_blocks`."""

    def sees(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return _sees(start_BT[row, query], start_BT[row, key], query, key, window)

    (num_rows, length), device = start_BT.shape, str(start_BT.device)
    made: BlockMask = _compiled("create_block_mask")(sees, num_rows, None, length, length, device)
    return made


def attention_in_blocks(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, mask: "BlockMask") -> Tensor:
    """Softmax attention scaled by 1/sqrt(E) under a `block_mask`: (B, H, T, E), in the inputs' dtype. Raises
    NotImplementedError for gradients on a CPU, and ValueError for heads narrower than FLEX_HEAD_WIDTH."""
    grouped = q_BHTE.shape[1] != k_BKTE.shape[1]
    out_BHTE: Tensor = _compiled("flex_attention")(q_BHTE, k_BKTE, v_BKTE, block_mask=mask, enable_gqa=grouped)
    return out_BHTE


def _sees(query_start: Tensor, key_start: Tensor, query: Tensor, key: Tensor, window: int | None) -> Tensor:
    """Whether the query at a place sees the key at another, given where the documents of both begin."""
    sees = (query_start == key_start) & (key <= query)
    return sees if window is None else sees & (key > query - window)


def _compiled(name: str) -> Callable[..., Any]:
    """A function of FlexAttention that compiles itself unless a compiled block calls it, and so makes no T x T."""
    from torch.nn.attention import flex_attention  # on use: it imports torch's compiler, for 2 seconds

    function: Callable[..., Any] = getattr(flex_attention, name)
    return function if torch.compiler.is_compiling() else _compiled_once(function)


@functools.cache
def _compiled_once(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)
