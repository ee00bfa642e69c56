"""What both model families share, of text or images: the embedding, the loop over blocks, the head and the loss.

Shapes: B batch, T sequence, D model width, V vocabulary.
"""

import importlib.util
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import RotaryTable, attention_dtype, rotary_table
from model.cache import KVCache
from model.config import Kernels, RotaryScaling
from model.documents import FLEX_HEAD_WIDTH, AttentionMask, attention_mask, block_mask, document_starts
from model.errors import UserError
from model.images import PatchEmbedding, pooled, target_cross_entropy
from model.kernels import launch as triton_kernels
from model.loss import linear_cross_entropy
from model.recomputation import recomputed_blocks
from model.shapes import ModelConfig, parameter_shapes

if TYPE_CHECKING:
    from collections.abc import Callable


class KernelsMissing(UserError):
    """This machine cannot run the chosen kernels. The message names what is missing."""


class LanguageModel(nn.Module):
    """A model that returns logits for token ids or images or, given targets, the mean cross-entropy.

    Parameters are empty until they are initialised.
    """

    if TYPE_CHECKING:
        __call__: "Callable[..., Tensor]"

    def __init__(self, config: ModelConfig, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.config = config
        image, width = config.image, config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, width) if image is None else PatchEmbedding(image, width)
        self.blocks = nn.ModuleDict({str(i): block for i, block in zip(config.block_ids, blocks, strict=True)})
        """By id, in the order of the forward pass."""
        norm = nn.RMSNorm if config.norm == "rmsnorm" else nn.LayerNorm
        self.final_norm = norm(config.hidden_size, eps=config.norm_epsilon)
        if not config.tie_embeddings:
            self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=image is not None)
        self.kernels: Kernels = "eager"
        self.recompute_every: int | None = None
        """Activation checkpointing: training keeps the input of every so many blocks and computes the activations
        between them again in the backward pass (model/recomputation.py). None: it keeps all activations."""

    def use_kernels(self, kernels: Kernels) -> None:
        """Switches to `kernels`. Compiled blocks stay compiled. Raises KernelsMissing if this machine lacks them."""
        has_liger = importlib.util.find_spec("liger_kernel") is not None
        if kernels == "triton" and not (triton_kernels.usable(self.embedding.weight) and has_liger):
            raise KernelsMissing(
                "kernels: triton needs a GPU of compute capability 8 or newer (Ampere), and the triton package and "
                "Liger's kernels: pip install 'growctl[gpu]'"
            )
        self.kernels = kernels
        if kernels == "compiled":
            for block in self.blocks.values():
                block.compile()

    def balance(self, all_reduce: "Callable[[Tensor], object]") -> None:
        """Balances the routers by what data tokens have read since the last time; only a Tokenformer has any.

        `all_reduce` adds up a tensor over all ranks, in place.
        """

    def balanced(self, config: ModelConfig) -> ModelConfig:
        """`config`, of this model's sizes, with the biases of its routers."""
        return config

    def new_cache(self, batch_size: int, num_columns: int, starts_B: Tensor | None = None) -> KVCache:
        """An empty KV cache for `batch_size` rows of up to `num_columns` positions, padding included.

        `starts_B` is the number of padding positions on the left of each row. Without it, no row is padded.
        """
        weight = self.embedding.weight
        return KVCache(
            self.config, batch_size, num_columns, dtype=attention_dtype(weight), device=weight.device, starts_B=starts_B
        )

    def forward(
        self, inputs: Tensor, targets: Tensor | None = None, *, cache: KVCache | None = None, logits_to_keep: int = 0
    ) -> Tensor:
        """`logits_BTV` in the parameters' dtype or, with `targets`, the mean cross-entropy in nats.

        The loss is at least float32. Both inputs are int64. Targets of -100 are ignored. With targets, the logits of a
        whole batch never exist at once.

        With `cache`, the inputs continue the rows that it holds and are appended to it; the logits are those of the new
        positions, without gradients. `logits_to_keep` limits the logits to the last positions of the input; 0: all.

        A model of images takes pixels, (B, channels, size, size) of any float dtype, and returns logits of the classes,
        (B, V). Its targets are classes, (B,) int64, or their probabilities, (B, V). Raises UserError for images of
        another shape, and for what only text has: a cache and `logits_to_keep`.
        """
        if self.config.image is not None:
            if cache is not None or logits_to_keep:
                raise UserError("a model of images gives one row of logits an image; it has no cache or logits_to_keep")
            logits_BV = self.head(pooled(self.hidden_states(inputs), self.config.image))
            return logits_BV if targets is None else target_cross_entropy(logits_BV, targets)
        with torch.set_grad_enabled(torch.is_grad_enabled() and cache is None):
            x_BTD = self.hidden_states(inputs, cache=cache)
            x_BTD = x_BTD[:, -logits_to_keep:] if logits_to_keep else x_BTD
            if targets is None:
                return F.linear(x_BTD, self.head_weight)
            return linear_cross_entropy(x_BTD.flatten(0, 1), self.head_weight, targets.flatten(), self.kernels)

    @property
    def head_weight(self) -> Tensor:
        """The output head, (V, D); the embedding's own weight if they are tied."""
        return self.embedding.weight if self.config.tie_embeddings else self.head.weight

    def hidden_states(
        self, inputs: Tensor, *, cache: KVCache | None = None, rotary_scaling: RotaryScaling | None = None
    ) -> Tensor:
        """The final norm's output `x_BTD`, whose products with the rows of the head are the logits. Of images, too: the
        head reads what is `pooled` of it.

        `rotary_scaling` changes the rotary frequencies, for sequences longer than those of training. Raises UserError
        if the model was trained with a scaling of its own.
        """
        x_BTD = self.embedding(inputs)
        length, end_id = x_BTD.shape[1], self.config.document_end_id
        position_P = torch.arange(length, device=x_BTD.device)
        start_BT = torch.zeros_like(position_P)[None]
        if cache is not None:
            position_P = cache.positions(inputs)
        elif end_id is not None:
            start_BT = document_starts(inputs, end_id)
            position_P = (position_P - start_BT)[:, None]
        width, base, own = self.config.rotary_width, self.config.rotary_base, self.config.rotary_scaling
        if own and rotary_scaling:
            raise UserError(f"the model was trained with {own.kind} rotary scaling; it cannot be scaled again")
        table: RotaryTable = rotary_table(position_P, width, base, like=x_BTD, scaling=rotary_scaling or own)
        if cache is not None:
            for block, past in zip(self.blocks.values(), cache.layers(length), strict=True):
                x_BTD = block(x_BTD, table, past=past)
            cache.advance(length)
            return self.final_norm(x_BTD)
        windows = self.config.windows(length)
        masks = {window: self._mask(start_BT, window, x_BTD) for window in set(windows) if window or end_id is not None}
        blocks = zip(self.blocks.values(), windows, strict=True)
        layers = [partial(block, mask=masks.get(window)) for block, window in blocks]
        if self.recompute_every and self.training and torch.is_grad_enabled():
            return self.final_norm(recomputed_blocks(layers, self.recompute_every, x_BTD, table))
        for layer in layers:
            x_BTD = layer(x_BTD, table)
        return self.final_norm(x_BTD)

    def _mask(self, start_BT: Tensor, window: int | None, like: Tensor) -> AttentionMask:
        """What the layers with that window may see. GPUs compute it in blocks, except operator by operator."""
        in_blocks = like.is_cuda and like.dtype != torch.float64 and self.config.head_width >= FLEX_HEAD_WIDTH
        if in_blocks and self.kernels != "eager":
            return block_mask(start_BT.expand(len(like), -1), window)
        return attention_mask(start_BT, start_BT, attention_dtype(like), window)


def bare_model(model: nn.Module) -> LanguageModel:
    """`model` without the wrappers that `torch.compile`, DistributedDataParallel and DeepSpeed put around it.

    A wrapper shares the parameters but prefixes their names, which say what a parameter is and its generation. Raises
    UserError unless what it holds is a growctl model with exactly the parameters of its configuration.
    """
    bare = model
    while (inner := getattr(bare, "_orig_mod", getattr(bare, "module", None))) is not None:
        bare = inner
    if not isinstance(bare, LanguageModel):
        raise UserError(f"a {type(bare).__name__} is not a growctl model; give a Tokenformer or a Decoder")
    found = {name: tuple(parameter.shape) for name, parameter in bare.named_parameters()}
    expected = parameter_shapes(bare.config)
    if found != expected:
        name = next(name for name in expected | found if found.get(name) != expected.get(name))
        raise UserError(
            f"the parameter {name} has shape {found.get(name)} instead of {expected.get(name)} (None: no such "
            "parameter): a model must have the parameters of its config, whole and under their names; remove wrappers "
            "around its blocks (torch.compile, FSDP, adapters, parametrizations)"
        )
    return bare
