"""Growth policies on configurations: the presets, rejected growths, and the resulting tau."""

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from model.config_growth import anneal_config, grow_config, ramp_config, shrink_config
from model.depth import COPYING
from model.policy import GrowthPolicy, is_published, preserves, rejection_reason
from model.shapes import ModelConfig
from model.tokenformer_config import PATTENTIONS, Generation, PattentionConfig, TokenformerConfig
from tests.model.growths import (
    EXACT,
    INITS,
    INVALID,
    NEVER_SOFTMAX,
    SCORE_FUNCTIONS,
    TAUS,
    allowed,
    histories_and_growths,
    moved,
    small_config,
)

NORMED = SCORE_FUNCTIONS[:2]


def pattentions(config: TokenformerConfig) -> list[PattentionConfig]:
    return [pattention for block in config.blocks for pattention in block.pattentions().values()]


def published_tau(config: TokenformerConfig, pattention: PattentionConfig) -> float:
    """The formula's tau for the tokens that share a norm."""
    shared = sum(g.key_ramp**2 * g.num_tokens for g in pattention.generations if g.tau is None)
    return shared if config.score_function == "softmax" else math.sqrt(shared)


@pytest.mark.parametrize(("init", "tau"), product(INITS, TAUS))
def test_a_policy_is_invalid_rejected_or_exact_as_the_tables_say(init, tau):
    if (init, tau) in INVALID:
        with pytest.raises(ValidationError, match=f"'{init}' cannot be combined with tau '{tau}'; use init '{init}'"):
            allowed(init, tau)
        return
    for score_function, noise, jump, published in product(SCORE_FUNCTIONS, (0.0, 0.1), (False, True), (False, True)):
        config = small_config(score_function=score_function)
        if noise and init != "copy":
            reason = rejection_reason(config, allowed(init, tau, copy_noise=noise))
            assert reason == f"copy_noise 0.1 needs init 'copy', not '{init}'"
            continue
        policy = GrowthPolicy(init=init, tau=tau, copy_noise=noise, allow_jump=jump)
        never = score_function == "softmax" and (init, tau) in NEVER_SOFTMAX
        exact = not never and (init, tau) in EXACT and not noise and (published or init != "copy")
        if not published:
            config = grow_config(config, attention_tokens=4, policy=allowed("zero-value", "per-generation"))
        assert preserves(config, policy) is exact
        reason = rejection_reason(config, policy)
        assert (reason is None) is (not never and (exact or jump))
        if reason:
            why = "exp(0) = 1; use init 'zero-value' with tau 'per-generation', or" if never else "needs allow_jump"
            assert why in reason
            assert ("copy_noise 0.1 changes" in reason) is bool(noise)
            assert ("because tau is not" in reason) is (init == "copy" and not published)


@settings(max_examples=60)
@given(histories_and_growths())
def test_a_model_is_published_if_all_ramps_are_over_and_one_norm_has_the_formulas_tau(drawn):
    history, growth = drawn
    for config in (history.config, history.ramped().config, growth.of(history.config)):
        ramped_or_apart = any(g.key_ramp < 1 or g.tau for p in pattentions(config) for g in p.generations)
        at_formula = all(p.tau == pytest.approx(published_tau(config, p)) for p in pattentions(config))
        assert is_published(config) is (at_formula and not ramped_or_apart)


