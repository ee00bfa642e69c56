"""Runs a model over a text, forward and backward, and measures every layer.

Hooks read what they need while a batch passes. A parameter's gradient is freed as soon as its norm is known, so a
measurement needs the weights, the activations of one batch, and one gradient. Shapes: S sequences of the text, B of a
batch, T sequence, D model width, V vocabulary.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from model.config import PATTENTIONS, TokenformerConfig, num_parameters
from model.errors import Failure
from model.language_model import LanguageModel
from model.loss import linear_cross_entropy
from model.parameter_names import TokensName, split_block
from model.tokenformer import Tokenformer
from stages.inspect.facts import Inspected, Layer
from stages.inspect.scores import Describe, ScoreSums
from stages.inspect.streams import GainSums, OutputSums, gradient_norm

LINEAR_LAYERS = {
    "attention_input": ("query", "key", "value"),
    "projection": ("projection",),
    "ffn_input": ("ffn",),
    "ffn_output": ("ffn",),
}
"""The layers of a Transformer's block, and the Pattentions that stand in their place. The rows of `attention_input`
are those of query, key and value, one after the other."""


class LayerKey(NamedTuple):
    """A layer of a model."""

    block: int
    name: str


class PartKey(NamedTuple):
    """A part of a model's parameters: one kind of parameter of one layer, or a parameter outside the layers."""

    layer: LayerKey | None
    kind: str


class _Watch:
    """Everything that is measured of one layer's activations."""

    def __init__(self, pattention: Any = None) -> None:
        self.output, self.gain = OutputSums(), GainSums()
        self.scores = ScoreSums(pattention) if pattention is not None else None


def inspect_model(
    model: LanguageModel,
    tokens_ST: Tensor,
    batch_size: int,
    describe: Describe,
    on_batch: Callable[[], None] = lambda: None,
    *,
    num_token_ids: int | None = None,
) -> Inspected:
    """Measures `model` on the windows `tokens_ST`, (S, T + 1) int64, `batch_size` sequences at a time.

    S must be a multiple of `batch_size`. `describe(sequence, position)` returns the text before a place and the data
    token there. `on_batch` is called after every batch. The model's gradients are freed; its weights do not change.
    The softmax is over the first `num_token_ids` rows of the embedding (default: all); the others are padding.

    Raises Failure if a loss or a gradient is not finite.
    """
    assert len(tokens_ST) % batch_size == 0
    device = next(model.parameters()).device
    watches = {
        LayerKey(block, name): _Watch(getattr(module, name) if isinstance(model, Tokenformer) else None)
        for block, module in zip(model.config.block_ids, model.blocks.values(), strict=True)
        for name in PATTENTIONS
    }
    squares: dict[PartKey, list[Tensor]] = defaultdict(list)
    losses = []
    model.eval().requires_grad_(True)
    with _gradients_measured(model) as batch_squares, _activations_measured(model, watches) as start_at:
        for first in range(0, len(tokens_ST), batch_size):
            start_at(first)
            tokens_BT = tokens_ST[first : first + batch_size].to(device)
            x_BTD, weight_VD = model.hidden_states(tokens_BT[:, :-1]), model.embedding.weight[:num_token_ids]
            loss = linear_cross_entropy(x_BTD.flatten(0, 1), weight_VD, tokens_BT[:, 1:].flatten(), model.kernels)
            loss.backward()
            losses.append(loss.detach())
            for key, parts in batch_squares.items():
                squares[key].append(torch.stack(parts).sum())
            batch_squares.clear()
            on_batch()
    facts = Inspected(
        family=model.config.family,
        score_function=model.config.score_function if isinstance(model.config, TokenformerConfig) else None,
        num_parameters=num_parameters(model.config),
        loss=torch.stack(losses).double().mean().item(),
        gradient=gradient_norm(_summed(list(squares.values()))),
        layers=tuple(_layer(model, key, watch, squares, describe) for key, watch in watches.items()),
    )
    if not (math.isfinite(facts.loss) and math.isfinite(facts.gradient.mean)):
        raise Failure(f"the loss is {facts.loss} and its gradient norm {facts.gradient.mean}: they must be finite")
    return facts


def _summed(parts: list[list[Tensor]]) -> list[Tensor]:
    """Sums the squares of all parts, batch by batch."""
    return [torch.stack(batch).sum() for batch in zip(*parts, strict=True)]


def _layer(
    model: LanguageModel, key: LayerKey, watch: _Watch, squares: dict[PartKey, list[Tensor]], describe: Describe
) -> Layer:
    kinds = {part.kind: found for part, found in squares.items() if part.layer == key}
    sizes = (
        part.numel()
        for name, parameter in model.named_parameters()
        for place, part in gradient_parts(name, parameter)
        if place.layer == key
    )
    return Layer(
        *key,
        num_parameters=sum(sizes),
        output=watch.output.distribution(),
        gradient=gradient_norm(_summed(list(kinds.values()))),
        gradient_by_kind={kind: gradient_norm(found).mean for kind, found in kinds.items()},
        gradient_gain=watch.gain.gain(),
        scores=watch.scores.scores(watch.output.rms_norm, describe) if watch.scores else None,
    )


