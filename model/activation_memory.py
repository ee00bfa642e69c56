"""Activation memory of a forward and backward pass, computed from the configuration alone.

Imports no torch.

Tables in the docstrings list the tensors that each operation saves for autograd, in bytes per data token; b is the size
of an element (2 in bf16, 4 in float32). The rest of the file adds them up. Temporary tensors are counted at their two
peaks: in the loss, and in the backward pass of a block's widest layer. With activation checkpointing
(model/recomputation.py), a segment of blocks saves only its input, b D; the rest exists during the segment's backward
pass. All figures are for the `eager` kernels. The Triton kernels need less memory; how much compiled blocks need
depends on the compiler.

On CUDA, the statistics of norms are float32 and attention runs in the model's precision. On a CPU, the statistics have
the model's precision and attention runs in float32 (model/attention.py).
"""

from dataclasses import dataclass
from typing import Self

from model.config import PattentionConfig, ScoreFunction, TokenformerConfig, TransformerConfig
from model.precision import BYTES, DeviceType, Precision

FLOAT32 = 4
INT64 = 8

LOGITS_AT_ONCE = 2**25
"""Logits that exist at a time: 128 MiB in float32, or 667 data tokens with a vocabulary of 50,304. Smaller products
would spend most of their time reading the head's weight."""


