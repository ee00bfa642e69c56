"""Growth policies on configurations: the presets, rejected policies, and the resulting tau."""

import math
from itertools import pairwise, product
from typing import Any, cast

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
    parameter_shapes,
    published_tau,
)
from model.initialization import build_model
from model.parameter_names import generation_of
from model.policy import (
    GrowthPolicy,
    anneal_config,
    grow_config,
    invalid_combination,
    is_published,
    one_if_equal,
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
    VALID,
    allowed,
    growths,
    histories,
    histories_and_growths,
    moved,
    small_config,
)

TRANSFORMER = TransformerConfig(num_layers=1, ffn_size=8, vocab_size=29, hidden_size=8, num_heads=1)
PRESERVE = "These preserve it: init 'random' with tau 'ramp'; init 'matched' with tau 'ramp'; init 'zero-key' with"
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
            assert len(reason) < 400


def test_a_rejection_names_the_combination_and_an_alternative():
    softmax = "use init 'zero-value' with tau 'per-generation', or init 'copy' with tau 'recompute'"
    zero = "starts from zero scores, which score_function 'softmax' turns into exp(0) = 1"
    changes = "changes the function; that needs allow_jump"
    why = "changes the function, because tau is not sqrt(n) or not shared by all tokens"
    cases: list[tuple[GrowthPolicy, ScoreFunction, bool, str]] = [
        (GrowthPolicy(), "softmax", True, f"init 'matched' with tau 'ramp' {zero}; {softmax}"),
        (allowed("zero-key", "recompute"), "softmax", True, f"init 'zero-key' with tau 'recompute' {zero}"),
        (GrowthPolicy(tau="recompute"), "softmax", True, f"init 'matched' with tau 'recompute' {changes}. {PRESERVE}"),
        (
            GrowthPolicy(init="copy", tau="recompute", copy_noise=0.25),
            "gelu_l2_norm",
            True,
            f"init 'copy' with tau 'recompute' and copy_noise 0.25 {changes}",
        ),
        (
            GrowthPolicy(init="copy", tau="recompute"),
            "softmax",
            False,
            f"init 'copy' with tau 'recompute' {why}; that needs allow_jump",
        ),
        # no other policy depends on the model's tau
        (GrowthPolicy(tau="frozen"), "softmax", False, f"init 'matched' with tau 'frozen' {changes}"),
    ]
    for policy, score_function, published, message in cases:
        assert message in (rejection_reason(policy, score_function, published=published) or "")
    zero_value = invalid_combination("zero-value", "ramp", 0.0)
    assert zero_value is not None
    assert zero_value.endswith("use init 'zero-value' with tau 'per-generation'")


def test_the_presets_match_their_names_and_can_be_changed():
    assert GrowthPolicy.of("growctl-default") == GrowthPolicy() == GrowthPolicy(init="matched", tau="ramp")
    official = {"init": "random", "tau": "recompute", "copy_noise": 0.0, "moments": "reset", "allow_jump": True}
    official |= {"depth": "append"}
    assert GrowthPolicy.of("official").model_dump() == official
    paper = {"init": "zero-key", "tau": "frozen", "copy_noise": 0.0, "moments": "keep", "allow_jump": False}
    paper |= {"depth": "append"}
    assert GrowthPolicy.of("paper-appendix").model_dump() == paper
    assert GrowthPolicy.of("official", moments="keep").model_dump() == official | {"moments": "keep"}
    with pytest.raises(ValidationError, match="'zero-key' cannot be combined with tau 'ramp'"):
        GrowthPolicy.of("paper-appendix", tau="ramp")
    assert [preserves(GrowthPolicy.of(p), "l2_norm_gelu") for p in ("growctl-default", "official", "paper-appendix")] \
        == [True, False, True]  # fmt: skip


