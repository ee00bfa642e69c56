"""Growth of the Transformer baseline as tensors: four operators from the literature.

- `net2net` grows the width by copying units (Net2WiderNet; Chen et al. 2016, arXiv 1511.05641). A random mapping copies
  FFN units to any larger ffn_size; outgoing weights are divided by the number of copies. hidden_size grows only by
  whole multiples: LayerNorm's mean and variance over the residual stream stay the same only if every dimension is
  copied equally often. Dimensions and heads are repeated in order.
- `hypercloning` multiplies hidden_size, num_heads and ffn_size by one integer k: every linear layer is tiled k x k and
  divided by k (symmetric expansion; Samragh et al. 2024, arXiv 2409.12903).
- `stack` multiplies the depth L by an integer: new block i is old block i mod L (G_stack; Du et al. 2024, arXiv
  2405.15319).
- `identity-blocks` grows the depth with evenly spread copies of blocks that write zeros to the residual stream (LLaMA
  Pro; Wu et al. 2024, arXiv 2401.02415). Their output biases, which LLaMA does not have, are zero too.

All but `stack` preserve the function up to floating-point rounding. The head is the embedding: k copies of each
dimension make the logits k times as large, so final_norm's gain and bias are divided by k. The head width and
norm_epsilon stay the same.

Shapes: O and I are the output and input units of an old linear layer, N and M those of the new one. A `sources` vector
holds, for each new unit, the old unit that it copies.
"""

import hashlib
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from model.config import TransformerConfig, parameter_shapes
from model.errors import UserError
from model.parameter_names import FINAL_NORM, in_block, split_block
from model.transformer_sizes import WIDENING, Operator, check_transformer_growth

_AXES = {
    "attention_input": ("qkv", "hidden"),
    "projection": ("hidden", "hidden"),
    "ffn_input": ("ffn", "hidden"),
    "ffn_output": ("hidden", "ffn"),
}
"""Output and input units of each linear layer. Heads are stored in order, so their units are `hidden` units."""


