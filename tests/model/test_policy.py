"""Growth policies on configurations: the presets, rejected policies, and the resulting tau."""

import math
import re
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from model.config import (
    PATTENTIONS,
    Generation,
    PattentionConfig,
    ScoreFunction,
    TokenformerConfig,
    TransformerConfig,
)
from model.policy import (
    GrowthPolicy,
    anneal_config,
    grow_config,
    invalid_combination,
    is_published,
    preserves,
    ramp_config,
    rejection_reason,
    shrink_config,
)
from tests.model.growths import (
    EXACT,
    INITS,
    INVALID,
    NEVER_SOFTMAX,
    POSSIBLE,
    SCORE_FUNCTIONS,
    TAUS,
    allowed,
    growths,
    histories,
    histories_and_growths,
    moved,
    small_config,
)

TRANSFORMER = TransformerConfig(num_layers=1, ffn_size=8, vocab_size=29, hidden_size=8, num_heads=1)
COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=4)


def pattentions(config):
    return [pattention for block in config.blocks for pattention in block.pattentions().values()]


def grown_config(*growths: str, config=None, attention_tokens=4, ffn_tokens=6, share: float = 1.0):
    """A model grown with the policies `init/tau`, ...; after each growth its scales move by `share`."""
    config = config or small_config()
    for init, tau in (growth.split("/") for growth in growths):
        policy = allowed(init, tau)
        grown = grow_config(config, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens, policy=policy)
        config = moved(grown, tau, share)
    return config


# Which policies there are


@pytest.mark.parametrize(("init", "tau"), product(INITS, TAUS))
def test_a_policy_is_invalid_rejected_or_exact_as_the_tables_say(init, tau):
    assert (invalid_combination(init, tau, 0.0) is not None) is ((init, tau) in INVALID)
    assert (invalid_combination(init, tau, 0.1) is not None) is ((init, tau) in INVALID or init != "copy")
    if (init, tau) in INVALID:
        with pytest.raises(ValidationError, match=f"init '{init}' cannot be combined with tau '{tau}'"):
            allowed(init, tau)
        return
    for score_function, noise, jump, published in product(SCORE_FUNCTIONS, (0.0, 0.1), (False, True), (False, True)):
        if noise and init != "copy":
            with pytest.raises(ValidationError, match=f"copy_noise 0.1 needs init 'copy', not '{init}'"):
                allowed(init, tau, copy_noise=noise)
            continue
        policy = GrowthPolicy(init=init, tau=tau, copy_noise=noise, allow_jump=jump)
        never = score_function == "softmax" and (init, tau) in NEVER_SOFTMAX
        exact = not never and (init, tau) in EXACT and not noise and (published or init != "copy")
        assert preserves(policy, score_function, published=published) is exact
        reason = rejection_reason(policy, score_function, published=published)
        assert (reason is None) is (not never and (exact or jump))
        if reason:
            assert ("exp(0) = 1" if never else "needs allow_jump") in reason


def test_a_rejection_names_the_combination_and_an_alternative():
    copies, softmax = GrowthPolicy(init="copy", tau="recompute"), "use init 'zero-value' with tau 'per-generation'"
    cases: list[tuple[GrowthPolicy, ScoreFunction, bool, str]] = [
        (
            GrowthPolicy(),
            "softmax",
            True,
            f"'matched' with tau 'ramp' starts from zero scores.* = 1; {softmax}",
        ),
        (
            GrowthPolicy(tau="recompute"),
            "softmax",
            True,
            "changes the function; that needs allow_jump. These",
        ),
        (
            copies.model_copy(update={"copy_noise": 0.25}),
            "gelu_l2_norm",
            True,
            "and copy_noise 0.25 changes the function;",
        ),
        (copies, "softmax", False, "because tau is not sqrt.n. or not shared by all tokens; that needs allow_jump"),
        (GrowthPolicy(tau="frozen"), "softmax", False, "changes the function;"),  # only copies depend on the tau
    ]
    for policy, score_function, published, message in cases:
        assert re.search(message, rejection_reason(policy, score_function, published=published) or "")
    assert (invalid_combination("zero-value", "ramp", 0.0) or "").endswith(softmax)


