"""What an inspection measures equals what is computed by hand, for every score function and for a decoder.

Shapes: S sequences, B batch, T sequence, D model width, O output width, M data tokens, N parameter tokens.
"""

import math
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.decoder_config import DecoderConfig, decoder_config
from model.errors import Failure
from model.growth import grow_model
from model.initialization import build_model
from model.language_model import LanguageModel
from model.policy import GrowthPolicy
from model.shapes import ModelConfig
from model.tokenformer_config import PATTENTIONS, Generation, PattentionConfig, TokenformerConfig
from stages.inspect.facts import Layer, Scores
from stages.inspect.measure import inspect_model
from tests.stages.checkpoints import small_config

FUNCTIONS = ("l2_norm_gelu", "gelu_l2_norm", "softmax")
LINEAR = ("query", "key", "value", "projection", "gate", "up", "down")
DECODER = decoder_config(vocab_size=31, hidden_size=16, num_heads=1, num_layers=2, ffn_tokens=24, activation="swiglu")
TOKENS_ST = torch.randint(31, (4, 8), generator=torch.Generator().manual_seed(1))
SAMPLES = TOKENS_ST[:, :-1], TOKENS_ST[:, 1:]
BATCHES = [(tokens_BT[:, :-1], tokens_BT[:, 1:]) for tokens_BT in TOKENS_ST.split(2)]


def grown(config: TokenformerConfig) -> TokenformerConfig:
    """`config` with a second generation in the first block's FFN, of its own norm and with a ramp."""
    first, *rest = config.blocks
    generations = (*first.ffn.generations, Generation(num_tokens=3, number=1, tau=1.5, key_ramp=0.5, copies=1))
    ffn = PattentionConfig(generations=generations, tau=first.ffn.tau)
    return config.model_copy(update={"blocks": (first.model_copy(update={"ffn": ffn}), *rest)})


CONFIGS: dict[str, ModelConfig] = {
    **{function: grown(small_config(score_function=function)) for function in FUNCTIONS},
    "decoder": DECODER,
}


def built(name: str) -> LanguageModel:
    """A model in float64 with gradients of ordinary size in every layer."""
    model = build_model(CONFIGS[name], seed=0).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "key_tokens" in name or "query.weight" in name or "key.weight" in name:
                parameter.mul_(20)
    return model


for_each_model = pytest.mark.parametrize("name", CONFIGS)
for_each_function = pytest.mark.parametrize("name", FUNCTIONS)


def layer_names(model: LanguageModel) -> tuple[str, ...]:
    return LINEAR if isinstance(model.config, DecoderConfig) else PATTENTIONS


def layers(model: LanguageModel, tokens_ST: Tensor = TOKENS_ST) -> dict[tuple[int, str], Layer]:
    found = inspect_model(model, tokens_ST[:, :-1], tokens_ST[:, 1:], 2)
    return {(layer.block, layer.name): layer for layer in found.layers}


