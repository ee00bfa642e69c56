"""Runs a model over a text, forward and backward, and measures every layer.

Hooks read what they need while a batch passes. A parameter's gradient is freed as soon as its norm is known, so a
measurement needs the weights, the activations of one batch, and one gradient. Shapes: S sequences of the text, B of a
batch, T sequence, D model width, O output width, V vocabulary.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model.decoder import Reading, Writing
from model.errors import Failure, UserError
from model.language_model import LanguageModel
from model.loss import linear_cross_entropy
from model.parameter_names import PartName
from model.pattention import Pattention
from model.shapes import num_parameters
from model.tokenformer_config import TokenformerConfig
from stages.checkpoint.manifest import TextFacts
from stages.counted import counted
from stages.evaluate.documents import TokenStream
from stages.evaluate.windows import sliding_windows
from stages.inspect.facts import GradientNorm, Inspected, Layer
from stages.inspect.sums import GainSums, OutputSums, ScoreSums

LayerKey = tuple[int, str]
"""A layer: its block's id, and its name."""

Squares = dict[tuple[LayerKey | None, str], list[Tensor]]
"""The squared norms of gradients, batch by batch, by layer (None outside the layers) and name of parameter."""


class _Watch:
    """Everything that is measured of one layer's activations."""

    def __init__(self, layer: nn.Module) -> None:
        self.output, self.gain = OutputSums(), GainSums()
        self.scores = ScoreSums(layer) if isinstance(layer, Pattention) else None
        self.handles = layer.register_forward_hook(self.forward), layer.register_full_backward_hook(self.backward)

    def forward(self, _: nn.Module, inputs: tuple[Tensor], output_BTO: Tensor) -> None:
        self.output.add(output_BTO)
        if self.scores:
            self.scores.add(inputs[0])

    def backward(self, _: nn.Module, grad_in: Any, grad_out: Any) -> None:
        self.gain.add(grad_in[0], grad_out[0])


def inspect_model(
    model: LanguageModel,
    inputs: Tensor,
    targets: Tensor,
    batch_size: int,
    on_batch: Callable[[], None] = lambda: None,
    *,
    num_token_ids: int | None = None,
) -> Inspected:
    """Measures `model` on S samples, `batch_size` at a time: token ids and targets, both (S, T) int64, or images and
    classes, as the model takes them.

    Samples that fill no batch are left out, because the norm of a batch's gradient depends on its size; with less than
    one batch, all are one. `on_batch` is called after every batch. The model's gradients are freed; its weights do not
    change. The softmax is over the first `num_token_ids` rows of the head (default: all); the
    others are padding.

    Raises Failure if a loss or a gradient is not finite.
    """
    batch_size, device = min(batch_size, len(inputs)), next(model.parameters()).device
    watches = {
        (block_id, name): _Watch(layer)
        for block_id, block in zip(model.config.block_ids, model.blocks.values(), strict=True)
        for name, layer in block.named_children()
        if isinstance(layer, Pattention | Reading | Writing)
    }
    squares: Squares = defaultdict(list)
    losses = []
    model.eval().requires_grad_(True)
    with ExitStack() as stack:
        handles = (handle for watch in watches.values() for handle in watch.handles)
        for handle in (*_watch_gradients(model, watches, squares), *handles):
            stack.callback(handle.remove)
        batches = zip(inputs.to(device).split(batch_size), targets.to(device).split(batch_size), strict=True)
        for batch_inputs, batch_targets in islice(batches, len(inputs) // batch_size):
            loss = _loss(model, batch_inputs, batch_targets, num_token_ids)
            loss.backward()
            losses.append(loss.detach())
            on_batch()
    layers = tuple(
        Layer(
            block=model.config.block_ids.index(key[0]),
            name=key[1],
            output=watch.output.distribution(),
            gradient=_gradient_norm(norms for (layer, _), norms in squares.items() if layer == key),
            gradient_gain=watch.gain.gain(),
            scores=watch.scores.scores(watch.output.rms_norm) if watch.scores else None,
        )
        for key, watch in watches.items()
    )
    norms = [layer.gradient.mean for layer in layers]
    inspected = Inspected(
        family=model.config.family,
        score_function=model.config.score_function if isinstance(model.config, TokenformerConfig) else None,
        num_parameters=num_parameters(model.config),
        loss=torch.stack(losses).double().mean().item(),
        gradient=_gradient_norm(squares.values()),
        layers=layers,
        depth_ratio=max(norms) / min(norms) if min(norms, default=0.0) else None,
        num_dead=sum(layer.scores.num_dead for layer in layers if layer.scores),
    )
    if not (math.isfinite(inspected.loss) and math.isfinite(inspected.gradient.mean)):
        raise Failure(f"the loss is {inspected.loss}, its gradient norm {inspected.gradient.mean}: both must be finite")
    return inspected


@torch.no_grad()
def mean_loss(model: LanguageModel, inputs: Tensor, targets: Tensor, batch_size: int, num_token_ids: int) -> float:
    """The loss that `inspect_model` finds, alone."""
    device = next(model.parameters()).device
    batches = zip(inputs.to(device).split(batch_size), targets.to(device).split(batch_size), strict=True)
    losses = [_loss(model, *batch, num_token_ids) for batch in islice(batches, len(inputs) // batch_size)]
    return torch.stack(losses).double().mean().item()


def _loss(model: LanguageModel, inputs: Tensor, targets: Tensor, num_token_ids: int | None) -> Tensor:
    if model.config.image:
        return model(inputs, targets)
    x_BTD, weight_VD = model.hidden_states(inputs), model.head_weight[:num_token_ids]
    return linear_cross_entropy(x_BTD.flatten(0, 1), weight_VD, targets.flatten(), model.kernels)


def _gradient_norm(squares: Iterable[list[Tensor]]) -> GradientNorm:
    """The norm over batches, from the squared norms of all parts, batch by batch."""
    norms = torch.stack([torch.stack(part) for part in squares]).sum(dim=0).sqrt()
    mean = norms.mean().item()
    spread = norms.std(correction=1).item() / mean if len(norms) > 1 and mean else None
    return GradientNorm(mean=mean, spread=spread)


def _watch_gradients(
    model: LanguageModel, watches: Collection[LayerKey], squares: Squares
) -> Iterator[RemovableHandle]:
    """Adds to `squares` in each backward pass, and frees the gradients."""

    def measure(name: str, layer: LayerKey | None, parameter: Tensor) -> None:
        assert parameter.grad is not None
        squares[layer, name].append(torch.linalg.vector_norm(parameter.grad).double().square())
        parameter.grad = None

    for name, parameter in model.named_parameters():
        parameter.grad = None
        part = PartName.parse(name)
        layer = (part.block, part.part) if part else None
        hook = partial(measure, name, layer if layer in watches else None)
        yield parameter.register_post_accumulate_grad_hook(hook)


def text_windows(
    files: Sequence[Path], tokenizer: Tokenizer, facts: TextFacts, num_sequences: int, context: int
) -> Tensor:
    """The first windows of the text in `files`, read no further than they need: (S, T + 1) int64.

    Raises UserError if the text is shorter than one window, DataError if a file cannot be read.
    """
    stream = TokenStream(files, tokenizer, facts)
    first = islice(sliding_windows(stream, context, context), num_sequences)
    whole = [window.tokens for window in first if len(window.tokens) == context + 1]
    if not whole:
        raise UserError(
            f"--text {files[0]}: the text has {counted(stream.num_tokens, 'token')}, but one window of "
            f"--context {context} needs {context + 1}; give more text or a smaller --context"
        )
    return torch.from_numpy(np.stack(whole))