def test_the_presets_match_their_names_and_can_be_changed():
    default, official = GrowthPolicy.of("growctl-default"), GrowthPolicy.of("official")
    assert default == GrowthPolicy() == GrowthPolicy(init="matched", tau="ramp", moments="keep", depth="append")
    assert official == GrowthPolicy(init="random", tau="recompute", moments="reset", allow_jump=True)
    assert GrowthPolicy.of("paper-appendix") == GrowthPolicy(init="zero-key", tau="frozen")
    assert GrowthPolicy.of("official", moments="keep") == official.model_copy(update={"moments": "keep"})
    with pytest.raises(ValidationError, match="'zero-key' cannot be combined with tau 'ramp'"):
        GrowthPolicy.of("paper-appendix", tau="ramp")


def test_a_model_is_published_only_if_every_pattention_is_the_published_formula():
    assert is_published(small_config())
    assert is_published(grown_config("copy/recompute", config=small_config(score_function="softmax")))
    for ends_published in ("random/recompute", "random/ramp", "zero-key/anneal"):
        assert is_published(grown_config(ends_published, "random/recompute"))
    for unfinished in ("random/ramp", "zero-key/anneal"):
        assert not is_published(grown_config(unfinished, share=0.999))
    for other in ("zero-key/frozen", "zero-value/per-generation", "copy/frozen"):
        assert not is_published(grown_config(other, "random/ramp"))
        assert not is_published(grown_config(other, attention_tokens=0))  # in the FFNs alone
    assert not is_published(grown_config("zero-key/frozen", attention_tokens=[0, 0], ffn_tokens=[0, 6]))
    # Softmax has tau = n, not sqrt(n). A model with unfinished ramps or separate taus is not the formula, even if the
    # shared tau is the square root of the number of all tokens.
    for score_function, generations, tau in [
        ("softmax", (Generation(num_tokens=4),), 2.0),
        ("l2_norm_gelu", (Generation(num_tokens=4), Generation(num_tokens=4, number=1, tau=2.0)), math.sqrt(8)),
        ("l2_norm_gelu", (Generation(num_tokens=4), Generation(num_tokens=4, number=1, key_ramp=0.5)), math.sqrt(8)),
    ]:
        config, wrong = small_config(score_function=score_function), PattentionConfig(generations=generations, tau=tau)
        blocks = (config.blocks[0], config.blocks[1].model_copy(update={"query": wrong}))
        assert not is_published(config.model_copy(update={"blocks": blocks}))


# Growing


COPIES, FROZEN = GrowthPolicy(init="copy", tau="recompute"), grown_config("zero-key/frozen")
RAMPING = grown_config("random/ramp", share=0.5)
REJECTED: list[tuple[TokenformerConfig | TransformerConfig, dict[str, Any], str]] = [
    (small_config(), {"ffn_tokens": 0}, "0 attention and 0 FFN tokens to each layer, and 0 layers; each must be"),
    (small_config(), {"attention_tokens": [3, -1], "ffn_tokens": [4, 4]}, r"adds \[3, -1\] attention and 4 FFN tokens"),
    (small_config(), {"attention_tokens": [4], "ffn_tokens": 4}, r"adds \[4\] tokens to layers, but the model has 2"),
    (small_config(), {"ffn_tokens": [4, 4, 4]}, "but the model has 2 layers"),
    (
        small_config(),
        {"attention_tokens": 8, "ffn_tokens": 9, "policy": COPIES},
        "9 tokens; it must .* of the 6",
    ),
    (TRANSFORMER, {"attention_tokens": 4}, "only a tokenformer can grow"),
    (small_config(score_function="softmax"), {"attention_tokens": 4}, r"softmax.*exp\(0\) = 1"),
    (FROZEN, {"attention_tokens": 8, "policy": COPIES}, "changes the function, because tau is not"),
    (RAMPING, {"attention_tokens": 8, "policy": allowed("copy", "recompute")}, "only .* once the ramp of the previous"),
]


@pytest.mark.parametrize(("config", "arguments", "message"), REJECTED)
def test_impossible_growths_are_rejected_with_the_reason(config, arguments, message):
    with pytest.raises(ValueError, match=message):
        grow_config(config, **arguments)


def test_copies_are_possible_off_the_formula_if_allowed_and_if_no_ramp_is_unfinished_where_the_model_grows():
    assert grow_config(FROZEN, attention_tokens=8, policy=allowed("copy", "recompute")).newest_generation == 2
    ffn_only = grow_config(small_config(), attention_tokens=0, ffn_tokens=6)
    assert grow_config(ffn_only, attention_tokens=4, ffn_tokens=0, policy=allowed("copy", "recompute"))


