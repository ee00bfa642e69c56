"""Bytes that a forward and backward pass take beside the parameters, from the configuration alone. No torch here.

What autograd keeps is written out operation by operation, as tables in the docstrings, for each data token: b is the
width of an element (2 in bf16, 4 in float32). The rest of the file adds it up. What comes and goes within an operation
is counted where it is largest: in the loss, and in the backward pass of a block's widest layer.

On CUDA statistics of norms are float32 and attention runs in the model's precision; on a CPU the statistics have the
model's precision and attention runs in float32 (model/attention.py).
"""

from dataclasses import dataclass
from typing import Literal

from model.config import PattentionConfig, ScoreFunction, TokenformerConfig, TransformerConfig

Precision = Literal["bf16", "fp32"]
DeviceType = Literal["cuda", "cpu"]

BYTES: dict[Precision, int] = {"bf16": 2, "fp32": 4}
FLOAT32 = 4
INT64 = 8


@dataclass(frozen=True)
class PassMemory:
    """Bytes of one micro-batch's forward and backward pass."""

    activations: int
    """What autograd keeps from the forward pass for the backward pass."""

    at_loss: int
    """What is alive beside the activations where the backward pass begins."""

    in_blocks: int
    """The same in the backward pass of the blocks, at its fullest: what it needs less what is free by then."""

    forward: int
    """The most that is alive in a forward pass alone, without gradients."""


@dataclass(frozen=True)
class Shape:
    """What the bytes of a layer depend on beside its own sizes."""

    width: int
    num_heads: int
    precision: Precision
    device: DeviceType

    @property
    def element(self) -> int:
        """Bytes of an element of the model's tensors, b."""
        return BYTES[self.precision]

    @property
    def statistic(self) -> int:
        """Bytes of a norm layer's mean, or of its deviation."""
        return FLOAT32 if self.device == "cuda" else self.element

    @property
    def attention_element(self) -> int:
        """Bytes of an element within token-token attention."""
        return self.element if self.device == "cuda" else FLOAT32


@dataclass(frozen=True)
class BlockBytes:
    """What the passes through one block take."""

    saved: int
    """Kept for the backward pass, for each data token."""

    joined: int
    """Kept, whatever the batch."""

    temporary: int
    """The most that its backward pass takes beside what is kept, for each data token."""


@dataclass(frozen=True)
class ModelBytes:
    """What a configuration's passes take, worked out once for batches of every size."""

    blocks: tuple[BlockBytes, ...]
    end: int
    """Kept by the final norm and the loss, for each data token."""

    at_loss: int
    """Beside that, where the backward pass begins, for each data token."""

    rotary: int
    """Cosines and sines, for each position."""

    forward: int
    """The most in a forward pass alone, for each data token."""

    def of(self, micro_batch_size: int, sequence_length: int) -> PassMemory:
        """Bytes of a pass over `micro_batch_size` sequences of `sequence_length` data tokens."""
        num_tokens = micro_batch_size * sequence_length
        end = num_tokens * self.end
        in_blocks, freed = -end, end
        for block in reversed(self.blocks):  # the backward pass frees block after block
            in_blocks = max(in_blocks, num_tokens * block.temporary - freed)
            freed += num_tokens * block.saved + block.joined
        return PassMemory(
            activations=freed + sequence_length * self.rotary + num_tokens * 2 * INT64,
            at_loss=num_tokens * self.at_loss,
            in_blocks=in_blocks,
            forward=num_tokens * self.forward,
        )


def model_bytes(
    config: TokenformerConfig | TransformerConfig, precision: Precision, device: DeviceType = "cuda"
) -> ModelBytes:
    """What passes of `config` take in that precision."""
    shape = Shape(config.hidden_size, config.num_heads, precision, device)
    return ModelBytes(
        blocks=_blocks(config, shape),
        end=norm_bytes(shape) + FLOAT32 * config.vocab_size,  # log-probabilities are float32
        at_loss=loss_temporary(config.vocab_size),
        rotary=2 * FLOAT32 * config.rotary_width,
        forward=forward_bytes(config, shape),
    )


def forward_bytes(config: TokenformerConfig | TransformerConfig, shape: Shape) -> int:
    """The most in a forward pass without gradients, for each data token: at its end, or inside the widest layer.

    At the end there are logits, in float32 too, and their log-probabilities; inside a layer GELU, its input and, in a
    Pattention, the scores that this comes from.
    """
    logits = (shape.element + (FLOAT32 if shape.element < FLOAT32 else 0) + FLOAT32) * config.vocab_size
    if isinstance(config, TransformerConfig):
        return max(logits, 2 * shape.element * config.ffn_size)
    widest = max(p.num_tokens for block in config.blocks for p in block.pattentions().values())
    return max(logits, 3 * shape.element * widest)


