"""Activation memory of a forward and backward pass: a formula of the configuration, right to 15 %.

Imports no torch.

What autograd saves for the backward pass, in bytes per data token; b is the size of an element (2 in bf16, 4 in
float32), a that of an element of token-token attention (on a CPU 4, else b):

| part of a block | bytes |
|---|---|
| two norms: input and output | 4 b D |
| attention, with H heads, K of keys and values, of width E: queries, keys, values, output | a (2 H + 2 K) E |
| attention: output of all heads | b H E |
| `qk_norm`: its input | b (H + K) E |
| each RMSNorm over D dimensions, on a CPU: parts of it | b D, in bf16 also 4 D |
| tokenformer that reads N parameter tokens in all Pattentions: scores | b N |
| tokenformer that reads g groups in all routed generations: the order by group, in int64 | 8 g |
| decoder with F units: inputs and outputs of the activation | 2 b F, 4 b F with `swiglu` |
| decoder: a joined copy of every matrix that has several generations, once and not for each token | b N D |
| documents: a mask for each sequence; windows: one for all; with some layers full, documents have both | a T |

An image besides takes its pixels in float32 and the patches cut from them, (4 + b) C P^2 a patch, and float32 numbers
for each class: its target and its log-probability.

Temporary tensors are counted at their two peaks: in the loss, and in the backward pass of the widest layer: 3 b N for
the N parameter tokens that are read there, b F for an FFN, and the gradient of the residual stream, b D. With
activation checkpointing (model/recomputation.py), a segment of blocks saves only its input, b D; the rest exists during
the segment's backward pass. Statistics of norms and rotary tables are left out. All figures are for the `eager`
kernels; the Triton kernels need less, and how much compiled blocks need depends on the compiler.
"""

from typing import NamedTuple

from model.decoder_config import DecoderConfig
from model.precision import BYTES, DeviceType, Precision
from model.shapes import ModelConfig
from model.tokenformer_config import TokenformerConfig, pattention_widths

FLOAT32 = 4
INT64 = 8

LOGITS_AT_ONCE = 2**25
"""Logits that exist at a time: 128 MiB in float32, or 667 data tokens with a vocabulary of 50,304. Smaller products
would spend most of their time reading the head's weight."""