@settings(max_examples=150)
@given(histories_and_growths())
def test_a_new_generation_follows_its_policy_and_nothing_else_changes(drawn):
    history, growth = drawn
    policy, attention, ffn, _ = growth
    old, new = history.config, growth.of(history.config)
    assert new.model_copy(update={"blocks": old.blocks}) == old
    assert new.newest_generation == old.newest_generation + 1
    for layer in range(2):
        for name in PATTENTIONS:
            before, after = (getattr(config.blocks[layer], name) for config in (old, new))
            added = ffn[layer] if name == "ffn" else attention[layer]
            if added == 0:
                assert after == before
                continue
            assert after.generations[:-1] == before.generations
            new_one = after.generations[-1]
            assert new_one.num_tokens == added
            assert new_one.number == old.newest_generation + 1
            assert new_one.tau_before == before.tau
            assert new_one.key_ramp == (0.0 if policy.tau == "ramp" else 1.0)
            assert new_one.copies == (added / before.num_tokens if policy.init == "copy" else 0)
            own = added if old.score_function == "softmax" else math.sqrt(added)
            assert new_one.tau == (own if policy.tau == "per-generation" else None)
            if policy.tau == "recompute":
                shared = sum(g.key_ramp**2 * g.num_tokens for g in after.generations if g.tau is None)
                assert after.tau == pytest.approx(shared if old.score_function == "softmax" else math.sqrt(shared))
            else:
                assert after.tau == before.tau
    assert TokenformerConfig.model_validate_json(new.model_dump_json()) == new


# The ramp


