"""Exact FLOP counts, computed from the configuration alone.

Imports no torch.

Only matrix products count, with 2 FLOPs per multiply-add, as in `torch.utils.flop_counter`; element-wise operations do
not. Attention counts as the full T x T, although the causal mask needs only half; within documents, as the full square
of each document's part of the sequence. In a layer with a window, a token counts as many tokens as the window has, if
that is fewer. A backward pass counts as two forward passes.
"""

import math
from dataclasses import dataclass

from model.parameter_names import EMBEDDING, HEAD, POSITIONS
from model.shapes import ModelConfig, parameter_shapes, unread_parameters
from model.tokenformer_config import TokenformerConfig, pattention_widths


@dataclass(frozen=True)
class Flops:
    """FLOPs by part. Supports addition, and multiplication by a number."""

    parameters: float
    """Products with the parameter tokens that are read (Tokenformer), and with the mean keys that route; or with weight
    matrices (decoder). The embedding of patches."""

    attention: float
    """Token-token products: Q K^T and scores V, full T x T, or the documents or windows in it."""

    head: float
    """The output head, hidden_size x vocab_size: for every data token of text, once an image."""

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return self.parameters + self.attention + self.head

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(self.parameters + other.parameters, self.attention + other.attention, self.head + other.head)

    def __mul__(self, factor: float) -> "Flops":
        return Flops(self.parameters * factor, self.attention * factor, self.head * factor)

    __rmul__ = __mul__


def forward_flops_per_token(config: ModelConfig, attended_tokens: float) -> Flops:
    """FLOPs of a forward pass per data token.

    `attended_tokens`: with how many data tokens a token is multiplied in attention: the sequence length or, for a model
    that attends within documents, the mean length of a token's document within its sequence. Then a layer with a window
    counts the smaller of this mean and the window, which is the most that it can be: the lengths are not known here.
    What an image costs is this times the data tokens of an image.
    """
    matrices = (
        math.prod(shape)
        for name, shape in parameter_shapes(config).items()
        if len(shape) == 2 and name not in (EMBEDDING, POSITIONS, HEAD)
    )
    aside = _router_flops_per_token(config) + _patch_flops_per_token(config)
    attended = [window or attended_tokens for window in config.windows(attended_tokens)]
    heads_per_token = 1 if config.image is None else 1 / config.image.sequence_length
    return Flops(
        parameters=2.0 * (sum(matrices) - unread_parameters(config)) + aside,
        attention=4.0 * sum(attended) * config.num_heads * config.head_width,
        head=2.0 * config.hidden_size * config.vocab_size * heads_per_token,
    )


def training_flops_per_token(config: ModelConfig, attended_tokens: float) -> Flops:
    """FLOPs of a forward and a backward pass per data token. Pixels need no gradient, and routing has none."""
    without_gradient = _patch_flops_per_token(config) + 2 * _router_flops_per_token(config)
    return 3 * forward_flops_per_token(config, attended_tokens) + Flops(-without_gradient, 0, 0)


def recomputed_flops_per_token(config: ModelConfig, attended_tokens: float) -> float:
    """FLOPs per data token that activation checkpointing adds to training: another forward pass through the blocks.

    The hardware does them, but they are no part of training FLOPs.
    """
    forward = forward_flops_per_token(config, attended_tokens)
    return forward.total - forward.head - _patch_flops_per_token(config)


def _router_flops_per_token(config: ModelConfig) -> float:
    """FLOPs of the affinities between a data token and the groups of all routed generations."""
    if not isinstance(config, TokenformerConfig):
        return 0.0
    groups = ((name, g.routing.groups) for name, p in config.pattentions() for g in p.generations if g.routing)
    return 2.0 * sum(number * pattention_widths(config, name)[0] for name, number in groups)


def _patch_flops_per_token(config: ModelConfig) -> float:
    """FLOPs of the embedding of patches in a forward pass, over all data tokens of an image; 0 for text."""
    image = config.image
    if image is None:
        return 0.0
    return 2.0 * image.num_patches * image.patch_values * config.hidden_size / image.sequence_length