BASE, EMPTY, SOFTMAX = small_config(), small_config(num_layers=0), small_config(score_function="softmax")
RAMPING = grow_config(BASE, attention_tokens=4)
FROZEN = grow_config(BASE, attention_tokens=4, policy=allowed("zero-key", "frozen"))
APART = grow_config(BASE, attention_tokens=4, policy=allowed("zero-value", "per-generation"))
COPIES = GrowthPolicy(init="copy", tau="recompute")
STACK, MIDDLE = (GrowthPolicy(depth=depth, allow_jump=True) for depth in COPYING)
ANY_COPIES = allowed("copy", "recompute")
REJECTED: list[tuple[ModelConfig, dict[str, Any], str]] = [
    (BASE, {}, "0 attention and 0 FFN tokens to each layer, and 0 layers; each must be"),
    (BASE, {"attention_tokens": [3, -1], "ffn_tokens": 4}, r"adds \[3, -1\] attention and 4 FFN tokens"),
    (BASE, {"attention_tokens": [4], "ffn_tokens": 4}, r"adds \[4\] tokens to layers, but the model has 2"),
    (BASE, {"ffn_tokens": [4, 4, 4]}, "but the model has 2 layers"),
    (BASE, {"attention_tokens": 8, "ffn_tokens": 9, "policy": COPIES}, "9 tokens; it must .* of the 6"),
    (BASE, {"heads": 1}, "only a decoder gains heads or width"),
    (SOFTMAX, {"attention_tokens": 4}, r"softmax.*exp\(0\) = 1"),
    (FROZEN, {"attention_tokens": 8, "policy": COPIES}, "changes the function, because tau is not"),
    (RAMPING, {"attention_tokens": 8, "policy": ANY_COPIES}, "only .* once the ramp of the previous"),
    (BASE, {"new_layers": -1}, "and -1 layers; each must be 0 or more"),
    (BASE, {"attention_tokens": 1, "layer_tokens": (1, 1)}, r"layer_tokens is \(1, 1\) with 0 new layers"),
    (BASE, {"new_layers": 1, "layer_tokens": (0, 4)}, r"\(0, 4\) with 1 new layers; all must be 1 or more"),
    (BASE, {"new_layers": 2, "policy": GrowthPolicy(depth="copy-stack")}, "'copy-stack' changes the function"),
    (BASE, {"new_layers": 1, "policy": GrowthPolicy(depth="copy-middle")}, "'copy-middle' changes the function"),
    (BASE, {"new_layers": 2, "policy": STACK, "attention_tokens": 4}, "cannot add tokens to layers in the same"),
    (BASE, {"new_layers": 3, "policy": STACK}, "as many new layers, or a multiple, .* 2, not 3"),
    (BASE, {"new_layers": 3, "policy": MIDDLE}, "at most as many new layers as the model has: 2, not 3"),
    (BASE, {"new_layers": 2, "policy": STACK, "layer_tokens": (4, 6)}, "layer_tokens cannot set another size"),
    (RAMPING, {"new_layers": 2, "policy": STACK}, "only possible once the ramp of the"),
    (
        APART,
        {"new_layers": 2, "policy": MIDDLE},
        "depth 'copy-middle' cannot copy generations with a norm of their own",
    ),
    (EMPTY, {"new_layers": 2}, "layer_tokens is missing"),
    (EMPTY, {"new_layers": 2, "policy": STACK}, "as the model has: 0, not 2"),
    (EMPTY, {"new_layers": 2, "attention_tokens": 3}, "but the model has 0 layers"),
]


@pytest.mark.parametrize(("config", "arguments", "message"), REJECTED)
def test_impossible_growths_are_rejected_with_the_reason(config, arguments, message):
    with pytest.raises(ValueError, match=message):
        grow_config(config, **arguments)


def test_copies_are_possible_off_the_formula_if_allowed_and_if_no_ramp_is_unfinished_where_the_model_grows():
    assert grow_config(FROZEN, attention_tokens=8, policy=ANY_COPIES).newest_generation == 2
    ffn_only = grow_config(BASE, ffn_tokens=6)
    assert grow_config(ffn_only, attention_tokens=4, ffn_tokens=0, policy=ANY_COPIES).newest_generation == 2


@settings(max_examples=80)
@given(histories_and_growths())
def test_a_new_generation_follows_its_policy_and_nothing_else_changes(drawn):
    history, growth = drawn
    policy, attention, ffn, _ = growth
    old, new = history.config, growth.of(history.config)
    assert new.model_copy(update={"blocks": old.blocks}) == old
    for layer, name in product(range(2), PATTENTIONS):
        before, after = (getattr(config.blocks[layer], name) for config in (old, new))
        added = ffn[layer] if name == "ffn" else attention[layer]
        if added == 0:
            assert after == before
            continue
        own = added if old.score_function == "softmax" else math.sqrt(added)
        newest = Generation(
            num_tokens=added,
            number=old.newest_generation + 1,
            key_ramp=0.0 if policy.tau == "ramp" else 1.0,
            tau=own if policy.tau == "per-generation" else None,
            copies=added // before.num_tokens if policy.init == "copy" else 0,
            tau_before=before.tau,
        )
        assert after.generations == (*before.generations, newest)
        recomputed = pytest.approx(published_tau(new, after))
        assert after.tau == (recomputed if policy.tau == "recompute" else before.tau)
    assert TokenformerConfig.model_validate_json(new.model_dump_json()) == new