def grow_transformer(
    old: TransformerConfig,
    new: TransformerConfig,
    operator: Operator,
    read: Callable[[str], Tensor],
    *,
    seed: int = 0,
    noise: float = 0.0,
) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of `new`, in the order of `parameter_shapes`, one at a time, computed from those of `old`.

    `read(name)` returns an old parameter on the CPU, in any float dtype, and the new parameters have the same dtype. It
    may be called several times for the same name. New parameters share no memory with old ones. `seed` determines the
    noise and the mapping of net2net, which differs between blocks.

    `noise` is for net2net and hypercloning. It is the root mean square of the noise on the weights of copied inputs,
    relative to the root mean square of the widened matrix; the 10 dB that the HyperCloning paper tried are 0.316. It
    sums to zero over the copies of each input, so the function stays the same: the paper's W/2 + n, W/2 - n for any
    number of copies. All matrices get noise except the embedding, where it would make the copied dimensions differ.
    Without noise, the copies of a unit get equal gradients; there is no dropout, so only rounding makes them diverge.

    Raises UserError before it reads anything: for sizes that `check_transformer_growth` rejects, for negative noise,
    and for noise with an operator that copies whole blocks.
    """
    check_transformer_growth(old, new, operator)
    if operator in WIDENING:
        if not noise >= 0:
            raise UserError(f"noise is {noise}; it must be 0 or more")
        return _widened(old, new, operator, read, seed, noise)
    if noise:
        raise UserError(f"noise is {noise}; it must be 0 for {operator}, which copies whole blocks")
    return _deepened(old, new, operator, read)


def _widened(
    old: TransformerConfig,
    new: TransformerConfig,
    operator: Operator,
    read: Callable[[str], Tensor],
    seed: int,
    noise: float,
) -> Iterator[tuple[str, Tensor]]:
    copies = new.hidden_size // old.hidden_size

    def sources(axis: str, block: str = "") -> Tensor:
        return _sources(axis, old, new, operator, f"{seed}/growth/{block}.ffn/{new.ffn_size}")

    for name, shape in parameter_shapes(new).items():
        *block, layer, kind = name.split(".")
        value = read(name).detach()
        if layer not in _AXES:  # the embedding and the norms: their last axis is the residual stream
            yield name, value[..., sources("hidden")] / (copies if layer == FINAL_NORM else 1)
            continue
        output_N, input_M = (sources(axis, ".".join(block)) for axis in _AXES[layer])
        if kind == "bias":
            yield name, value[output_N]
        else:
            yield name, _widened_matrix(value, output_N, input_M, noise, f"{seed}/growth/{name}/{list(shape)}")


def _sources(axis: str, old: TransformerConfig, new: TransformerConfig, operator: Operator, key: str) -> Tensor:
    """The old unit that each new unit of `axis` copies: all old units in order, repeated.

    For the FFN units of net2net: all old units in order, then random ones.
    """
    if axis == "ffn":
        units = torch.arange(old.ffn_size)
        if operator == "hypercloning":
            return units.repeat(new.ffn_size // old.ffn_size)
        drawn = torch.randint(old.ffn_size, (new.ffn_size - old.ffn_size,), generator=_generator(key))
        return torch.cat((units, drawn))
    hidden = torch.arange(old.hidden_size).repeat(new.hidden_size // old.hidden_size)
    return hidden if axis == "hidden" else torch.cat([hidden + part * old.hidden_size for part in range(3)])


def _widened_matrix(weight_OI: Tensor, output_N: Tensor, input_M: Tensor, noise: float, key: str) -> Tensor:
    """The (N, M) matrix that computes the same as `weight_OI` on copies of its inputs and outputs."""
    copies_I = input_M.bincount(minlength=weight_OI.shape[1]).to(weight_OI.dtype)
    copies_M = copies_I[input_M]
    widened_NM = weight_OI[output_N[:, None], input_M] / copies_M
    if noise:
        noise_NM = torch.empty_like(widened_NM).normal_(generator=_generator(key))
        sum_NI = noise_NM.new_zeros(len(output_N), len(copies_I)).index_add_(1, input_M, noise_NM)
        noise_NM -= (sum_NI / copies_I)[:, input_M]  # exactly zero for inputs with one copy
        noise_NM *= (copies_M / (copies_M - 1).clamp_min(1)).sqrt()  # variance 1 again
        root_mean_square = torch.linalg.vector_norm(widened_NM) / math.sqrt(widened_NM.numel())
        widened_NM += noise * root_mean_square * noise_NM
    return widened_NM


def _deepened(
    old: TransformerConfig, new: TransformerConfig, operator: Operator, read: Callable[[str], Tensor]
) -> Iterator[tuple[str, Tensor]]:
    blocks = _block_sources(old.num_layers, new.num_layers, operator)
    for name in parameter_shapes(new):
        place = split_block(name)
        if place is None:
            yield name, read(name).detach().clone()
            continue
        block, inner_name = place
        source, is_identity = blocks[block]
        value = read(in_block(source, inner_name)).detach()
        writes = inner_name.startswith(("projection.", "ffn_output."))
        yield name, torch.zeros_like(value) if is_identity and writes else value.clone()


def _block_sources(old_depth: int, new_depth: int, operator: Operator) -> list[tuple[int, bool]]:
    """For each new block: the old block that it copies, and whether it writes zeros to the residual stream.

    Identity blocks are placed as in LLaMA Pro: the old blocks are divided into as many even groups as blocks are added,
    and each group is followed by a copy of its last block.
    """
    if operator == "stack":
        return [(i % old_depth, False) for i in range(new_depth)]
    added = new_depth - old_depth
    last = {(group + 1) * old_depth // added - 1 for group in range(added)}
    return [(i, is_identity) for i in range(old_depth) for is_identity in ([False, True] if i in last else [False])]


def _generator(key: str) -> torch.Generator:
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
