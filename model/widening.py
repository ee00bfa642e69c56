"""Widening of decoders as tensors: HyperCloning (Samragh et al. 2024, arXiv 2409.12903).

Width, heads and FFN units grow by one whole factor k; the width of a head stays, and with it the rotary embedding and
1/sqrt(E). Every matrix is tiled k x k and divided by k, every vector is repeated. k copies of each dimension have the
same mean and mean square, so both norms compute what they did. The head takes k times the dimensions: its weight is
divided by k or, if it is the embedding, the final norm's gain and bias are. So the function stays, up to rounding.

Shapes: N units and D width of an old matrix, C copies.
"""

import math

import torch
from torch import Tensor

from model.decoder_config import DecoderConfig
from model.depth import WRITES_RESIDUAL
from model.initialization import generator_of
from model.parameter_names import EMBEDDING, FINAL_NORM, HEAD, HEAD_BIAS, POSITIONS, PartName


def widened(name: str, value: Tensor, config: DecoderConfig, factor: int, noise: float = 0.0, seed: int = 0) -> Tensor:
    """The parameter `name` of `config`, with `factor` times the width; it shares no memory with `value`.

    `noise` is the root mean square of the noise on the weights of copied inputs, relative to the root mean square of
    the widened matrix; the 10 dB that the HyperCloning paper tried are 0.316. It sums to zero over the copies of each
    input, so the function stays the same: the paper's W/2 + n, W/2 - n for any number of copies. All matrices get noise
    except the embedding and the head. Without noise, the copies of a unit get equal gradients; there is no dropout, so
    only rounding makes them diverge. `seed` determines what is drawn.
    """
    if name == EMBEDDING and config.image:
        return value.repeat(factor, 1)
    if name == HEAD_BIAS:
        return value.clone()
    if name in (EMBEDDING, POSITIONS, HEAD):
        return value.repeat(1, factor) / (factor if name == HEAD else 1)
    part = PartName.parse(name)
    if part is None:
        tied_norm = config.tie_embeddings and name.startswith(FINAL_NORM)
        return value.repeat(factor) / (factor if tied_norm else 1)
    if value.ndim == 1:  # queries and keys are normalised head by head
        return value.clone() if part.part in ("query_norm", "key_norm") else value.repeat(factor)
    tiled_ND = value.repeat(factor, factor) / factor
    if noise:
        inputs_ND = tiled_ND.mT if part.part in WRITES_RESIDUAL else tiled_ND  # its input is the last dimension
        noise_NCD = torch.empty(inputs_ND.shape).normal_(generator=generator_of(f"{seed}/growth/{name}/{factor}"))
        noise_NCD = noise_NCD.unflatten(1, (factor, -1))
        noise_NCD = (noise_NCD - noise_NCD.mean(1, keepdim=True)) * math.sqrt(factor / (factor - 1))  # variance 1 again
        root_mean_square = torch.linalg.vector_norm(tiled_ND) / math.sqrt(tiled_ND.numel())
        inputs_ND += noise * root_mean_square * noise_NCD.flatten(1)
    return tiled_ND