@settings(max_examples=60)
@given(histories_and_growths(NORMED), st.floats(0, 1))
def test_the_square_of_tau_rises_with_the_ramped_tokens_in_one_step_or_in_several(drawn, ramp):
    """A worker computes each ramp from the start of the stage; a manifest may hold a model in the middle of a ramp."""
    history, (_, attention, ffn, _) = drawn
    grown = grow_config(history.config, attention_tokens=attention, ffn_tokens=ffn)
    assert ramp_config(grown, 0.0) == grown
    in_steps = ramp_config(ramp_config(grown, ramp / 3), ramp)
    for start, *ends in zip(*map(pattentions, (grown, ramp_config(grown, ramp), in_steps)), strict=True):
        ramps = [max(g.key_ramp, ramp) for g in start.generations]
        pairs = [*zip(start.generations, ramps, strict=True)]
        risen = sum((after**2 - g.key_ramp**2) * g.num_tokens for g, after in pairs if g.tau is None)
        for end in ends:
            assert [(g.key_ramp, g.tau) for g in end.generations] == [(after, g.tau) for g, after in pairs]
            assert end.tau**2 == pytest.approx(start.tau**2 + risen, rel=1e-9)
    full = ramp_config(grown, 1.0)
    assert ramp_config(full, ramp) == full
    if is_published(full):
        assert all(p.tau == math.sqrt(p.num_tokens) for p in pattentions(full))


@settings(max_examples=60)
@given(histories_and_growths(), st.floats(0, 1))
def test_annealing_moves_every_tau_straight_to_the_formula_and_nothing_else(drawn, share):
    history, growth = drawn
    start = growth.of(history.config)
    for part in (0.0, share, 1.0):
        for before, after in zip(*map(pattentions, (start, anneal_config(start, part))), strict=True):
            target = published_tau(start, before)
            assert after.tau == (target if part == 1 else pytest.approx(before.tau + part * (target - before.tau)))
            assert after.generations == before.generations


@settings(max_examples=60)
@given(histories_and_growths(), st.floats(0, 1))
def test_shrinking_after_any_part_of_a_stage_restores_the_old_tau_of_what_had_grown(drawn, ramp):
    """A Pattention that did not grow keeps its tau, which annealing may have moved to the formula.

    If a growth came before the previous ramp had finished, the tau to restore rises with that ramp.
    """
    history, growth = drawn
    before = ramp_config(history.config, 1.0)
    after = moved(growth.of(before), growth.policy.tau, 1.0)
    for was, trained, shrunk in zip(*map(pattentions, (before, after, shrink_config(after))), strict=True):
        assert shrunk == (was if trained.num_tokens > was.num_tokens else trained)
        assert shrunk.tau == was.tau or growth.policy.tau == "anneal"
    if history.config.score_function in NORMED:
        assert shrink_config(ramp_config(growth.of(history.config), ramp)) == ramp_config(history.config, ramp)


def two_generations(tau: float, newest: dict[str, Any]) -> TokenformerConfig:
    """A model one of whose Pattentions has 4 + 4 tokens."""
    generations = Generation(num_tokens=4), Generation(num_tokens=4, number=1, **newest)
    ffn = PattentionConfig(generations=generations, tau=tau)
    return BASE.model_copy(update={"blocks": (BASE.blocks[0], BASE.blocks[1].model_copy(update={"ffn": ffn}))})


@pytest.mark.parametrize(("newest", "published"), [({}, True), ({"tau": 2.0}, False), ({"key_ramp": 0.5}, False)])
def test_a_tau_that_is_the_root_of_all_tokens_by_chance_is_not_published(newest, published):
    assert is_published(two_generations(8**0.5, newest)) is published


def test_only_as_many_growths_as_there_were_can_be_undone():
    twice = grow_config(RAMPING, attention_tokens=4)
    for config, number, message in (
        (twice, 0, "drop_generations = 0: 1 to 2 can be dropped"),
        (twice, 3, "drop_generations = 3: 1 to 2 can be dropped"),
        (BASE, 1, "this model has never grown"),
        (two_generations(2.0, {}), 1, "generation 1 has no tau_before"),
    ):
        with pytest.raises(ValueError, match=message):
            shrink_config(config, number)
