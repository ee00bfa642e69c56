"""Sparsity, dead tokens and use by generation, on models whose answers are known.

Shapes: S sequences, T sequence, D model width, N parameter tokens.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.initialization import build_model
from model.tokenformer import Tokenformer
from stages.inspect.facts import Layer, Scores
from stages.inspect.measure import inspect_model
from tests.stages.checkpoints import small_config
from tests.stages.inspect.test_measure import CONFIGS, FUNCTIONS

TOKENS_ST = torch.randint(31, (6, 9), generator=torch.Generator().manual_seed(2))


def tokenformer(function: str, grown: bool = False) -> Tokenformer:
    config = CONFIGS[function] if grown else small_config(score_function=function)
    model = build_model(config, seed=0).double()
    assert isinstance(model, Tokenformer)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "key_tokens" in name:
                parameter.mul_(20)
    return model


def pattention(model: Tokenformer, block: int, name: str) -> Any:
    return model.blocks[str(block)].get_submodule(name)


def layers(model: Tokenformer, tokens_ST: Tensor = TOKENS_ST) -> dict[tuple[int, str], Layer]:
    facts = inspect_model(model, tokens_ST, 2)
    return {(layer.block, layer.name): layer for layer in facts.layers}


def scores_of(model: Tokenformer, block: int = 0, name: str = "query", tokens_ST: Tensor = TOKENS_ST) -> Scores:
    scores = layers(model, tokens_ST)[block, name].scores
    assert scores is not None
    return scores


def first_inputs(model: Tokenformer, tokens_ST: Tensor = TOKENS_ST) -> Tensor:
    """What the first block's query reads: it depends on nothing but the data token itself."""
    return F.layer_norm(model.embedding(tokens_ST[:, :-1]), (model.config.hidden_size,), eps=1e-5).detach()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_effective_tokens_are_those_of_all_scores_at_once(function):
    model = tokenformer(function)
    size_MN = pattention(model, 0, "query").scores(first_inputs(model))[0].abs().flatten(0, 1)
    found = scores_of(model)
    assert found.num_tokens == 5
    entropies = []
    for row in size_MN.tolist():
        shares = [value / sum(row) for value in row]
        entropies.append(-sum(share * math.log(share) for share in shares if share))
    assert found.effective_tokens == pytest.approx(sum(map(math.exp, entropies)) / len(entropies))


def test_equal_scores_use_all_tokens_and_one_score_uses_one():
    model = tokenformer("softmax")
    with torch.no_grad():
        pattention(model, 0, "query").key_tokens["0"].zero_()
        pattention(model, 0, "key").key_tokens["0"][:] = 1000 * first_inputs(model)[0, 0]
        pattention(model, 0, "key").key_tokens["0"][1:] *= -1
    one = TOKENS_ST[:1, :1].expand(2, 9)
    assert scores_of(model, name="query", tokens_ST=one).effective_tokens == pytest.approx(5)
    assert scores_of(model, name="key", tokens_ST=one).effective_tokens == pytest.approx(1)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_shares_of_generations_are_those_of_scores_and_values(function):
    model = tokenformer(function, grown=True)
    ffn = pattention(model, 0, "ffn")
    inputs: list[Tensor] = []
    hook = ffn.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    model(TOKENS_ST[:, :-1])
    hook.remove()
    scores = ffn.scores(torch.cat(inputs))
    mass = {number: score.abs().sum(dim=(0, 1)) for number, score in scores.items()}
    shares = dict(zip((0, 1), ffn.config.value_shares, strict=True))
    use = {
        number: (mass[number] * ffn.value_tokens[str(number)].norm(dim=-1)).sum() * shares[number] for number in mass
    }
    found = scores_of(model, name="ffn").generations
    assert [generation.generation for generation in found] == [0, 1]
    assert [generation.key_ramp for generation in found] == [1, 0.5]
    for generation in found:
        number = generation.generation
        assert generation.num_tokens == scores[number].shape[-1]
        assert generation.score_mass == pytest.approx((mass[number].sum() / sum(m.sum() for m in mass.values())).item())
        assert generation.contribution == pytest.approx((use[number] / sum(use.values())).item())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_tokens_that_add_nothing_are_dead_and_named(function):
    """With a zero value; with a zero key, unless softmax gives it a share; all of a layer without output."""
    model = tokenformer(function, grown=True)
    with torch.no_grad():
        pattention(model, 0, "ffn").value_tokens["1"][2] = 0
        pattention(model, 0, "ffn").value_tokens["0"][4] = 0
        pattention(model, 1, "ffn").key_tokens["0"][3] = 0
    dead = {key: [g.dead for g in layer.scores.generations] for key, layer in layers(model).items()}
    expected: dict[tuple[int, str], list[tuple[int, ...]]] = {(0, "ffn"): [(4,), (2,)]}
    expected |= {} if function == "softmax" else {(1, "ffn"): [(3,)]}
    assert {key: found for key, found in dead.items() if any(found)} == expected
    with torch.no_grad():
        pattention(model, 0, "value").value_tokens["0"].zero_()
    assert scores_of(model, name="value").generations[0].dead == (0, 1, 2, 3, 4)
