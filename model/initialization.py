"""Initial values of parameters, each drawn from the seed and its own name, independent of order.

The same function initialises a new model and draws the tokens of a later generation.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from model.decoder import Decoder
from model.language_model import LanguageModel
from model.parameter_names import CLASS_TOKEN, PartName
from model.shapes import ModelConfig, parameter_shape
from model.tokenformer import Tokenformer
from model.tokenformer_config import TokenformerConfig


def initial_parameter(name: str, config: ModelConfig, seed: int) -> Tensor:
    """The initial value of parameter `name`, float32 on the CPU.

    L is the number of layers, D the model width.

    - Tokenformer: keys normal(0, 0.02), values normal(0, 2 / L / sqrt(D)), as `wang_init` in the official code.
    - Decoder: matrices normal(0, sqrt(2 / 5D)), or normal(0, 2 / L / sqrt(D)) if they write to the residual stream,
      as `small_init` and `wang_init` in GPT-NeoX; biases 0.
    - Both: embedding and head normal(0, 0.02), norm gains 1, norm biases 0.
    - Images: positions and class token normal(0, 0.02) too, other biases 0, as in the ViT of Hugging Face
      (`ViTPreTrainedModel`, which truncates the distribution).
    """
    return _drawn(name, parameter_shape(name, config), config, seed)


def initial_rms(name: str, config: ModelConfig) -> float:
    """The root mean square of a parameter's initial values, which are random or, of gains, 1."""
    width, depth = config.hidden_size, config.num_layers
    part = PartName.parse(name)
    if "norm.weight" in name:
        return 1.0
    if part is None or part.kind == "key_tokens":
        return 0.02
    if part.kind == "value_tokens" or part.part in ("projection", "down"):
        return 2 / depth / math.sqrt(width)
    return math.sqrt(2 / (5 * width))


def _drawn(name: str, shape: Sequence[int], config: ModelConfig, seed: int) -> Tensor:
    if len(shape) == 1 and name != CLASS_TOKEN:
        return torch.full(shape, 1.0 if "norm.weight" in name else 0.0)
    return torch.empty(shape).normal_(0.0, initial_rms(name, config), generator=generator_of(f"{seed}/{name}"))


def generator_of(key: str) -> torch.Generator:
    """Random numbers that depend on `key` alone."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def build_model(config: ModelConfig, *, seed: int | None = None, device: str | torch.device = "cpu") -> LanguageModel:
    """The model of `config` in float32 on `device` (`meta` allocates nothing). Without a seed, parameters are empty."""
    with torch.device(device):
        model = Tokenformer(config) if isinstance(config, TokenformerConfig) else Decoder(config)
    if seed is not None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(_drawn(name, parameter.shape, config, seed))
    return model