@given(COUNTS, st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_tau_is_the_root_of_the_ramped_tokens_however_growths_and_ramps_alternate(counts, ramps):
    """Also if a growth comes before the ramp of the previous one has finished."""
    config = small_config(attention_tokens=4)
    expected = [(4, 1.0)]
    for count, ramp in zip(counts, ramps, strict=False):
        config = ramp_config(grow_config(config, attention_tokens=count, ffn_tokens=1), ramp)
        expected = [(n, max(g, ramp)) for n, g in [*expected, (count, 0.0)]]
        query = config.blocks[0].query
        assert [(g.num_tokens, g.key_ramp) for g in query.generations] == expected
        assert query.tau == pytest.approx(math.sqrt(sum(g**2 * n for n, g in expected)), rel=1e-12)
    over = ramp_config(config, 1.0).blocks[1].key
    assert over.tau == math.sqrt(over.num_tokens)


@given(histories_and_growths(["l2_norm_gelu", "gelu_l2_norm"]), st.floats(0, 1))
def test_a_ramp_in_small_steps_ends_where_a_ramp_at_once_does_and_never_jumps(drawn, ramp):
    """A worker computes each ramp from the start of the stage; a manifest may hold a model in the middle of a ramp."""
    history, (_, attention, ffn, _) = drawn
    grown = grow_config(history.config, attention_tokens=attention, ffn_tokens=ffn)
    assert ramp_config(grown, 0.0) == grown
    at_once = ramp_config(grown, ramp)
    in_steps = ramp_config(ramp_config(grown, ramp / 3), ramp)
    slightly_more = ramp_config(grown, min(1.0, ramp + 1e-7))
    for start, end, other, more in zip(*map(pattentions, (grown, at_once, in_steps, slightly_more)), strict=True):
        assert [g.key_ramp for g in other.generations] == [g.key_ramp for g in end.generations]
        assert [g.tau_before or 0 for g in other.generations] == pytest.approx(
            [g.tau_before or 0 for g in end.generations]
        )
        assert other.tau == pytest.approx(end.tau, rel=1e-9)
        assert more.tau == pytest.approx(end.tau, rel=1e-5)
        assert start.tau <= end.tau * (1 + 1e-12)
        assert [g.tau for g in end.generations] == [g.tau for g in start.generations]
        risen = sum((b.key_ramp**2 - a.key_ramp**2) * a.num_tokens
                    for a, b in zip(start.generations, end.generations, strict=True) if a.tau is None)  # fmt: skip
        assert end.tau**2 - start.tau**2 == pytest.approx(risen, abs=1e-9 * end.tau**2)
        if start.generations[-1].key_ramp == 1:
            assert end.tau == start.tau or any(g.key_ramp < 1 for g in start.generations)


@given(histories_and_growths())
def test_a_finished_ramp_does_not_change_and_neither_does_its_tau(drawn):
    config = drawn[0].ramped().config
    assert {g.key_ramp for pattention in pattentions(config) for g in pattention.generations} == {1.0}
    for ramp in (0.0, 0.5, 1.0):
        assert ramp_config(config, ramp) == config


# Annealing


@given(histories_and_growths(), st.floats(0, 1), st.floats(0, 1))
def test_annealing_moves_every_tau_straight_to_the_formula_and_nothing_else(drawn, first, second):
    history, growth = drawn
    start = growth.of(history.config)
    low, high = sorted((first, second))
    assert anneal_config(start, 0.0) == start
    steps = [anneal_config(start, share) for share in (0.0, low, high, 1.0)]
    for at_start, *moving in zip(*map(pattentions, steps), strict=True):
        shared = sum(g.key_ramp**2 * g.num_tokens for g in at_start.generations if g.tau is None)
        target = shared if start.score_function == "softmax" else math.sqrt(shared)
        assert moving[-1].tau == target
        for share, pattention in zip((low, high), moving, strict=False):
            assert pattention.tau == pytest.approx(at_start.tau + share * (target - at_start.tau))
            assert pattention.generations == at_start.generations
        distances = [abs(p.tau - target) for p in (at_start, *moving)]
        assert all(later <= earlier + 1e-12 * target for earlier, later in pairwise(distances))


# Shrinking


@given(st.data(), st.sampled_from(SCORE_FUNCTIONS))
def test_several_growths_can_be_undone_one_by_one_or_at_once(data, score_function):
    configs = [data.draw(histories(score_function, max_growths=1)).ramped().config]
    policies = [(init, tau) for init, tau, s in POSSIBLE if s == score_function]
    for init, tau in data.draw(st.lists(st.sampled_from(policies), min_size=1, max_size=3)):
        if init == "copy" and any(g.key_ramp < 1 for p in pattentions(configs[-1]) for g in p.generations):
            continue
        configs.append(data.draw(growths(configs[-1], init, tau)).of(configs[-1]))
    shrunk = configs[-1]
    for number in range(1, len(configs)):
        shrunk = shrink_config(shrunk)
        assert shrunk == shrink_config(configs[-1], number) == configs[-1 - number]


@given(histories_and_growths())
def test_shrinking_after_a_stage_restores_the_old_tau_of_what_had_grown(drawn):
    """A Pattention that did not grow keeps its tau, which annealing may have moved to the formula."""
    history, growth = drawn
    before = ramp_config(history.config, 1.0)
    after = moved(growth.of(before), growth.policy.tau, 1.0)
    for was, trained, shrunk in zip(*map(pattentions, (before, after, shrink_config(after))), strict=True):
        assert shrunk == (was if trained.num_tokens > was.num_tokens else trained)
        assert shrunk.tau in (was.tau, trained.tau)
        assert shrunk.tau == was.tau or growth.policy.tau == "anneal"


@given(histories_and_growths(["l2_norm_gelu", "gelu_l2_norm"]), st.floats(0, 1))
def test_shrinking_and_ramping_commute(drawn, ramp):
    """If a growth came before the previous ramp had finished, the tau to restore rises with that ramp."""
    history, growth = drawn
    ramped_first = shrink_config(ramp_config(growth.of(history.config), ramp))
    assert ramped_first == ramp_config(history.config, ramp)


def test_only_as_many_growths_as_there_were_can_be_undone():
    by_hand = PattentionConfig(generations=(Generation(num_tokens=4), Generation(num_tokens=4, number=1)), tau=2.0)
    blocks = tuple(block.model_copy(update={"ffn": by_hand}) for block in small_config().blocks)
    twice = grown_config("random/ramp", "random/ramp")
    for config, number, message in [
        *((twice, number, f"drop_generations = {number}: 1 to 2 can be dropped; the base stays") for number in (0, 3)),
        (small_config(), 1, "drop_generations = 1: this model has never grown"),
        (TRANSFORMER, 1, "a transformer has no generations of parameter tokens to drop"),
        (small_config().model_copy(update={"blocks": blocks}), 1, "generation 1 has no tau_before"),
    ]:
        with pytest.raises(ValueError, match=message):
            shrink_config(config, number)
