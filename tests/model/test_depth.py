"""Growth in depth: where new blocks go, what they start as, and that they change nothing."""

from itertools import product
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.attention import rotary_table
from model.config_growth import anneal_config, grow_config, ramp_config, shrink_config
from model.depth import COPYING, Depth, placed_after
from model.growth import grow_model
from model.initialization import build_model, initial_rms
from model.language_model import LanguageModel
from model.parameter_names import generation_of
from model.policy import GrowthPolicy, has_unfinished_ramps, is_published, preserves, rejection_reason
from model.shapes import parameter_shapes
from model.tokenformer_config import TokenformerConfig, published_tau
from tests.model.growths import IDS, INITS, POSSIBLE, SCORE_FUNCTIONS, Growth, allowed, growths, histories, small_config

STACK, MIDDLE = (GrowthPolicy(depth=depth, allow_jump=True) for depth in COPYING)
COPY = GrowthPolicy(init="copy", tau="recompute")


def deeper(config: TokenformerConfig, new_layers: int, depth: Depth = "append", **arguments: Any) -> TokenformerConfig:
    """`config` after a growth in depth alone, unless `arguments` say more."""
    return grow_config(config, new_layers=new_layers, **({"policy": GrowthPolicy(depth=depth)} | arguments))


@torch.no_grad()
def logits(model: LanguageModel) -> Tensor:
    return model(IDS)


