"""Mistakes in the growth block and their messages, and valid values that look like mistakes."""

import copy
import itertools
from typing import Any

import pytest

from growctl.ladder.load import parse_schedule
from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.errors import ScheduleError
from tests.growctl.grown_ladders import ONE_TRANSFORMER, TRANSFORMER, ladder, last_model
from tests.growctl.schedules import changed, message_of, parse, paths_of
from tests.model.growths import EXACT, INITS, POSSIBLE, SCORE_FUNCTIONS, TAUS

PRESET_NAMES = "'growctl-default', 'official', 'paper-appendix' or 'custom'"
LEAVE_OUT = "remove those keys (as an override: ~growth.KEY), or set preset to custom"
LAYERS = "must be one or more different layers, from 0 to 1"
NO_DECAY_CUT = (
    "growth.when = 'slope': needs learning_rate.shape wsd and learning_rate.span ladder, so that no decay is cut short"
)
ONE_KIND = "is for a tokenformer; a grown transformer has no old and new tokens"
NO_COMPARISON: dict[str, Any] = {"controls": []}
STACK = TRANSFORMER | {"growth": {"depth": "copy-stack", "allow_jump": True}, "stages.1.num_layers": 4}


def growing(**growth: Any) -> dict[str, Any]:
    return {"growth": growth}


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        # one key
        (growing(preset="offical"), "growth.preset"),
        (growing(preset=[1]), "growth.preset"),
        (growing(init="zero"), "growth.init"),
        (growing(tau="thaw"), "growth.tau"),
        (growing(ramp=1.5), "growth.ramp"),
        (growing(anneal=0), "growth.anneal"),
        (growing(copy_noise=-0.1), "growth.copy_noise"),
        (growing(moments="drop"), "growth.moments"),
        (growing(lr_scale=[1.0, -1]), "growth.lr_scale.1"),
        (growing(lr_scale=0.5), "growth.lr_scale"),
        (growing(weight_decay=[-0.1]), "growth.weight_decay.0"),
        (growing(old_tokens="rest"), "growth.old_tokens"),
        (growing(old_tokens={"freeze_for": 0}), "growth.old_tokens.freeze_for"),
        (growing(old_tokens={"freeze": 3}), "growth.old_tokens.freeze"),
        (growing(rewarmup=5), "growth.rewarmup"),
        (growing(rewarmup={"steps": -5}), "growth.rewarmup.steps"),
        (growing(rewarmup={"of": "old"}), "growth.rewarmup.of"),
        (growing(when="flat"), "growth.when"),
        (growing(when="slope", slope=0), "growth.slope"),
        (growing(slope_window=1), "growth.slope_window"),
        ({"growth": None}, "growth"),
        # policies
        (growing(tau="recompute"), "stages.1"),
        (growing(preset="official", allow_jump=False), "growth.preset"),
        (growing(preset="paper-appendix", init="random", moments="reset"), "growth.preset"),
        (growing(init="random", tau="frozen"), "stages.1"),
        (growing(init="copy", tau="recompute", copy_noise=0.5), "stages.1"),
        (growing(init="zero-key"), "growth"),
        (growing(init="zero-key", tau="per-generation", allow_jump=True), "growth"),
        (growing(copy_noise=0.5, allow_jump=True), "growth"),
        (growing(init="copy", tau="recompute") | {"stages.1.ffn_tokens": 16}, "stages.1"),
        (growing(init="zero-key", tau="frozen", allow_jump=True) | {"model.score_function": "softmax"}, "stages.1"),
        (growing(allow_jump=True) | {"model.score_function": "softmax"}, "stages.1"),
        # when
        (growing(when="slope"), "growth.slope"),
        (growing(slope=1e-9), "growth.slope"),
        (growing(when="slope", slope=1e-9) | {"learning_rate.shape": "cosine"}, "growth.when"),
        (growing(when="slope", slope=1e-9) | {"learning_rate.span": "stage"}, "growth.when"),
        (growing(when="slope", slope=1e-9, preset="official"), "growth.when"),
        (growing(when="slope", slope=1e-9) | {"learning_rate.decay": 0.9}, "learning_rate.decay"),
        # layers
        ({"stages.1.layers": [2]} | NO_COMPARISON, "stages.1.layers"),
        ({"stages.1.layers": [1, 1]} | NO_COMPARISON, "stages.1.layers"),
        ({"stages.1.layers": []} | NO_COMPARISON, "stages.1.layers"),
        ({"stages.1.layers": [-1]} | NO_COMPARISON, "stages.1.layers.0"),
        ({"stages.1.layers": 1} | NO_COMPARISON, "stages.1.layers"),
        ({"stages.0.layers": [0]} | NO_COMPARISON, "stages.0.layers"),
        ({"stages.1.layers": [0]}, "controls.0.kind"),
        ({"stages.1.layers": [0], "stages.1.attention_tokens": 4} | NO_COMPARISON, "stages.1"),
        # families
        ({"stages.1.ffn_size": 64}, "stages.1.ffn_size"),
        (STACK | {"stages.1.ffn_tokens": 8}, "stages.1.ffn_tokens"),
        (STACK | {"stages.1.layers": [0]}, "stages.1.layers"),
        (STACK | growing(depth="copy-stack"), "growth.depth"),
        (STACK | {"growth.old_tokens": "freeze"}, "growth.old_tokens"),
        (STACK | {"growth.lr_scale": [1.0, 0.1]}, "growth.lr_scale"),
        (STACK | {"growth.weight_decay": [0.0]}, "growth.weight_decay"),
        (STACK | {"growth.rewarmup": {"steps": 5, "of": "new"}}, "growth.rewarmup.of"),
        (STACK | {"growth.preset": "official"}, "growth.preset"),
        (STACK | {"growth.copy_noise": 0.3}, "growth.copy_noise"),
        # a transformer's sizes
        (TRANSFORMER, "stages.1"),
        (TRANSFORMER | {"stages.1.ffn_size": 64}, "stages.1"),
        (TRANSFORMER | {"stages.1.hidden_size": 48}, "stages.1"),
        (TRANSFORMER | {"stages.1.hidden_size": 40}, "stages.1"),
        (TRANSFORMER | {"stages.1.hidden_size": 64, "stages.1.ffn_size": 200}, "stages.1"),
        (STACK | {"stages.1.num_layers": 3}, "stages.1"),
        (STACK | {"stages.0.hidden_size": 40}, "stages.0"),
        (ONE_TRANSFORMER | {"stages.0.hidden_size": 40}, "stages.0"),
    ],
)
def test_a_mistake_in_a_growth_gives_one_line(changes: dict[str, Any], paths: str) -> None:
    assert paths_of(parse, changed(copy.deepcopy(changes))) == paths