def test_a_model_is_published_only_if_every_pattention_is_the_published_formula():
    assert is_published(small_config())
    for softmax_too in ("random/recompute", "copy/recompute", "random/anneal"):
        assert is_published(grown_config(softmax_too, "random/recompute"))
        assert is_published(grown_config(softmax_too, config=small_config(score_function="softmax")))
    assert is_published(grown_config("random/ramp", "zero-key/anneal"))
    for unfinished in ("random/ramp", "zero-key/anneal"):
        for share in (0.0, 0.5, 0.999):
            assert not is_published(grown_config(unfinished, share=share))
    for other in ("zero-key/frozen", "zero-value/per-generation", "copy/frozen"):
        assert not is_published(grown_config(other))
        assert not is_published(grown_config(other, "random/ramp"))
        assert not is_published(grown_config(other, attention_tokens=0))  # in the FFNs alone
        assert not is_published(grown_config(other, ffn_tokens=0))
    only_last = grow_config(
        small_config(), attention_tokens=[0, 0], ffn_tokens=[0, 6], policy=allowed("zero-key", "frozen")
    )
    assert not is_published(only_last)
    # Softmax has tau = n, not sqrt(n). A model with unfinished ramps or separate taus is not the formula, even if the
    # shared tau is the square root of the number of all tokens.
    for config, generations, tau in [
        (small_config(score_function="softmax"), (Generation(num_tokens=4),), 2.0),
        (small_config(), (Generation(num_tokens=4), Generation(num_tokens=4, number=1, tau=2.0)), math.sqrt(8)),
        (small_config(), (Generation(num_tokens=4), Generation(num_tokens=4, number=1, key_ramp=0.5)), math.sqrt(8)),
    ]:
        wrong = PattentionConfig(generations=generations, tau=tau)
        blocks = (config.blocks[0], config.blocks[1].model_copy(update={"query": wrong}))
        assert not is_published(config.model_copy(update={"blocks": blocks}))


@pytest.mark.parametrize("before", ["zero-key/frozen", "zero-value/per-generation", "random/ramp", "zero-key/anneal"])
def test_copies_need_allow_jump_if_the_model_is_not_the_published_formula(before):
    for share in (0.0, 0.5):
        config = grown_config(before, share=share)
        tokens: dict[str, Any] = {"attention_tokens": 8, "ffn_tokens": 12}
        with pytest.raises(
            ValueError, match=r"changes the function, because tau is not sqrt\(n\) or not shared by all"
        ):
            grow_config(config, policy=GrowthPolicy(init="copy", tau="recompute"), **tokens)
        if before == "random/ramp":
            with pytest.raises(ValueError, match="only possible once the ramp of the previous growth has finished"):
                grow_config(config, policy=allowed("copy", "recompute"), **tokens)
        else:
            assert grow_config(config, policy=allowed("copy", "recompute"), **tokens).newest_generation == 2
        # copies are possible if no ramp is unfinished where the model grows
        ffn_only = grow_config(small_config(), attention_tokens=0, ffn_tokens=6)
        assert grow_config(ffn_only, attention_tokens=4, ffn_tokens=0, policy=allowed("copy", "recompute"))


# Growing


def test_growth_keeps_tau_and_the_old_generations_and_adds_one_at_ramp_zero():
    old = small_config()
    new = grow_config(old, attention_tokens=5, ffn_tokens=8)
    for before, after in zip(old.blocks, new.blocks, strict=True):
        assert after.query.tau == before.query.tau == math.sqrt(4)
        new_one = Generation(num_tokens=5, number=1, key_ramp=0.0, tau_before=math.sqrt(4))
        assert after.query.generations == (*before.query.generations, new_one)
        assert after.ffn.generations[-1].num_tokens == 8
    assert new.newest_generation == 1
    added = set(parameter_shapes(new)) - set(parameter_shapes(old))
    assert {generation_of(name) for name in added} == {1}
    assert {generation_of(name) for name in parameter_shapes(old)} == {0}


def test_each_growth_is_its_own_generation_even_if_it_skips_a_pattention():
    ffn_only = grow_config(small_config(), attention_tokens=0, ffn_tokens=8)
    both = grow_config(ffn_only, attention_tokens=4, ffn_tokens=0)
    added = set(parameter_shapes(both)) - set(parameter_shapes(ffn_only))
    assert {generation_of(name) for name in added} == {2}
    assert "blocks.0.query.key_tokens.2" in added
    assert "blocks.0.query.key_tokens.1" not in parameter_shapes(both)
    built = {name: tuple(p.shape) for name, p in build_model(both, device="meta").named_parameters()}
    assert list(parameter_shapes(both).items()) == list(built.items())
    with pytest.raises(ValidationError, match="numbered \\[0, 0\\]"):
        PattentionConfig(generations=(Generation(num_tokens=1), Generation(num_tokens=1)), tau=1.0)


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