def tokens_at_once(vocab_size: int) -> int:
    """Data tokens whose logits exist at a time."""
    return max(1, LOGITS_AT_ONCE // vocab_size)


@dataclass(frozen=True)
class PassMemory:
    """Bytes of one micro-batch's forward and backward pass."""

    activations: int
    """Tensors that autograd saves in the forward pass for the backward pass."""

    at_loss: int
    """Temporary tensors on top of the activations when the backward pass begins."""

    in_blocks: int
    """The same at the peak of the backward pass through the blocks: its temporary tensors minus the activations that
    it has freed by then."""


@dataclass(frozen=True)
class Shape:
    """Everything that a layer's memory depends on apart from its own sizes."""

    width: int
    num_heads: int
    precision: Precision
    device: DeviceType

    @property
    def element(self) -> int:
        """Bytes of an element of the model's tensors: b."""
        return BYTES[self.precision]

    @property
    def stream(self) -> int:
        """Bytes of the residual stream, per data token: b D."""
        return self.element * self.width

    @property
    def statistic(self) -> int:
        """Bytes of the mean of a norm layer, or of its standard deviation."""
        return FLOAT32 if self.device == "cuda" else self.element

    @property
    def attention_element(self) -> int:
        """Bytes of an element within token-token attention."""
        return self.element if self.device == "cuda" else FLOAT32


@dataclass(frozen=True)
class BlockBytes:
    """Bytes of the passes through one block."""

    saved: int
    """Saved for the backward pass, per data token."""

    temporary: int
    """Peak of the temporary tensors in its backward pass, per data token, with the gradient of its output: b D."""

    joined: int
    """Temporary copies of joined parameters, independent of the batch."""


@dataclass(frozen=True)
class ModelBytes:
    """Bytes of a configuration's passes, computed once for batches of every size."""

    blocks: tuple[BlockBytes, ...]
    end: int
    """Saved by the final norm and the loss, per data token."""

    head: "HeadBytes"
    """Bytes of the head and the loss."""

    shared: "SharedBytes"
    """Tensors that all layers read."""

    segment_input: int
    """Saved by a segment of recomputed blocks, per data token."""

    recompute_every: int | None = None
    """How many blocks are in a segment that the backward pass computes again; None: all activations are saved."""

    def of(self, micro_batch_size: int, sequence_length: int) -> PassMemory:
        """The memory of a pass over `micro_batch_size` sequences of `sequence_length` data tokens."""
        num_tokens = micro_batch_size * sequence_length
        end = num_tokens * self.end
        shared = self.shared.of(micro_batch_size, sequence_length)
        in_blocks, freed = -end, end
        for segment in reversed(self._segments()):
            if self.recompute_every:
                again = sum(block.saved for block in segment) - self.segment_input
                freed -= num_tokens * again
            for block in reversed(segment):  # the backward pass frees block after block
                in_blocks = max(in_blocks, num_tokens * block.temporary + block.joined - freed)
                freed += num_tokens * block.saved
        return PassMemory(
            activations=freed + self.head.kept + shared + num_tokens * 2 * INT64,
            at_loss=self.head.training(num_tokens),
            in_blocks=in_blocks,
        )

    def _segments(self) -> list[tuple[BlockBytes, ...]]:
        every = self.recompute_every or max(1, len(self.blocks))
        return [self.blocks[first : first + every] for first in range(0, len(self.blocks), every)]


def model_bytes(
    config: TokenformerConfig | TransformerConfig,
    precision: Precision,
    device: DeviceType = "cuda",
    recompute_every: int | None = None,
) -> ModelBytes:
    """The memory of passes through `config` in `precision`, for batches of any size.

    With `recompute_every`, training saves the input of every so many blocks and recomputes the rest.
    """
    shape = Shape(config.hidden_size, config.num_heads, precision, device)
    return ModelBytes(
        blocks=_blocks(config, shape),
        end=norm_bytes(shape),  # the gradient of the norm's output reuses that output's memory
        head=HeadBytes(shape, config.vocab_size),
        shared=SharedBytes.by(config, shape),
        segment_input=shape.stream,
        recompute_every=recompute_every,
    )


def evaluation_bytes(
    config: TokenformerConfig | TransformerConfig, micro_batch_size: int, sequence_length: int, device: DeviceType
) -> int:
    """Peak bytes of a forward pass over `micro_batch_size` sequences without gradients, in float32."""
    shape, num_tokens = Shape(config.hidden_size, config.num_heads, "fp32", device), micro_batch_size * sequence_length
    head, shared = HeadBytes(shape, config.vocab_size), SharedBytes.by(config, shape)
    joined = 0
    if isinstance(config, TokenformerConfig):
        joined = max((joined_bytes(p, shape) for b in config.blocks for p in b.pattentions().values()), default=0)
    in_blocks = num_tokens * _widest(config) * FLOAT32 + joined + shared.of(micro_batch_size, sequence_length)
    return max(head.evaluating(num_tokens), in_blocks)


@dataclass(frozen=True)
class SharedBytes:
    """The tensors that a pass computes once for all layers."""

    rotary: int
    """Cosines and sines, per position; per data token if positions begin anew with each document."""

    mask: int
    """The mask of documents, per pair of data tokens of a sequence. All heads share it too."""

    @classmethod
    def by(cls, config: TokenformerConfig | TransformerConfig, shape: Shape) -> Self:
        """Those of a model in the precision of `shape`. Without layers, nothing reads them."""
        if not config.num_layers:
            return cls(0, 0)
        mask = 0 if config.document_end_id is None else shape.attention_element
        return cls(2 * FLOAT32 * config.rotary_width, mask)

    def of(self, micro_batch_size: int, sequence_length: int) -> int:
        """Bytes for `micro_batch_size` sequences."""
        num_tokens = micro_batch_size * sequence_length
        rotated = num_tokens if self.mask else sequence_length
        return rotated * self.rotary + num_tokens * sequence_length * self.mask


def _widest(config: TokenformerConfig | TransformerConfig) -> int:
    """Elements that exist at once in the widest layer without gradients, per data token.

    These are the scores of a Pattention, or the input and output of an MLP's GELU. On top of them come tensors of the
    model's width: the residual stream, a norm's output, queries, keys, values.
    """
    around = 6 * config.hidden_size
    if isinstance(config, TransformerConfig):
        return around + 2 * config.ffn_size
    return around + max((p.num_tokens for b in config.blocks for p in b.pattentions().values()), default=0)


@dataclass(frozen=True)
class HeadBytes:
    """The output head and the loss (model/loss.py), which computes the logits of m data tokens at a time."""

    shape: Shape
    vocab_size: int

    @property
    def kept(self) -> int:
        """The gradient of the head's weight, b V D: it stays alive until the end of the backward pass."""
        return self.shape.element * self._weight

    @property
    def _weight(self) -> int:
        return self.vocab_size * self.shape.width

    def training(self, num_tokens: int) -> int:
        """Peak of the temporary tensors in training. Does not include `kept`.

        | alive together | bytes |
        |---|---|
        | log-probabilities, their gradient, the gradient of the logits | 12 m V |
        | gradient of the logits, gradient of the weight (in bf16 also a float32 copy) | b m V + b V D (+ 4 V D) |

        With more than m data tokens, the running sum of the weight's gradients takes another 4 V D, and there is no
        float32 copy.
        """
        b = self.shape.element
        logits, several = self._logits(num_tokens)
        total = several * FLOAT32 * self._weight
        cast = FLOAT32 * self._weight if b < FLOAT32 and not several else 0
        return max(3 * FLOAT32 * logits, b * (logits + self._weight) + cast) + total - self.kept

    def evaluating(self, num_tokens: int) -> int:
        """Peak without gradients: logits in float32 and their log-probabilities, 8 m V."""
        return 2 * FLOAT32 * self._logits(num_tokens)[0]

    def _logits(self, num_tokens: int) -> tuple[int, bool]:
        """Logits at a time (m V), and whether the batch has more than m data tokens."""
        at_once = tokens_at_once(self.vocab_size)
        return min(num_tokens, at_once) * self.vocab_size, num_tokens > at_once


def norm_bytes(shape: Shape) -> int:
    """Bytes that a LayerNorm saves per data token. The product that follows saves the norm's output.

    | saved | bytes |
    |---|---|
    | input | b D |
    | mean, 1 / deviation | 2 statistics |
    | output | b D |
    """
    return 2 * shape.element * shape.width + 2 * shape.statistic


def attention_bytes(shape: Shape, value_width: int) -> int:
    """Bytes that token-token attention saves per data token; a is the size of its elements.

    | saved | bytes |
    |---|---|
    | rotated queries and keys | 2 a D |
    | values, a slice of a tensor of width `value_width` | a `value_width` |
    | output, head by head | a D |
    | logarithms of the softmax's denominators | 4 H |
    | output as the projection's input | b D |
    """
    inside = shape.attention_element * (3 * shape.width + value_width) + FLOAT32 * shape.num_heads
    return inside + shape.element * shape.width


def pattention_bytes(pattention: PattentionConfig, score_function: ScoreFunction, shape: Shape) -> int:
    """Bytes that a Pattention of N parameter tokens saves per data token, without its input.

    | saved | l2_norm_gelu, gelu_l2_norm | softmax |
    |---|---|---|
    | scores (softmax: their probabilities) | b N | b N |
    | norm (by norm group) | 4 | |
    """
    scores = shape.element * pattention.num_tokens
    if score_function == "softmax":
        return scores
    apart = sum(generation.tau is not None for generation in pattention.generations)
    shared = int(apart < len(pattention.generations))
    return scores + (apart + shared) * FLOAT32


def joined_bytes(pattention: PattentionConfig, shape: Shape) -> int:
    """Bytes of the joined and scaled copies of a Pattention's keys or values. They exist while a product reads them."""
    several = sum(generation.tau is None for generation in pattention.generations) > 1
    copies = [0, 0]
    for generation, share in zip(pattention.generations, pattention.value_shares, strict=True):
        joined = several and generation.tau is None
        for side, scale in enumerate((generation.key_ramp, share)):
            copies[side] += (joined + (scale != 1)) * generation.num_tokens
    return max(copies) * shape.width * shape.element


def pattention_temporary(num_tokens: int, shape: Shape) -> int:
    """Bytes of temporary tensors in a Pattention's backward pass, per data token: 3 b N.

    These are the gradient of the scores, the factors that multiply the values, and the terms of a sum over a row. On a
    CPU, which works on a few rows at a time, there are fewer of those terms.
    """
    return 3 * shape.element * num_tokens


def _blocks(config: TokenformerConfig | TransformerConfig, shape: Shape) -> tuple[BlockBytes, ...]:
    if isinstance(config, TransformerConfig):
        # On a CPU in bf16 the values are copied to float32; otherwise they are a slice of the output of one product.
        copied = shape.attention_element != shape.element
        attention = attention_bytes(shape, value_width=(1 if copied else 3) * shape.width)
        inner = shape.element * config.ffn_size  # in the MLP: GELU's input, its output, or its gradient
        saved = 2 * norm_bytes(shape) + attention + 2 * inner
        return (BlockBytes(saved, temporary=inner + shape.stream, joined=0),) * config.num_layers
    around = 2 * norm_bytes(shape) + attention_bytes(shape, value_width=shape.width)
    blocks = []
    for block in config.blocks:
        layers = list(block.pattentions().values())
        ffn = layers[-1]
        of_ffn = pattention_bytes(ffn, config.score_function, shape)
        saved = of_ffn + sum(pattention_bytes(pattention, config.score_function, shape) for pattention in layers[:-1])
        joined = max(joined_bytes(pattention, shape) for pattention in layers)
        widest = max(pattention.num_tokens for pattention in layers[:-1])
        temporary = max(pattention_temporary(ffn.num_tokens, shape), pattention_temporary(widest, shape) - of_ffn)
        blocks.append(BlockBytes(around + saved, temporary + shape.stream, joined))
    return tuple(blocks)