def loss_of(model: LanguageModel, input_ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
    return F.cross_entropy(model(input_ids_BT).flatten(0, 1), targets_BT.flatten())


def layer_gradients(model: LanguageModel, loss: Tensor) -> dict[tuple[int, str], Tensor]:
    """By block and layer: all gradients as one vector, by plain autograd; those of all parameters as (-1, "all")."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    grads = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    found: dict[tuple[int, str], list[Tensor]] = {(-1, "all"): [grad.flatten() for grad in grads.values()]}
    for block, layer in product((0, 1), layer_names(model)):
        prefix = f"blocks.{block}.{layer}."
        found[block, layer] = [grad.flatten() for name, grad in grads.items() if name.startswith(prefix)]
    return {key: torch.cat(parts) for key, parts in found.items()}


@for_each_model
def test_losses_and_gradient_norms_are_those_of_autograd_batch_by_batch(name):
    model = built(name)
    losses = [loss_of(model, *batch) for batch in BATCHES]
    by_hand = [layer_gradients(model, loss) for loss in losses]
    facts = inspect_model(model, *SAMPLES, 2)
    assert facts.loss == pytest.approx(torch.stack(losses).mean().item())
    found = {(-1, "all"): facts.gradient} | {(layer.block, layer.name): layer.gradient for layer in facts.layers}
    assert list(found) == list(by_hand[0])
    for key, norm in found.items():
        norms = torch.stack([grads[key].norm() for grads in by_hand])
        assert norm.mean == pytest.approx(norms.mean().item(), rel=1e-9), key
        assert norm.spread == pytest.approx((norms.std() / norms.mean()).item(), rel=1e-6), key
    of_layers = [layer.gradient.mean for layer in facts.layers]
    assert facts.depth_ratio == max(of_layers) / min(of_layers)
    inputs, targets = (torch.cat((part, part[:1])) for part in SAMPLES)
    assert inspect_model(model, inputs, targets, 2) == facts, "half a batch is left out"
    assert {layer.gradient.spread for layer in inspect_model(model, *SAMPLES, 9).layers} == {None}


class _Recorded(nn.Module):
    """Runs a layer, and keeps its inputs and outputs with their gradients."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.calls: list[tuple[Tensor, Tensor]] = []

    def forward(self, x_BTD: Tensor) -> Tensor:
        own_BTD = x_BTD.clone()  # nothing else reads it, so its gradient is that through this layer alone
        out_BTO = self.layer(own_BTD)
        own_BTD.retain_grad()
        out_BTO.retain_grad()
        self.calls.append((own_BTD, out_BTO))
        return out_BTO


@for_each_model
def test_gains_and_activations_are_those_of_each_layer_alone(name):
    model = built(name)
    facts = layers(model)
    for block, layer in facts:
        setattr(model.blocks[str(block)], layer, _Recorded(model.blocks[str(block)].get_submodule(layer)))
    for batch in BATCHES:
        loss_of(model, *batch).backward()
    for (block, layer_name), found in facts.items():
        recorded: Any = model.blocks[str(block)].get_submodule(layer_name)
        grad_in, grad_out = (torch.cat([pair[side].grad.flatten() for pair in recorded.calls]) for side in (0, 1))
        assert found.gradient_gain == pytest.approx((grad_in.norm() / grad_out.norm()).item(), rel=1e-6)
        out = torch.cat([out_BTO.detach().flatten() for _, out_BTO in recorded.calls])
        assert found.output.rms == pytest.approx(out.square().mean().sqrt().item())
        central = out - out.mean()
        kurtosis = (central**4).mean() / (central**2).mean() ** 2
        assert found.output.kurtosis == pytest.approx(kurtosis.item(), rel=1e-6)


def test_a_model_with_weights_that_are_not_finite_fails():
    model = build_model(DECODER, seed=0)
    with torch.no_grad():
        model.embedding.weight[3] = torch.nan
    with pytest.raises(Failure, match="the loss is nan"):
        layers(model)


def test_new_layers_are_named_by_their_position_and_have_no_kurtosis_no_gain_and_only_dead_tokens():
    """The values of their projection and FFN are zero, so they add nothing and no gradient reaches their queries."""
    empty = build_model(small_config(num_layers=0), seed=0)
    assert inspect_model(empty, *SAMPLES, 2).layers == ()
    model = grow_model(empty, new_layers=1, layer_tokens=(4, 6))
    model = grow_model(model, new_layers=2, layer_tokens=(3, 5))
    model = grow_model(model, new_layers=3, layer_tokens=(7, 8), policy=GrowthPolicy(depth="interleave"))
    assert model.config.block_ids == (0, 3, 1, 4, 2, 5)
    facts, by_key = inspect_model(model, *SAMPLES, 2), layers(model)
    assert list(by_key) == list(product(range(6), PATTENTIONS))
    assert [by_key[i, "query"].scores.num_tokens for i in range(6)] == [4, 7, 3, 7, 3, 7]
    assert facts.num_dead == (4 + 6) + 2 * (3 + 5) + 3 * (7 + 8)
    assert facts.depth_ratio is None
    assert by_key[0, "ffn"].output.kurtosis is None
    assert by_key[0, "query"].gradient_gain is None
    assert by_key[0, "query"].gradient.mean == 0


def pattention(model: LanguageModel, block: int, name: str) -> Any:
    return model.blocks[str(block)].get_submodule(name)


def first_inputs(model: LanguageModel) -> Tensor:
    """What the first block's query reads: it depends on nothing but the data token itself."""
    return F.layer_norm(model.embedding(TOKENS_ST[:, :-1]), (16,), eps=1e-5).detach()


def scores_of(model: LanguageModel, block: int, name: str, tokens_ST: Tensor = TOKENS_ST) -> Scores:
    scores = layers(model, tokens_ST)[block, name].scores
    assert scores is not None
    return scores


@for_each_function
def test_the_effective_tokens_are_those_of_all_scores_at_once(name):
    model = built(name)
    entropies = []
    for row in pattention(model, 0, "query").scores(first_inputs(model))[0].abs().flatten(0, 1).tolist():
        shares = [value / sum(row) for value in row]
        entropies.append(-sum(share * math.log(share) for share in shares if share))
    expected = sum(map(math.exp, entropies)) / len(entropies)
    assert scores_of(model, 0, "query").effective_tokens == pytest.approx(expected)


@for_each_function
def test_shares_of_generations_are_those_of_scores_and_values(name):
    model = built(name)
    ffn = pattention(model, 0, "ffn")
    inputs: list[Tensor] = []
    hook = ffn.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    model(TOKENS_ST[:, :-1])
    hook.remove()
    sizes_N = [score.abs().sum(dim=(0, 1)) for score in ffn.scores(inputs[0]).values()]
    norms = (ffn.value_tokens[str(number)].norm(dim=-1) * ffn.config.value_shares[number] for number in (0, 1))
    mass = [size_N.sum() for size_N in sizes_N]
    use = [(size_N * norm_N).sum() for size_N, norm_N in zip(sizes_N, norms, strict=True)]
    found = scores_of(model, 0, "ffn").generations
    assert [(g.generation, g.num_tokens, g.key_ramp) for g in found] == [(0, 10, 1), (1, 3, 0.5)]
    assert [g.score_mass for g in found] == pytest.approx([(own / sum(mass)).item() for own in mass])
    assert [g.contribution for g in found] == pytest.approx([(own / sum(use)).item() for own in use])


@for_each_function
def test_tokens_that_add_nothing_are_dead_and_named(name):
    """With a zero value; with a zero key, unless softmax gives it a share; all of a layer without output."""
    model = built(name)
    with torch.no_grad():
        pattention(model, 0, "ffn").value_tokens["1"][2] = 0
        pattention(model, 0, "ffn").value_tokens["0"][4] = 0
        pattention(model, 1, "ffn").key_tokens["0"][3] = 0
    tokens_ST = torch.randint(31, (6, 9), generator=torch.Generator().manual_seed(2))  # so many use every token
    dead = {key: [g.dead for g in layer.scores.generations] for key, layer in layers(model, tokens_ST).items()}
    expected: dict[tuple[int, str], list[tuple[int, ...]]] = {(0, "ffn"): [(4,), (2,)]}
    expected |= {} if name == "softmax" else {(1, "ffn"): [(3,)]}
    assert {key: found for key, found in dead.items() if any(found)} == expected
    with torch.no_grad():
        pattention(model, 0, "value").value_tokens["0"].zero_()
    assert scores_of(model, 0, "value").generations[0].dead == (0, 1, 2, 3, 4)