def tokens_at_once(vocab_size: int) -> int:
    """Data tokens whose logits exist at a time."""
    return max(1, LOGITS_AT_ONCE // vocab_size)


class PassMemory(NamedTuple):
    """Bytes of one micro-batch's forward and backward pass."""

    activations: int
    """Tensors that autograd saves in the forward pass for the backward pass."""

    at_loss: int
    """Temporary tensors on top of the activations when the backward pass begins."""

    in_blocks: int
    """The same at the peak of the backward pass through the blocks."""


class ActivationMemory:
    """The activations of a model, prepared once for micro-batches of any size."""

    def __init__(
        self,
        config: ModelConfig,
        precision: Precision,
        device: DeviceType = "cuda",
        recompute_every: int | None = None,
    ) -> None:
        """With `recompute_every`, training saves the input of every so many blocks and recomputes the rest."""
        self._config, self._element = config, BYTES[precision]
        self._attention_element = self._element if device == "cuda" else FLOAT32
        in_parts = device != "cuda"  # operator by operator, in float32
        self._rms_norm = (self._element + (FLOAT32 if self._element < FLOAT32 else 0)) * in_parts
        self._recompute_every = recompute_every
        self._widths = _widths(config)
        groups = _groups_read(config)
        saved = [self._block(sum(widths)) + INT64 * read for widths, read in zip(self._widths, groups, strict=True)]
        joined = _saved_joined(config)
        every = recompute_every or max(1, len(saved))
        starts = range(0, len(saved), every)
        self._segments = [sum(saved[first : first + every]) for first in starts]
        self._joined = [self._element * sum(joined[first : first + every]) for first in starts]

    def of(self, micro_batch_size: int, sequence_length: int) -> PassMemory:
        """The memory of a pass over `micro_batch_size` sequences of `sequence_length` data tokens."""
        b, width, num_tokens = self._element, self._config.hidden_size, micro_batch_size * sequence_length
        end, outside, at_loss = self._norm(), 2 * INT64 * num_tokens, self._loss(num_tokens)
        head = b * self._config.vocab_size * width  # its gradient stays alive until the end of the backward pass
        if image := self._config.image:
            classes = FLOAT32 * micro_batch_size * self._config.vocab_size
            outside = (FLOAT32 + b) * micro_batch_size * image.num_patches * image.patch_values + 2 * classes
            head, at_loss = 0, 2 * classes
        saved, again = num_tokens * sum(self._segments) + sum(self._joined), 0
        if self._recompute_every:
            saved = num_tokens * len(self._segments) * b * width
            parts = zip(self._segments, self._joined, strict=True)
            again = max((num_tokens * segment + joined for segment, joined in parts), default=0)
        widest = max((max(widths) for widths in self._widths), default=0)
        peak = b * (widest if isinstance(self._config, DecoderConfig) else 3 * widest) + b * width
        mask = _masks(self._config, micro_batch_size, sequence_length) * self._attention_element
        return PassMemory(
            activations=saved + num_tokens * end + outside + head + mask,
            at_loss=at_loss - head,
            in_blocks=again + num_tokens * (peak - end) + _joined(self._config) * b,
        )

    def evaluation(self, micro_batch_size: int, sequence_length: int) -> int:
        """Peak bytes of a forward pass over `micro_batch_size` sequences without gradients, in float32."""
        config, num_tokens = self._config, micro_batch_size * sequence_length
        logits = min(num_tokens, tokens_at_once(config.vocab_size)) * config.vocab_size
        widest = max((max(widths) for widths in self._widths), default=0)
        is_decoder = isinstance(config, DecoderConfig)
        width = max(config.hidden_size, config.num_heads * config.head_width)
        is_routed = isinstance(config, TokenformerConfig) and config.is_routed
        pieces = 2 if is_routed else 1  # the scores of routed generations are joined with the others
        inside = (6 * width + 2 * widest) if is_decoder else (8 * width + pieces * widest)
        mask = _masks(config, micro_batch_size, sequence_length)
        in_blocks = num_tokens * inside + mask + _joined(config)
        if image := config.image:
            pixels = micro_batch_size * image.num_patches * image.patch_values
            return FLOAT32 * (pixels + max(pixels + 2 * num_tokens * config.hidden_size, in_blocks))
        return FLOAT32 * max(2 * logits, in_blocks)

    def _block(self, inner: int) -> int:
        """Bytes that a block saves per data token, with `inner` scores or units of the FFN."""
        a, b, config = self._attention_element, self._element, self._config
        heads, kv_heads = (number * config.head_width for number in (config.num_heads, config.num_kv_heads))
        copies = 1
        if isinstance(config, DecoderConfig):
            copies = 4 if config.activation == "swiglu" else 2
        attention = a * 2 * (heads + kv_heads) + b * heads
        attention += config.qk_norm * (b + self._rms_norm) * (heads + kv_heads)
        return 2 * self._norm() + attention + b * inner * copies

    def _norm(self) -> int:
        """Bytes that a norm of the residual stream saves per data token."""
        per_dimension = 2 * self._element + (self._rms_norm if self._config.norm == "rmsnorm" else 0)
        return per_dimension * self._config.hidden_size

    def _loss(self, num_tokens: int) -> int:
        """Peak of the head and the loss (model/loss.py), which computes m logits of the vocabulary V at a time.

        Either log-probabilities, their gradient and that of the logits: 12 m V. Or the gradient of the logits and of
        the weight: b (m V + V D), in bf16 also a float32 copy. Where the tokens come in slices, the running sum of the
        weight's gradients takes another 4 V D, and there is no float32 copy.
        """
        vocab_size, b = self._config.vocab_size, self._element
        at_once, weight = tokens_at_once(vocab_size), vocab_size * self._config.hidden_size
        logits = min(num_tokens, at_once) * vocab_size
        in_slices = num_tokens > at_once
        copy = FLOAT32 * weight if b < FLOAT32 and not in_slices else 0
        return max(3 * FLOAT32 * logits, b * (logits + weight) + copy) + in_slices * FLOAT32 * weight


def _widths(config: ModelConfig) -> list[list[int]]:
    """The parameter tokens that a data token reads in the Pattentions of each block, or the units of its FFN."""
    if isinstance(config, DecoderConfig):
        return [[config.ffn_tokens]] * config.num_layers
    return [[pattention.num_read for pattention in block.pattentions().values()] for block in config.blocks]


def _groups_read(config: ModelConfig) -> list[int]:
    """The groups that a data token reads in all routed generations of each block."""
    if isinstance(config, DecoderConfig):
        return [0] * config.num_layers
    parts = (block.pattentions().values() for block in config.blocks)
    return [sum(g.routing.read for p in part for g in p.generations if g.routing) for part in parts]


def _masks(config: ModelConfig, micro_batch_size: int, sequence_length: int) -> int:
    """Elements of the masks that layers share: one for each window; of documents, one for each window and sequence."""
    windows = set(config.windows(sequence_length))
    rows = len(windows - {None}) if config.document_end_id is None else len(windows) * micro_batch_size
    return rows * sequence_length**2


def _joined(config: ModelConfig) -> int:
    """Elements of a joined copy of the keys or values of the widest Pattention with several generations."""
    if isinstance(config, DecoderConfig):
        return 0
    return max(
        (
            sum(g.num_tokens for g in p.generations if g.routing is None) * max(pattention_widths(config, name))
            for name, p in config.pattentions()
            if len(p.generations) > 1
        ),
        default=0,
    )


def _saved_joined(config: ModelConfig) -> list[int]:
    """Elements, for each block, of the joined matrices of a decoder with several generations, which autograd saves."""
    if not isinstance(config, DecoderConfig):
        return [0] * config.num_layers
    ffn_matrices = 3 if config.activation == "swiglu" else 2
    return [
        (
            (len(block.heads) > 1) * 2 * (config.num_heads + config.num_kv_heads) * config.head_width
            + (len(block.ffn) > 1) * ffn_matrices * config.ffn_tokens
        )
        * config.hidden_size
        for block in config.blocks
    ]
