"""Growth of the Transformer baseline as tensors, in width and in depth.

All but copies of blocks preserves the function up to floating-point rounding:

- hidden_size, num_heads and ffn_size grow by one whole factor k (HyperCloning; Samragh et al. 2024, arXiv 2409.12903):
  every linear layer is tiled k x k and divided by k. The head is the embedding: k copies of each dimension make the
  logits k times as large, so final_norm's gain and bias are divided by k.
- More FFN units are appended, new blocks are placed by `growth.depth` (model/depth.py). Both are drawn as in a new
  model, but what they would add to the residual stream is zero. `copy-stack` and `copy-middle` copy blocks instead.

The head width, and with it the rotary embedding and 1/sqrt(E), stays the same.

Shapes: O and I are the output and input units of an old linear layer, N and M those of the new one; C copies.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from model.config import TransformerConfig, parameter_shapes
from model.depth import COPYING, Depth, block_order, check_transformer_growth, copied_layer
from model.initialization import generator_of, initial_parameter
from model.parameter_names import EMBEDDING, FINAL_NORM, in_block, split_block


def grow_transformer(
    old: TransformerConfig,
    new: TransformerConfig,
    read: Callable[[str], Tensor],
    *,
    depth: Depth = "append",
    noise: float = 0.0,
    seed: int = 0,
) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of `new`, in the order of `parameter_shapes`, one at a time, computed from those of `old`.

    `read(name)` returns an old parameter on the CPU, in any float dtype; what is computed from it has the same. New
    parameters share no memory with old ones. `seed` determines what is drawn.

    `noise` is the root mean square of the noise on the weights of copied inputs, relative to the root mean square of
    the widened matrix; the 10 dB that the HyperCloning paper tried are 0.316. It sums to zero over the copies of each
    input, so the function stays the same: the paper's W/2 + n, W/2 - n for any number of copies. All matrices get noise
    except the embedding, where it would make the copied dimensions differ. Without noise, the copies of a unit get
    equal gradients; there is no dropout, so only rounding makes them diverge.

    Raises UserError for sizes that `check_transformer_growth` rejects.
    """
    check_transformer_growth(old, new, depth)
    copies = new.hidden_size // old.hidden_size
    new_layers = new.num_layers - old.num_layers
    blocks = block_order(depth, old.num_layers, new_layers)
    for name, shape in parameter_shapes(new).items():
        source, is_drawn = name, False
        if place := split_block(name):
            is_new, number = blocks[place[0]]
            is_copy = is_new and depth in COPYING
            number = copied_layer(depth, old.num_layers, new_layers, number) if is_copy else number % old.num_layers
            source, is_drawn = in_block(number, place[1]), is_new and not is_copy
        value = read(source).detach()
        widened = _widened(name, value, copies, noise, f"{seed}/growth/{name}/{list(shape)}")
        if is_drawn or widened.shape != shape:
            writes = place and place[1].startswith(("projection", "ffn_output"))
            whole = (torch.zeros(shape) if writes else initial_parameter(name, new, seed)).to(value.dtype)
            if not is_drawn:
                whole[tuple(map(slice, widened.shape))] = widened
            widened = whole
        yield name, widened


def _widened(name: str, value: Tensor, copies: int, noise: float, key: str) -> Tensor:
    """The parameter that computes the same as `value` on `copies` of its inputs and outputs, in order."""
    if name == EMBEDDING:
        return value.repeat(1, copies)
    parts = value.unflatten(0, (3 if ".attention_input." in name else 1, -1))  # queries, keys, values
    if value.ndim == 1:
        return parts.repeat(1, copies).flatten() / (copies if name.startswith(FINAL_NORM) else 1)
    widened_NM = parts.repeat(1, copies, copies).flatten(0, 1) / copies
    if noise and copies > 1:
        noise_NCI = torch.empty_like(widened_NM).normal_(generator=generator_of(key)).unflatten(1, (copies, -1))
        noise_NCI = (noise_NCI - noise_NCI.mean(1, keepdim=True)) * math.sqrt(copies / (copies - 1))  # variance 1 again
        root_mean_square = torch.linalg.vector_norm(widened_NM) / math.sqrt(widened_NM.numel())
        widened_NM += noise * root_mean_square * noise_NCI.flatten(1)
    return widened_NM
