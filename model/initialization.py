"""Initial values of parameters, each drawn from the seed and its own name, independent of order.

The same function initialises a new model and draws the tokens of a later generation.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from model.config import TokenformerConfig, TransformerConfig, parameter_shape
from model.language_model import LanguageModel
from model.parameter_names import EMBEDDING, TokensName
from model.tokenformer import Tokenformer
from model.transformer import Transformer


def initial_parameter(name: str, config: TokenformerConfig | TransformerConfig, seed: int) -> Tensor:
    """The initial value of parameter `name`, float32 on the CPU.

    L is the number of layers, D the model width.

    - Tokenformer: keys normal(0, 0.02), values normal(0, 2 / L / sqrt(D)), as `wang_init` in the official code.
    - Transformer: matrices normal(0, sqrt(2 / 5D)), or normal(0, 2 / L / sqrt(D)) if they write to the residual stream,
      as `small_init` and `wang_init` in GPT-NeoX; biases 0.
    - Both: embedding normal(0, 0.02), norm gains 1, norm biases 0.
    """
    return _drawn(name, parameter_shape(name, config), config, seed)


def initial_std(name: str, config: TokenformerConfig | TransformerConfig) -> float:
    """The standard deviation with which a matrix or the tokens of a generation are drawn."""
    width, depth = config.hidden_size, config.num_layers
    tokens = TokensName.parse(name)
    if name == EMBEDDING or (tokens and tokens.kind == "key"):
        return 0.02
    if tokens or name.endswith(("projection.weight", "ffn_output.weight")):
        return 2 / depth / math.sqrt(width)
    return math.sqrt(2 / (5 * width))


def _drawn(name: str, shape: Sequence[int], config: TokenformerConfig | TransformerConfig, seed: int) -> Tensor:
    if len(shape) == 1:
        return torch.full(shape, 1.0 if name.endswith("norm.weight") else 0.0)
    return torch.empty(shape).normal_(0.0, initial_std(name, config), generator=generator_of(f"{seed}/{name}"))


def generator_of(key: str) -> torch.Generator:
    """Random numbers that depend on `key` alone."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def build_model(
    config: TokenformerConfig | TransformerConfig,
    *,
    seed: int | None = None,
    device: str | torch.device = "cpu",
) -> LanguageModel:
    """The model of `config` in float32 on `device` (`meta` allocates nothing). Without a seed, parameters are empty."""
    with torch.device(device):
        model = Tokenformer(config) if isinstance(config, TokenformerConfig) else Transformer(config)
    if seed is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(_drawn(name, parameter.shape, config, seed))
    return model