def test_later_copies_reduce_the_value_shares():
    def shares(*copies):
        generations = [Generation(num_tokens=1, number=i, copies=c) for i, c in enumerate((0, *copies))]
        return PattentionConfig(generations=tuple(generations), tau=1.0).value_shares

    assert shares() == (1.0,)
    assert shares(1) == (1 / 2, 1.0)
    assert shares(0, 0) == (1.0, 1.0, 1.0)
    assert shares(2, 1) == (1 / 6, 1 / 2, 1.0)
    assert shares(1, 0, 3, 0) == (1 / 8, 1 / 4, 1 / 4, 1.0, 1.0)


def test_impossible_growths_are_rejected_with_the_reason():
    base = small_config()
    for arguments, message in [
        (
            {"attention_tokens": 0, "ffn_tokens": 0},
            "0 attention and 0 FFN tokens to each layer, and 0 layers; each must be",
        ),
        ({"attention_tokens": -1, "ffn_tokens": 4}, "growth adds -1 attention and 4 FFN tokens"),
        ({"attention_tokens": [3, -1], "ffn_tokens": [4, 4]}, r"growth adds \[3, -1\] attention and 4 FFN tokens"),
        ({"attention_tokens": [4], "ffn_tokens": 4}, r"adds \[4\] tokens to layers, but the model has 2"),
        ({"attention_tokens": 4, "ffn_tokens": [4, 4, 4]}, "but the model has 2 layers"),
        (
            {"attention_tokens": 8, "ffn_tokens": 9, "policy": GrowthPolicy(init="copy", tau="recompute")},
            "growth by copies adds 9 tokens; it must add a whole multiple of the 6 tokens that the Pattention has",
        ),
        (
            {"attention_tokens": [4, 3], "ffn_tokens": 0, "policy": GrowthPolicy(init="copy", tau="recompute")},
            "adds 3 tokens; it must add a whole multiple of the 4 tokens that the Pattention has",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            grow_config(base, **cast("dict[str, Any]", arguments))
    with pytest.raises(ValueError, match="only a tokenformer can grow"):
        grow_config(TRANSFORMER, attention_tokens=4, ffn_tokens=4)
    with pytest.raises(ValueError, match=r"softmax.*exp\(0\) = 1"):
        grow_config(small_config(score_function="softmax"), attention_tokens=4, ffn_tokens=4)
    assert (one_if_equal([3, 3]), one_if_equal((3, 4))) == (3, [3, 4])


# The ramp


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=4))
def test_a_finished_ramp_is_the_published_formula_whatever_the_history(growths):
    config = small_config()
    for attention_tokens, ffn_tokens in growths:
        config = ramp_config(grow_config(config, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens), 1.0)
    total = 4 + sum(attention for attention, _ in growths)
    for pattention in (config.blocks[0].query, config.blocks[1].projection):
        assert pattention.num_tokens == total
        assert pattention.tau == math.sqrt(total)
        assert {generation.key_ramp for generation in pattention.generations} == {1.0}


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
    assert over.tau == pytest.approx(math.sqrt(over.num_tokens), rel=1e-12)


@given(st.floats(0, 1), st.floats(0, 1))
def test_tau_rises_with_the_ramp_and_a_ramp_never_falls(first, second):
    grown = grow_config(small_config(), attention_tokens=10, ffn_tokens=10)
    low, high = sorted((first, second))
    at_low, at_high = ramp_config(grown, low), ramp_config(grown, high)
    assert at_low.blocks[0].query.tau == pytest.approx(math.sqrt(4 + low**2 * 10))
    assert at_low.blocks[0].query.tau <= at_high.blocks[0].query.tau
    assert ramp_config(at_high, low) == at_high
    assert ramp_config(grown, 0.0) == grown


