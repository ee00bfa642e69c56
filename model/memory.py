"""Activation memory of a forward and backward pass: a formula of the configuration, right to 15 %.

Imports no torch.

What autograd saves for the backward pass, in bytes per data token; b is the size of an element (2 in bf16, 4 in
float32), a that of an element of token-token attention (on a CPU 4, else b):

| part of a block | tokenformer with N parameter tokens in all layers | transformer with an MLP of width F |
|---|---|---|
| two norms: input and output | 4 b D | 4 b D |
| attention: queries, keys, output | 3 a D | 3 a D |
| attention: values | a D | 3 a D, a slice of one product; D on a CPU in bf16 |
| attention: output of all heads | b D | b D |
| scores; the MLP's GELU, input and output | b N | 2 b F |

Temporary tensors are counted at their two peaks: in the loss, and in the backward pass of the widest layer: 3 b N for
the N parameter tokens of that layer, b F for an MLP, and the gradient of the residual stream, b D. With activation
checkpointing (model/recomputation.py), a segment of blocks saves only its input, b D; the rest exists during the
segment's backward pass. Statistics of norms and rotary tables are left out. All figures are for the `eager` kernels;
the Triton kernels need less, and how much compiled blocks need depends on the compiler.
"""

from typing import NamedTuple

from model.config import TokenformerConfig, TransformerConfig
from model.precision import BYTES, DeviceType, Precision

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
        config: TokenformerConfig | TransformerConfig,
        precision: Precision,
        device: DeviceType = "cuda",
        recompute_every: int | None = None,
    ) -> None:
        """With `recompute_every`, training saves the input of every so many blocks and recomputes the rest."""
        self._config, self._element = config, BYTES[precision]
        self._attention_element = self._element if device == "cuda" else FLOAT32
        self._recompute_every = recompute_every
        self._widths = _widths(config)
        saved = [self._block(sum(widths)) for widths in self._widths]
        every = recompute_every or max(1, len(saved))
        self._segments = [sum(saved[first : first + every]) for first in range(0, len(saved), every)]

    def of(self, micro_batch_size: int, sequence_length: int) -> PassMemory:
        """The memory of a pass over `micro_batch_size` sequences of `sequence_length` data tokens."""
        b, width, num_tokens = self._element, self._config.hidden_size, micro_batch_size * sequence_length
        end = 2 * b * width  # the final norm
        saved, again = sum(self._segments), 0
        if self._recompute_every:
            saved, again = len(self._segments) * b * width, max(self._segments, default=0)
        widest = max((max(widths) for widths in self._widths), default=0)
        peak = b * (widest if isinstance(self._config, TransformerConfig) else 3 * widest) + b * width
        mask = 0 if self._config.document_end_id is None else num_tokens * sequence_length * self._attention_element
        head = b * self._config.vocab_size * width  # its gradient stays alive until the end of the backward pass
        return PassMemory(
            activations=num_tokens * (saved + end + 2 * INT64) + head + mask,
            at_loss=self._loss(num_tokens) - head,
            in_blocks=num_tokens * (again + peak - end) + _joined(self._config) * b,
        )

    def evaluation(self, micro_batch_size: int, sequence_length: int) -> int:
        """Peak bytes of a forward pass over `micro_batch_size` sequences without gradients, in float32."""
        config, num_tokens = self._config, micro_batch_size * sequence_length
        logits = min(num_tokens, tokens_at_once(config.vocab_size)) * config.vocab_size
        widest = max((max(widths) for widths in self._widths), default=0)
        is_transformer = isinstance(config, TransformerConfig)
        inside = (6 * config.hidden_size + 2 * widest) if is_transformer else (8 * config.hidden_size + widest)
        mask = 0 if config.document_end_id is None else num_tokens * sequence_length
        return FLOAT32 * max(2 * logits, num_tokens * inside + mask + _joined(config))

    def _block(self, inner: int) -> int:
        """Bytes that a block saves per data token, with `inner` scores or the width of the MLP."""
        a, b, width = self._attention_element, self._element, self._config.hidden_size
        is_transformer = isinstance(self._config, TransformerConfig)
        values = 3 if is_transformer and a == b else 1
        return 5 * b * width + a * (3 + values) * width + b * inner * (2 if is_transformer else 1)

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


def _widths(config: TokenformerConfig | TransformerConfig) -> list[list[int]]:
    """The parameter tokens of the Pattentions of each block, or the width of its MLP."""
    if isinstance(config, TransformerConfig):
        return [[config.ffn_size]] * config.num_layers
    return [[pattention.num_tokens for pattention in block.pattentions().values()] for block in config.blocks]


def _joined(config: TokenformerConfig | TransformerConfig) -> int:
    """Elements of a joined copy of the keys or values of the widest Pattention with several generations."""
    if isinstance(config, TransformerConfig):
        return 0
    pattentions = [pattention for block in config.blocks for pattention in block.pattentions().values()]
    return max((p.num_tokens * config.hidden_size for p in pattentions if len(p.generations) > 1), default=0)
