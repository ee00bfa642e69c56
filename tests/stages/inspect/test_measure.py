"""Gradients, gains and activations equal those computed by hand, for every score function and for a Transformer.

Shapes: S sequences, B batch, T sequence, D model width, O output width.
"""

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import PATTENTIONS, Generation, PattentionConfig, TokenformerConfig, TransformerConfig
from model.errors import Failure
from model.initialization import build_model
from model.language_model import LanguageModel
from stages.inspect.facts import Inspected
from stages.inspect.measure import inspect_model
from tests.stages.checkpoints import small_config

FUNCTIONS = ("l2_norm_gelu", "gelu_l2_norm", "softmax")
LINEAR = ("attention_input", "projection", "ffn_input", "ffn_output")
TRANSFORMER = TransformerConfig(vocab_size=31, hidden_size=16, num_heads=1, num_layers=2, ffn_size=24)
TOKENS_ST = torch.randint(31, (4, 8), generator=torch.Generator().manual_seed(1))
BATCH = 2


def grown(config: TokenformerConfig) -> TokenformerConfig:
    """`config` with a second generation in the first block's FFN, of its own norm and with a ramp."""
    first, *rest = config.blocks
    generations = (*first.ffn.generations, Generation(num_tokens=3, number=1, tau=1.5, key_ramp=0.5, copies=1))
    ffn = PattentionConfig(generations=generations, tau=first.ffn.tau)
    return config.model_copy(update={"blocks": (first.model_copy(update={"ffn": ffn}), *rest)})


CONFIGS: dict[str, TokenformerConfig | TransformerConfig] = {
    **{function: grown(small_config(score_function=function)) for function in FUNCTIONS},
    "transformer": TRANSFORMER,
}


@pytest.fixture(params=CONFIGS)
def model(request) -> LanguageModel:
    """A model in float64 with gradients of ordinary size in every layer."""
    model = build_model(CONFIGS[request.param], seed=0).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "key_tokens" in name or "attention_input" in name:
                parameter.mul_(20)
    return model


def inspected(model: LanguageModel, on_batch: Callable[[], None] = lambda: None) -> Inspected:
    return inspect_model(model, TOKENS_ST, BATCH, on_batch)


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(tokens_BT[:, :-1], tokens_BT[:, 1:]) for tokens_BT in TOKENS_ST.split(BATCH)]


def layer_gradients(model: LanguageModel, input_ids_BT: Tensor, targets_BT: Tensor) -> dict[tuple[int, str], Tensor]:
    """By block and layer: all gradients of the mean loss as one vector, by plain autograd from the logits."""
    loss = F.cross_entropy(model(input_ids_BT).flatten(0, 1), targets_BT.flatten())
    names, parameters = zip(*model.named_parameters(), strict=True)
    grads = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    found: dict[tuple[int, str], list[Tensor]] = {}
    for name, grad in grads.items():
        if not name.startswith("blocks.") or "norm" in name:
            continue
        _, block, layer, _ = name.split(".", 3)
        found.setdefault((int(block), layer), []).append(grad.flatten())
    found[-1, "all"] = [grad.flatten() for grad in grads.values()]
    return {key: torch.cat(parts) for key, parts in found.items()}


def test_gradient_norms_are_those_of_autograd_batch_by_batch(model):
    by_hand = [layer_gradients(model, *batch) for batch in batches()]
    facts = inspected(model)
    found = {(layer.block, layer.name): layer.gradient for layer in facts.layers} | {(-1, "all"): facts.gradient}
    names = LINEAR if isinstance(model.config, TransformerConfig) else PATTENTIONS
    assert list(found) == [*product((0, 1), names), (-1, "all")]
    for key, norm in found.items():
        norms = torch.stack([grads[key].norm() for grads in by_hand])
        assert norm.mean == pytest.approx(norms.mean().item(), rel=1e-9), key
        assert norm.spread == pytest.approx((norms.std() / norms.mean()).item(), rel=1e-6), key


class _Recorded(nn.Module):
    """Runs a function of one input, and keeps the input and the output with their gradients."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.calls: list[tuple[Tensor, Tensor]] = []

    def forward(self, x_BTD: Tensor) -> Tensor:
        own_BTD = x_BTD.clone()  # nothing else reads it, so its gradient is that through this function alone
        own_BTD.retain_grad()
        out_BTO = self.function(own_BTD)
        out_BTO.retain_grad()
        self.calls.append((own_BTD, out_BTO))
        return out_BTO


def recorded(model: LanguageModel) -> list[dict[str, _Recorded]]:
    """Replaces the layers of every block by recorded ones."""
    blocks = []
    for block in model.blocks.values():
        names = LINEAR if isinstance(model.config, TransformerConfig) else PATTENTIONS
        layers = {name: _Recorded(getattr(block, name)) for name in names}
        for name, layer in layers.items():
            setattr(block, name, layer)
        blocks.append(layers)
    return blocks


def test_gains_and_activations_are_those_of_each_layer_alone(model):
    facts = inspected(model)
    blocks = recorded(model)
    for input_ids_BT, targets_BT in batches():
        F.cross_entropy(model(input_ids_BT).flatten(0, 1), targets_BT.flatten()).backward()
    for layer in facts.layers:
        calls = blocks[layer.block][layer.name].calls
        grad_in, grad_out = (torch.cat([pair[side].grad.flatten() for pair in calls]) for side in (0, 1))
        assert layer.gradient_gain == pytest.approx((grad_in.norm() / grad_out.norm()).item(), rel=1e-6)
        out = torch.cat([out_BTO.detach().flatten() for _, out_BTO in calls])
        assert layer.output.rms == pytest.approx(out.square().mean().sqrt().item())
        central = out - out.mean()
        kurtosis = (central**4).mean() / (central**2).mean() ** 2
        assert layer.output.kurtosis == pytest.approx(kurtosis.item(), rel=1e-6)


def test_the_loss_is_the_mean_over_whole_batches_and_a_single_batch_has_no_spread(model):
    losses = [F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).item() for ids, targets in batches()]
    found = inspected(model)
    assert found.loss == pytest.approx(sum(losses) / len(losses))
    assert inspect_model(model, torch.cat((TOKENS_ST, TOKENS_ST[:1])), BATCH) == found
    assert all(layer.gradient.spread is None for layer in inspect_model(model, TOKENS_ST, 9).layers)


def test_no_gradient_is_kept_and_the_model_stays_as_it_was(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept = []
    inspected(model, lambda: kept.append([p.grad for p in model.parameters() if p.grad is not None]))
    assert kept == [[], []]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
    for parameter in model.parameters():
        assert not parameter._post_accumulate_grad_hooks


def test_a_model_with_weights_that_are_not_finite_fails():
    model = build_model(TRANSFORMER, seed=0)
    with torch.no_grad():
        model.embedding.weight[3] = torch.nan
    with pytest.raises(Failure, match="the loss is nan"):
        inspected(model)


def test_a_constant_output_has_no_kurtosis_and_a_layer_without_gradient_no_gain():
    model = build_model(small_config(), seed=0)
    with torch.no_grad():
        for name in ("projection", "ffn"):
            for block in model.blocks.values():
                getattr(block, name).value_tokens["0"].zero_()
    by_name = {layer.name: layer for layer in inspected(model).layers if layer.block == 0}
    assert by_name["ffn"].output.kurtosis is None
    assert by_name["query"].gradient_gain is None, "nothing reaches it through a projection of zeros"
    assert by_name["query"].gradient.mean == 0
    assert inspected(model).depth_ratio is None