@given(COUNTS, st.integers(1, 40), st.floats(0, 1), st.sampled_from(["zero-key/frozen", "zero-key/anneal"]))
def test_a_ramp_keeps_the_distance_of_a_tau_that_was_frozen_off_the_formula(frozen, count, ramp, how):
    config = small_config(attention_tokens=4)
    for number in frozen:
        config = grown_config(how, config=config, attention_tokens=number, ffn_tokens=number, share=0.4)
    before = config.blocks[0].query
    distance = before.tau**2 - before.num_tokens
    assert distance < -0.5
    ramped = ramp_config(grow_config(config, attention_tokens=count, ffn_tokens=count), ramp).blocks[0].query
    assert ramped.tau**2 - (before.num_tokens + ramp**2 * count) == pytest.approx(distance, abs=1e-9)
    assert ramped.generations[:-1] == before.generations


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
        target = published_tau(start.score_function, shared)
        assert moving[-1].tau == target
        for share, pattention in zip((low, high), moving, strict=False):
            assert pattention.tau == pytest.approx(at_start.tau + share * (target - at_start.tau))
            assert pattention.generations == at_start.generations
        distances = [abs(p.tau - target) for p in (at_start, *moving)]
        assert all(later <= earlier + 1e-12 * target for earlier, later in pairwise(distances))


def test_annealing_ends_exactly_at_the_published_formula():
    for score_function in SCORE_FUNCTIONS:
        init = "random" if score_function == "softmax" else "zero-key"
        config = small_config(score_function=score_function)
        for number, total in [(3, 7), (5, 12), (11, 23)]:
            config = grown_config(f"{init}/anneal", config=config, attention_tokens=number, ffn_tokens=number)
            assert config.blocks[1].query.tau == (total if score_function == "softmax" else math.sqrt(total))
        assert is_published(config)


# Shrinking


@settings(max_examples=150)
@given(histories_and_growths())
def test_shrinking_undoes_a_growth_exactly_whatever_its_policy(drawn):
    history, growth = drawn
    assert shrink_config(growth.of(history.config)) == history.config


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


def test_two_growths_in_a_row_then_ramped_shrink_to_the_published_formula():
    twice = ramp_config(grown_config("random/ramp", "random/ramp", share=0.0), 1.0)
    assert is_published(twice)
    once = shrink_config(twice)
    assert once.blocks[0].query.tau == math.sqrt(8)
    assert is_published(once)
    assert shrink_config(once) == shrink_config(twice, 2) == small_config()


def test_only_as_many_growths_as_there_were_can_be_undone():
    grown = grown_config("random/ramp", "random/ramp")
    for number in (0, -1, 3):
        with pytest.raises(ValueError, match=f"drop_generations = {number}: 1 to 2 can be dropped; the base stays"):
            shrink_config(grown, number)
    with pytest.raises(ValueError, match="drop_generations = 1: this model has never grown"):
        shrink_config(small_config())
    with pytest.raises(ValueError, match="a transformer has no generations of parameter tokens to drop"):
        shrink_config(TRANSFORMER)
    by_hand = PattentionConfig(generations=(Generation(num_tokens=4), Generation(num_tokens=4, number=1)), tau=2.0)
    blocks = tuple(block.model_copy(update={"ffn": by_hand}) for block in small_config().blocks)
    with pytest.raises(ValueError, match="generation 1 has no tau_before"):
        shrink_config(small_config().model_copy(update={"blocks": blocks}))


def test_a_growth_counts_even_for_a_pattention_that_it_skipped():
    ffn_only = grown_config("random/ramp", attention_tokens=0)
    both = grown_config("zero-key/frozen", config=ffn_only)
    assert shrink_config(both) == ffn_only
    assert shrink_config(both, 2) == small_config()
    attention_only = grown_config("zero-key/frozen", config=ffn_only, ffn_tokens=0)
    assert shrink_config(attention_only).blocks[0].ffn.num_tokens == 12
    assert shrink_config(attention_only, 2) == small_config()


def test_the_tables_in_this_file_cover_every_policy():
    assert len(VALID) + len(INVALID) == len(INITS) * len(TAUS)
    assert set(VALID) >= EXACT