def gradient_parts(name: str, grad: Tensor) -> Iterator[tuple[PartKey, Tensor]]:
    """The parts of the parameter `name`, or of its gradient."""
    tokens = TokensName.parse(name)
    if tokens:
        yield PartKey(LayerKey(tokens.block, tokens.pattention), tokens.kind), grad
        return
    block, inside = split_block(name) or (0, "")
    linear, _, kind = inside.partition(".")
    if linear not in LINEAR_LAYERS:
        yield PartKey(None, name), grad
        return
    layers = LINEAR_LAYERS[linear]
    for layer, part in zip(layers, grad.chunk(len(layers)), strict=True):
        yield PartKey(LayerKey(block, layer), kind), part


@contextmanager
def _gradients_measured(model: LanguageModel) -> Iterator[dict[PartKey, list[Tensor]]]:
    """Yields a dictionary to which each backward pass adds the squared norms of gradients, which it then frees."""
    squares: dict[PartKey, list[Tensor]] = defaultdict(list)

    def measure(name: str) -> Callable[[Tensor], None]:
        def free(parameter: Tensor) -> None:
            assert parameter.grad is not None
            for key, part in gradient_parts(name, parameter.grad):
                squares[key].append(torch.linalg.vector_norm(part).double().square())
            parameter.grad = None

        return free

    handles = []
    for name, parameter in model.named_parameters():
        parameter.grad = None
        handles.append(parameter.register_post_accumulate_grad_hook(measure(name)))
    try:
        yield squares
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _activations_measured(model: LanguageModel, watches: dict[LayerKey, _Watch]) -> Iterator[Callable[[int], None]]:
    """Measures every layer's outputs, gradients and scores; yields a function that sets a batch's first sequence."""
    first_sequence = 0

    def start_at(first: int) -> None:
        nonlocal first_sequence
        first_sequence = first

    def watch_scores(watch: _Watch) -> Callable[..., None]:
        def forward(_: nn.Module, inputs: tuple[Tensor], output_BTD: Tensor) -> None:
            assert watch.scores is not None
            watch.scores.add(inputs[0], first_sequence)

        return forward

    handles: list[RemovableHandle] = []
    for (number, name), watch in watches.items():
        block = model.blocks[str(number)]
        if isinstance(model, Tokenformer):
            pattention = block.get_submodule(name)
            handles += [*_watch(pattention, watch), pattention.register_forward_hook(watch_scores(watch))]
        elif name == "projection":
            handles += _watch(block.get_submodule(name), watch)
        elif name == "ffn":
            handles += _watch_mlp(block.get_submodule("ffn_input"), block.get_submodule("ffn_output"), watch)
    if not isinstance(model, Tokenformer):
        for block_id, block in model.blocks.items():
            parts = [watches[LayerKey(int(block_id), name)] for name in LINEAR_LAYERS["attention_input"]]
            handles += _watch_joint(block.get_submodule("attention_input"), parts)
    try:
        yield start_at
    finally:
        for handle in handles:
            handle.remove()


def _watch(module: nn.Module, watch: _Watch) -> list[RemovableHandle]:
    """Measures the output of `module` and the gradients on both sides of it."""

    def backward(_: nn.Module, grad_in: Any, grad_out: Any) -> None:
        watch.gain.add(grad_in[0], grad_out[0])

    return [
        module.register_forward_hook(lambda _, inputs, output_BTO: watch.output.add(output_BTO)),
        module.register_full_backward_hook(backward),
    ]


def _watch_mlp(first: nn.Module, second: nn.Module, watch: _Watch) -> list[RemovableHandle]:
    """Measures the output of `second`, and the gradients there and at the input of `first`."""
    at_output: list[Tensor] = []

    def behind(_: nn.Module, grad_in: Any, grad_out: Any) -> None:
        at_output.append(grad_out[0])

    def before(_: nn.Module, grad_in: Any, grad_out: Any) -> None:
        watch.gain.add(grad_in[0], at_output.pop())

    return [
        second.register_forward_hook(lambda _, inputs, output_BTD: watch.output.add(output_BTD)),
        second.register_full_backward_hook(behind),
        first.register_full_backward_hook(before),
    ]


def _watch_joint(linear: nn.Module, watches: list[_Watch]) -> list[RemovableHandle]:
    """Measures the layers that share the matrix of `linear`: each has a part of its rows."""

    def forward(_: nn.Module, inputs: tuple[Tensor], output_BTO: Tensor) -> None:
        for watch, part_BTD in zip(watches, output_BTO.chunk(len(watches), dim=-1), strict=True):
            watch.output.add(part_BTD)

    def backward(_: nn.Module, grad_in: Any, grad_out: Any) -> None:
        parts = grad_out[0].chunk(len(watches), dim=-1)
        weights = linear.get_parameter("weight").detach().chunk(len(watches))
        for watch, part_BTD, weight_OD in zip(watches, parts, weights, strict=True):
            watch.gain.add(part_BTD @ weight_OD, part_BTD)

    return [linear.register_forward_hook(forward), linear.register_full_backward_hook(backward)]