def trained(model: LanguageModel) -> LanguageModel:
    """As if trained: no values are zero or equal, and their sizes differ."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_((0.1 + 0.01 * number) * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize(
    ("depth", "old", "new", "after"),
    [
        ("append", 3, 2, (2, 2)),
        ("append", 0, 2, (-1, -1)),
        ("interleave", 4, 2, (1, 3)),
        ("interleave", 5, 2, (2, 4)),
        ("interleave", 2, 5, (0, 0, 1, 1, 1)),
        ("interleave", 0, 3, (-1, -1, -1)),
        ("copy-stack", 2, 4, (1, 1, 1, 1)),
        ("copy-middle", 8, 4, (5, 5, 5, 5)),
        ("copy-middle", 11, 6, (7, 7, 7, 7, 7, 7)),
        ("copy-middle", 2, 1, (0,)),
        ("copy-middle", 3, 3, (2, 2, 2)),
    ],
)
def test_new_blocks_are_appended_spread_evenly_or_follow_the_last_block_that_they_copy(depth, old, new, after):
    assert placed_after(depth, old, new) == after


def test_old_blocks_keep_their_ids_and_new_ones_take_the_next():
    once = deeper(small_config(), 2, "interleave")
    assert once.block_ids == (0, 2, 1, 3)
    twice = deeper(once, 2, "interleave")
    assert twice.block_ids == (0, 2, 4, 1, 3, 5)
    assert [block.generation for block in twice.blocks] == [0, 1, 2, 0, 1, 2]
    assert deeper(twice, 1).block_ids == (0, 2, 4, 1, 3, 5, 6)
    added = set(parameter_shapes(once)) - set(parameter_shapes(small_config()))
    assert {generation_of(name) for name in added} == {1}


def test_a_new_block_is_as_large_as_the_block_before_it_after_the_growth_or_as_asked():
    config = grow_config(small_config(), attention_tokens=[0, 3], ffn_tokens=0, policy=allowed("zero-key", "frozen"))
    grown = deeper(config, 2, "interleave", attention_tokens=[2, 0], ffn_tokens=0)
    sizes = [[p.num_tokens for p in block.pattentions().values()] for block in grown.blocks]
    assert sizes == [[6, 6, 6, 6, 6]] * 2 + [[7, 7, 7, 7, 6]] * 2
    new = grown.blocks[3].query
    assert [(g.number, g.key_ramp, g.tau, g.copies, g.tau_before) for g in new.generations] == [(2, 1, None, 0, None)]
    assert new.tau == published_tau(config.score_function, 7)
    asked = deeper(config, 1, layer_tokens=(9, 11)).blocks[-1]
    assert [p.num_tokens for p in asked.pattentions().values()] == [9, 9, 9, 9, 11]


def test_equal_new_layers_share_one_configuration_are_settled_and_later_tokens_of_theirs_ramp_in():
    config = deeper(small_config(num_layers=24), 24, "interleave")
    assert len({id(block) for block in config.blocks}) == 2
    assert is_published(config)
    assert ramp_config(config, 0.5) == anneal_config(config, 0.5) == config
    again = ramp_config(deeper(config, 48, "interleave", attention_tokens=2), 0.5)
    assert len({id(block) for block in again.blocks}) <= 4
    assert [[g.key_ramp for g in block.query.generations] for block in again.blocks[:4]] == [[1, 0.5], [1]] * 2


@pytest.mark.parametrize(("score_function", "depth"), product(SCORE_FUNCTIONS, ("append", "interleave")))
@pytest.mark.parametrize("num_layers", [0, 1, 3])
def test_new_blocks_change_no_bit_of_the_logits(score_function, depth, num_layers):
    model = trained(build_model(small_config(num_layers=num_layers, score_function=score_function), seed=0))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        old = model.to(dtype)
        new = grow_model(old, new_layers=2, layer_tokens=(3, 5), policy=GrowthPolicy(depth=depth), seed=1)
        assert new.config.num_layers == num_layers + 2
        assert torch.equal(logits(new), logits(old))


@pytest.mark.parametrize(("score_function", "num_layers"), product(SCORE_FUNCTIONS, (0, 2)))
def test_new_blocks_learn_by_their_zeros_first_and_wholly_from_the_second_step_on(score_function, num_layers):
    model = build_model(small_config(num_layers=num_layers, score_function=score_function), seed=0)
    grown = grow_model(trained(model), new_layers=2, layer_tokens=(4, 6), policy=GrowthPolicy(depth="interleave"))
    new = {name: p for name, p in grown.named_parameters() if generation_of(name) == 1}
    zeros = {name for name, p in new.items() if not p.any()}
    assert {name.split(".", 2)[2] for name in zeros} == {"projection.value_tokens.1", "ffn.value_tokens.1"}
    optimizer = torch.optim.Adam(grown.parameters(), lr=1e-2)
    for moving in (zeros, set(new), set(new)):
        optimizer.zero_grad()
        grown(IDS[:, :-1], IDS[:, 1:]).backward()
        assert {name for name, p in new.items() if p.grad.any()} == moving
        optimizer.step()


@pytest.mark.parametrize("init", INITS)
def test_new_blocks_are_scaled_to_the_old_ones_unless_they_are_random(init):
    model = trained(build_model(small_config(attention_tokens=50, ffn_tokens=50), seed=0))
    grown = grow_model(model, new_layers=3, policy=allowed(init, "recompute"))
    for name in ("query.key_tokens", "query.value_tokens", "value.value_tokens", "ffn.key_tokens"):
        old, new = (
            torch.cat([grown.get_parameter(f"blocks.{i}.{name}.{number}") for i in blocks]).square().mean().sqrt()
            for number, blocks in enumerate([(0, 1), (2, 3, 4)])
        )
        unscaled = initial_rms(f"blocks.2.{name}.1", grown.config)
        assert new.item() == pytest.approx(unscaled if init == "random" else old.item(), rel=0.1)


@pytest.mark.parametrize(
    ("depth", "num_layers", "new_layers", "ids", "repeats"),
    [
        ("copy-stack", 2, 4, (0, 1, 2, 3, 4, 5), (0, 1) * 3),
        ("copy-middle", 4, 2, (0, 1, 2, 4, 5, 3), (0, 1, 2, 1, 2, 3)),
        ("copy-middle", 4, 1, (0, 1, 4, 2, 3), (0, 1, 1, 2, 3)),
        ("copy-middle", 2, 2, (0, 1, 2, 3), (0, 1) * 2),
    ],
)
def test_copies_of_blocks_repeat_them_and_keep_old_parameters(depth, num_layers, new_layers, ids, repeats):
    model = trained(build_model(small_config(num_layers=num_layers), seed=0)).double()
    folded = grow_model(model, attention_tokens=4, policy=COPY)
    copied = grow_model(folded, new_layers=new_layers, policy=GrowthPolicy(depth=depth, allow_jump=True))
    assert copied.config.block_ids == ids
    assert isinstance(copied.config, TokenformerConfig)
    assert is_published(copied.config)
    new = [copied.config.block(i) for i in range(num_layers, num_layers + new_layers)]
    generations = [p.generations for block in new for p in block.pattentions().values()]
    assert {(len(each), each[0].number) for each in generations} == {(1, 2)}
    assert all(torch.equal(copied.get_parameter(name), p) for name, p in folded.named_parameters())
    with torch.no_grad():
        x_BTD = folded.embedding(IDS)
        table = rotary_table(torch.arange(IDS.shape[1]), folded.config.rotary_width, 10000.0, like=x_BTD)
        for position in repeats:
            x_BTD = folded.blocks[str(position)](x_BTD, table)
        repeated = folded.final_norm(x_BTD) @ folded.embedding.weight.mT
    assert torch.allclose(logits(copied), repeated, rtol=0, atol=1e-12)


def test_copies_of_blocks_keep_a_frozen_tau():
    frozen = grow_config(small_config(), attention_tokens=4, policy=allowed("zero-key", "frozen"))
    stacked = deeper(frozen, 2, policy=STACK)
    old, new = ([(p.tau, p.num_tokens) for p in block.pattentions().values()] for block in stacked.blocks[1::2])
    assert old == new


@pytest.mark.parametrize("score_function", SCORE_FUNCTIONS)
def test_no_rule_about_new_tokens_applies_to_a_growth_in_depth_alone(score_function):
    config = small_config(score_function=score_function)
    for policy in (GrowthPolicy(), GrowthPolicy(tau="recompute"), COPY):
        assert deeper(config, 1, policy=policy).num_layers == 3
        assert preserves(config, policy, adds_tokens=False, adds_layers=True)
        assert rejection_reason(config, policy, adds_tokens=False, adds_layers=True) is None
    for policy in (STACK, MIDDLE):
        assert not preserves(config, policy, adds_tokens=False, adds_layers=True)
        assert preserves(small_config(), policy)  # without new layers


@settings(max_examples=40)
@given(st.data(), st.sampled_from(SCORE_FUNCTIONS), st.lists(st.sampled_from(get_args(Depth)), min_size=1, max_size=3))
def test_any_growths_in_depth_and_tokens_can_be_undone_one_by_one_or_at_once(data, score_function, depths):
    empty = small_config(num_layers=0, score_function=score_function)
    configs = [empty if data.draw(st.booleans()) else data.draw(histories(score_function, 1)).config]
    for depth in depths:
        config = configs[-1]
        ramps = has_unfinished_ramps(config)
        own_tau = any(g.tau for b in config.blocks for p in b.pattentions().values() for g in p.generations)
        if depth in COPYING and (not config.num_layers or ramps or own_tau):
            continue
        policy, new_layers = GrowthPolicy(depth=depth, allow_jump=True), config.num_layers
        if depth == "copy-middle":
            new_layers = data.draw(st.integers(1, config.num_layers))
        more: dict[str, Any] = {}
        if depth not in COPYING:
            policies = [(i, t) for i, t, s in POSSIBLE if s == score_function and not (i == "copy" and ramps)]
            init, tau = data.draw(st.sampled_from(policies))
            growth = data.draw(growths(config, init, tau)) if config.num_layers else Growth(allowed(init, tau), [], [])
            policy = growth.policy.model_copy(update={"depth": depth})
            new_layers = data.draw(st.integers(0 if config.num_layers else 1, 3))
            more = {"attention_tokens": growth.attention_tokens, "ffn_tokens": growth.ffn_tokens}
            more["layer_tokens"] = (3, 5) if new_layers else None
        grown = deeper(config, new_layers, policy=policy, **more)
        assert grown.newest_generation == config.newest_generation + 1
        assert TokenformerConfig.model_validate_json(grown.model_dump_json()) == grown
        built = {name: tuple(p.shape) for name, p in build_model(grown, device="meta").named_parameters()}
        assert list(parameter_shapes(grown).items()) == list(built.items())
        configs.append(grown)
    shrunk = configs[-1]
    for number in range(1, len(configs)):
        shrunk = shrink_config(shrunk)
        assert shrunk == shrink_config(configs[-1], number) == configs[-1 - number]
