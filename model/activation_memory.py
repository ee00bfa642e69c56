"""Bytes that a forward and backward pass take beside the parameters, from the configuration alone. No torch here.

What autograd keeps is written out operation by operation, as tables in the docstrings, for each data token: b is the
width of an element (2 in bf16, 4 in float32). The rest of the file adds it up. What comes and goes within an operation
is counted where it is largest: in the loss, and in the backward pass of a block's widest layer. All of it is of `eager`
kernels: Triton's take less, and what a compiler keeps is its own choice.

On CUDA statistics of norms are float32 and attention runs in the model's precision; on a CPU the statistics have the
model's precision and attention runs in float32 (model/attention.py).
"""

from dataclasses import dataclass

from model.config import PattentionConfig, ScoreFunction, TokenformerConfig, TransformerConfig
from model.precision import BYTES, DeviceType, Precision

FLOAT32 = 4
INT64 = 8

LOGITS_AT_ONCE = 2**25
"""Logits that exist at a time: 128 MiB in float32, 667 data tokens of a vocabulary of 50,304. Products of fewer would
spend their time on reading the head's weight."""


def tokens_at_once(vocab_size: int) -> int:
    """Data tokens whose logits exist at a time."""
    return max(1, LOGITS_AT_ONCE // vocab_size)


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

    temporary: int
    """The most that its backward pass takes beside what is kept, for each data token."""

    joined: int
    """The same, whatever the batch."""


@dataclass(frozen=True)
class ModelBytes:
    """What a configuration's passes take, worked out once for batches of every size."""

    blocks: tuple[BlockBytes, ...]
    end: int
    """Kept by the final norm and the loss, for each data token."""

    head: "HeadBytes"
    """The head's and the loss's."""

    rotary: int
    """Cosines and sines, for each position."""

    widest: int
    """In a layer, in a forward pass alone, for each data token."""

    def of(self, micro_batch_size: int, sequence_length: int) -> PassMemory:
        """Bytes of a pass over `micro_batch_size` sequences of `sequence_length` data tokens."""
        num_tokens = micro_batch_size * sequence_length
        end = num_tokens * self.end
        in_blocks, freed = -end, end
        for block in reversed(self.blocks):  # the backward pass frees block after block
            in_blocks = max(in_blocks, num_tokens * block.temporary + block.joined - freed)
            freed += num_tokens * block.saved
        return PassMemory(
            activations=freed + self.head.kept + sequence_length * self.rotary + num_tokens * 2 * INT64,
            at_loss=self.head.training(num_tokens),
            in_blocks=in_blocks,
            forward=max(self.head.evaluating(num_tokens), num_tokens * self.widest),
        )


def model_bytes(
    config: TokenformerConfig | TransformerConfig, precision: Precision, device: DeviceType = "cuda"
) -> ModelBytes:
    """What passes of `config` take in that precision."""
    shape = Shape(config.hidden_size, config.num_heads, precision, device)
    return ModelBytes(
        blocks=_blocks(config, shape),
        end=norm_bytes(shape),  # the gradient for the norm's output stands where that was
        head=HeadBytes(shape, config.vocab_size),
        rotary=2 * FLOAT32 * config.rotary_width,
        widest=_widest(config) * shape.element,
    )


def evaluation_bytes(config: TokenformerConfig | TransformerConfig, num_tokens: int, device: DeviceType) -> int:
    """The most in a forward pass over `num_tokens` data tokens without gradients, in float32."""
    shape = Shape(config.hidden_size, config.num_heads, "fp32", device)
    head = HeadBytes(shape, config.vocab_size)
    joined = 0
    if isinstance(config, TokenformerConfig):
        joined = max(joined_bytes(p, shape) for block in config.blocks for p in block.pattentions().values())
    return max(head.evaluating(num_tokens), num_tokens * _widest(config) * FLOAT32 + joined)


def _widest(config: TokenformerConfig | TransformerConfig) -> int:
    """Elements in the widest layer at once without gradients: a Pattention's scores, GELU and its input in an MLP.

    Beside those are some of the model's width: the residual stream, a norm's output, queries, keys, values.
    """
    around = 6 * config.hidden_size
    if isinstance(config, TransformerConfig):
        return around + 2 * config.ffn_size
    return around + max(p.num_tokens for block in config.blocks for p in block.pattentions().values())


@dataclass(frozen=True)
class HeadBytes:
    """The output head with the loss (model/loss.py), which has logits of m data tokens at a time."""

    shape: Shape
    vocab_size: int

    @property
    def kept(self) -> int:
        """The gradient of the head's weight, until the embedding's joins it at the end of the backward pass: b V D."""
        return self.shape.element * self._weight

    @property
    def _weight(self) -> int:
        return self.vocab_size * self.shape.width

    def training(self, num_tokens: int) -> int:
        """The most beside what is kept by then, which is less the gradient of the weight.

        | alive together | bytes |
        |---|---|
        | log-probabilities, their gradient, that of the logits | 12 m V |
        | the logits' gradient, the weight's, in bf16 also in float32 | b m V + b V D (+ 4 V D) |

        and from the second m data tokens on the sum of the weight's gradients, 4 V D, where none is cast.
        """
        b = self.shape.element
        logits, several = self._logits(num_tokens)
        total = several * FLOAT32 * self._weight
        cast = FLOAT32 * self._weight if b < FLOAT32 and not several else 0
        return max(3 * FLOAT32 * logits, b * (logits + self._weight) + cast) + total - self.kept

    def evaluating(self, num_tokens: int) -> int:
        """The most without gradients: logits in float32 and their log-probabilities, 8 m V."""
        return 2 * FLOAT32 * self._logits(num_tokens)[0]

    def _logits(self, num_tokens: int) -> tuple[int, bool]:
        """Logits at a time, m V, and whether there are more after them."""
        at_once = tokens_at_once(self.vocab_size)
        return min(num_tokens, at_once) * self.vocab_size, num_tokens > at_once


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

    | kept | l2_norm_gelu, gelu_l2_norm | softmax |
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
    """A Pattention's keys or values as they act, for as long as a product reads them: joined and scaled copies."""
    several = sum(generation.tau is None for generation in pattention.generations) > 1
    copies = [0, 0]
    for generation, share in zip(pattention.generations, pattention.value_shares, strict=True):
        joined = several and generation.tau is None
        for side, scale in enumerate((generation.key_ramp, share)):
            copies[side] += (joined + (scale != 1)) * generation.num_tokens
    return max(copies) * shape.width * shape.element


def pattention_temporary(num_tokens: int, shape: Shape) -> int:
    """In a Pattention's backward pass, for each data token, 3 b N.

    The gradient of its scores, what multiplies its values, and the terms of a sum over a row. Where a CPU does a few
    rows at a time, there are few of those terms.
    """
    return 3 * shape.element * num_tokens


def _blocks(config: TokenformerConfig | TransformerConfig, shape: Shape) -> tuple[BlockBytes, ...]:
    if isinstance(config, TransformerConfig):
        # On a CPU in bf16 the values are copied to float32; else they stay within the product that made them.
        copied = shape.attention_element != shape.element
        attention = attention_bytes(shape, value_width=(1 if copied else 3) * shape.width)
        inner = shape.element * config.ffn_size  # of the MLP, before GELU, behind it, and its gradient
        return (BlockBytes(saved=2 * norm_bytes(shape) + attention + 2 * inner, temporary=inner, joined=0),) * (
            config.num_layers
        )
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
        blocks.append(BlockBytes(around + saved, temporary, joined))
    return tuple(blocks)