def test_several_mistakes_in_a_growth_are_reported_together() -> None:
    data = changed(growing(init="copy", copy_noise=0.1, slope=1.0))
    assert message_of(parse, data).splitlines() == [
        "s.yaml: 2 problems",
        "  growth.slope = 1.0: is for growth.when = 'slope'; leave it out",
        "  growth: init 'copy' cannot be combined with tau 'ramp'; use init 'copy' with tau 'recompute'",
    ]


def test_an_error_names_the_stage_whose_copies_are_not_whole() -> None:
    growth = {"init": "copy", "tau": "recompute"}
    sizes = (4, 8), (8, 8), (16, 24), (32, 40)
    with pytest.raises(ScheduleError, match=r"stages\.3: growth by copies adds .* a whole multiple of the 24 tokens"):
        ladder(*sizes, growth=growth)
    model = last_model(ladder(*sizes[:3], growth=growth))
    assert model.blocks[0].query.value_shares == (1 / 4, 1 / 2, 1.0)
    assert model.blocks[0].ffn.value_shares == (1 / 3, 1.0)
    with pytest.raises(ScheduleError, match=r"stages\.2\.attention_tokens = 6: must be 8 or more"):
        ladder((4, 8), (8, 16, [1]), (6, 16))


@pytest.mark.parametrize("growth", [{"tau": "recompute"}, {"init": "copy", "tau": "frozen"}, {"preset": "official"}])
def test_a_policy_that_jumps_is_accepted_if_allowed_or_if_nothing_grows(growth: dict[str, Any]) -> None:
    assert plan_stages(ladder((4, 8), (8, 16), growth=growth | {"allow_jump": True}))
    assert ladder((4, 8), growth=growth)
    assert ladder((4, 8), growth={"init": "zero-value", "tau": "recompute"})
    with pytest.raises(ScheduleError, match="cannot be combined with tau 'ramp'"):
        ladder((4, 8), growth={"init": "zero-value"})


def test_a_transformer_with_one_stage_can_keep_its_ladders_growth_block() -> None:
    """The ladder's transformer control does so."""
    growth = {"old_tokens": "freeze", "lr_scale": [1.0, 0.5], "rewarmup": {"steps": 3, "of": "new"}, "init": "copy",
              "tau": "recompute", "copy_noise": 0.1, "allow_jump": True}  # fmt: skip
    assert parse(changed(copy.deepcopy(ONE_TRANSFORMER) | {"growth": growth}))


def test_a_ladder_is_accepted_if_its_policy_is_exact_for_its_scores_or_may_jump() -> None:
    taken = {(init, tau, s) for init, tau, s in POSSIBLE if (init, tau) in EXACT}
    for init, tau, score_function, jump in itertools.product(INITS, TAUS, SCORE_FUNCTIONS, (False, True)):
        growth = {"init": init, "tau": tau, "allow_jump": jump}
        model = {"num_layers": 3, "hidden_size": 32, "num_heads": 2, "score_function": score_function}
        if (init, tau, score_function) in (POSSIBLE if jump else taken):
            schedule = ladder((4, 8), (8, 16), (24, 48), growth=growth, model=model)
            assert [g.number for g in last_model(schedule).blocks[0].query.generations] == [0, 1, 2]
        else:
            with pytest.raises(ScheduleError, match=r"^s\.yaml: (growth|stages\.1): "):
                ladder((4, 8), (8, 16), (24, 48), growth=growth, model=model)


def test_messages_of_parse_schedule_begin_with_the_file() -> None:
    with pytest.raises(ScheduleError, match=r"^mine\.yaml: growth\.ramp = 2: must be less than or equal to 1$"):
        parse_schedule(changed({"growth.ramp": 2}), label="mine.yaml", default_name="s")