def norm_bytes(shape: Shape) -> int:
    """A LayerNorm, for each data token: its input, mean and deviation, and its output for the product behind it.

    | kept | bytes |
    |---|---|
    | input | b D |
    | mean, 1 / deviation | 2 statistics |
    | output | b D |
    """
    return 2 * shape.element * shape.width + 2 * shape.statistic


def attention_bytes(shape: Shape, value_width: int) -> int:
    """Token-token attention, for each data token, a the width of its elements.

    | kept | bytes |
    |---|---|
    | rotated queries and keys | 2 a D |
    | values, within a tensor of `value_width` | a `value_width` |
    | output, head by head | a D |
    | log of the softmax's denominators | 4 H |
    | output as the projection's input | b D |
    """
    inside = shape.attention_element * (3 * shape.width + value_width) + FLOAT32 * shape.num_heads
    return inside + shape.element * shape.width


def pattention_bytes(pattention: PattentionConfig, score_function: ScoreFunction, shape: Shape) -> int:
    """A Pattention of N parameter tokens, for each data token; its input is counted where it is made.

    | kept | l2_norm_gelu | gelu_l2_norm | softmax |
    |---|---|---|---|
    | scores before the first function | b N | b N | |
    | scores in between | b N | b N | b N |
    | scores that the values are multiplied by | b N | b N | b N |
    | norm, clamped norm, tau / norm (by norm group) | 4 + 4 + b | 4 + 4 + b | |
    """
    kept = 2 if score_function == "softmax" else 3
    scores = kept * shape.element * pattention.num_tokens
    if score_function == "softmax":
        return scores
    apart = sum(generation.tau is not None for generation in pattention.generations)
    shared = int(apart < len(pattention.generations))
    return scores + (apart + shared) * (2 * FLOAT32 + shape.element)


def joined_bytes(pattention: PattentionConfig, shape: Shape) -> int:
    """Copies of a Pattention's keys and values as they act, whatever the batch: joined generations, scaled ones."""
    several = sum(generation.tau is None for generation in pattention.generations) > 1
    rows = 0
    for generation, share in zip(pattention.generations, pattention.value_shares, strict=True):
        joined = several and generation.tau is None
        copies = (joined or generation.key_ramp != 1) + (joined or share != 1)
        rows += copies * generation.num_tokens
    return rows * shape.width * shape.element


def loss_temporary(vocab_size: int) -> int:
    """At the loss, for each data token: the gradients of the log-probabilities and of the logits, float32 both."""
    return 2 * FLOAT32 * vocab_size


def pattention_temporary(num_tokens: int, shape: Shape) -> int:
    """In the backward pass of a Pattention's norm, for each data token, more than what its forward pass kept.

    Then there are scores and a gradient of theirs (2 b N), and two float32 terms of the norm's gradient (8 N), where
    3 b N were kept.
    """
    return (2 * FLOAT32 - shape.element) * num_tokens


def _blocks(config: TokenformerConfig | TransformerConfig, shape: Shape) -> tuple[BlockBytes, ...]:
    if isinstance(config, TransformerConfig):
        # On a CPU in bf16 the values are copied to float32; else they stay within the product that made them.
        copied = shape.attention_element != shape.element
        attention = attention_bytes(shape, value_width=(1 if copied else 3) * shape.width)
        inner = shape.element * config.ffn_size  # of the MLP, before GELU, behind it, and its gradient
        return (BlockBytes(saved=2 * norm_bytes(shape) + attention + 2 * inner, joined=0, temporary=inner),) * (
            config.num_layers
        )
    around = 2 * norm_bytes(shape) + attention_bytes(shape, value_width=shape.width)
    blocks = []
    for block in config.blocks:
        pattentions = list(block.pattentions().values())
        saved = sum(pattention_bytes(pattention, config.score_function, shape) for pattention in pattentions)
        joined = sum(joined_bytes(pattention, shape) for pattention in pattentions)
        widest = max(pattention.num_tokens for pattention in pattentions)
        blocks.append(BlockBytes(around + saved, joined, pattention_temporary(widest, shape)))
    return tuple(blocks)
