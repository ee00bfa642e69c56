"""Mistakes in the growth block and their messages, and valid values that look like mistakes."""

import copy
import itertools
from typing import Any

import pytest

from growctl.ladder.load import ScheduleError, parse_schedule
from growctl.ladder.stage_plans import plan_stages
from tests.growctl.grown_ladders import ONE_TRANSFORMER, TRANSFORMER, ladder, last_model
from tests.growctl.schedules import changed, message_of, parse
from tests.model.growths import EXACT, INITS, POSSIBLE, SCORE_FUNCTIONS, TAUS

JUMPS = (
    "changes the function; that needs allow_jump. These preserve it: random or matched with ramp; zero-key with frozen "
    "or anneal; zero-value with per-generation; copy with recompute"
)
SOFTMAX = (
    "exp(0) = 1 would change the function; use init 'zero-value' with tau 'per-generation', or init 'copy' with tau "
    "'recompute'"
)
PRESET_NAMES = "'growctl-default', 'official', 'paper-appendix' or 'custom'"
LEAVE_OUT = "remove those keys (as an override: ~growth.KEY), or set preset to custom"
LAYERS = "must be one or more different layers, from 0 to 1"
NO_DECAY_CUT = (
    "growth.when = 'slope': needs learning_rate.shape wsd and learning_rate.span ladder, so that no decay is cut short"
)
ONE_KIND = "is for a tokenformer; a grown transformer has no old and new tokens"
NO_COMPARISON: dict[str, Any] = {"controls": []}
STACK = TRANSFORMER | {"growth": {"operator": "stack", "allow_jump": True}, "stages.1.num_layers": 4}
NET2NET = (
    "net2net cannot grow to hidden_size {}, num_heads {}, ffn_size {}; it can grow to hidden_size 32 and num_heads 2 "
    "times one integer, ffn_size 128 or more, one of them larger"
)


def growing(**growth: Any) -> dict[str, Any]:
    return {"growth": growth}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        # one key
        (
            growing(preset="offical"),
            f"growth.preset = 'offical': must be {PRESET_NAMES}",
        ),
        (growing(preset=[1]), f"growth.preset = [1]: must be {PRESET_NAMES}"),
        (growing(init="zero"), "growth.init = 'zero': must be 'random', 'matched', 'zero-key', 'zero-value' or 'copy'"),
        (
            growing(tau="thaw"),
            "growth.tau = 'thaw': must be 'ramp', 'anneal', 'frozen', 'recompute' or 'per-generation'",
        ),
        (growing(ramp=1.5), "growth.ramp = 1.5: must be 1 or less"),
        (growing(anneal=0), "growth.anneal = 0: must be above 0"),
        (growing(copy_noise=-0.1), "growth.copy_noise = -0.1: must be 0 or more"),
        (growing(moments="drop"), "growth.moments = 'drop': must be 'keep' or 'reset'"),
        (growing(lr_scale=[1.0, -1]), "growth.lr_scale.1 = -1: must be 0 or more"),
        (growing(lr_scale=0.5), "growth.lr_scale = 0.5: must be a list"),
        (growing(weight_decay=[-0.1]), "growth.weight_decay.0 = -0.1: must be 0 or more"),
        (growing(old_tokens="rest"), "growth.old_tokens = 'rest': must be train, freeze, or {freeze_for: STEPS}"),
        (growing(old_tokens={"freeze_for": 0}), "growth.old_tokens: must be train, freeze, or {freeze_for: STEPS}"),
        (growing(old_tokens={"freeze": 3}), "growth.old_tokens: must be train, freeze, or {freeze_for: STEPS}"),
        (growing(rewarmup=5), "growth.rewarmup = 5: must be a block of keys"),
        (growing(rewarmup={"steps": -5}), "growth.rewarmup.steps = -5: must be 0 or more"),
        (growing(rewarmup={"of": "old"}), "growth.rewarmup.of = 'old': must be 'all' or 'new'"),
        (growing(when="flat"), "growth.when = 'flat': must be 'fixed' or 'slope'"),
        (growing(when="slope", slope=0), "growth.slope = 0: must be above 0"),
        (growing(slope_window=1), "growth.slope_window = 1: must be 2 or more"),
        (
            growing(operator="stak"),
            "growth.operator = 'stak': must be 'net2net', 'hypercloning', 'stack' or 'identity-blocks'",
        ),
        ({"growth": None}, "growth = null: must be a block of keys"),
        # policies
        (growing(tau="recompute"), f"growth: init 'matched' with tau 'recompute' {JUMPS}"),
        (
            growing(preset="official", allow_jump=False),
            f"growth.preset = 'official': is contradicted by allow_jump = false (not true); {LEAVE_OUT}",
        ),
        (
            growing(preset="paper-appendix", init="random", moments="reset"),
            "growth.preset = 'paper-appendix': is contradicted by init = 'random' (not 'zero-key'), moments = 'reset' "
            f"(not 'keep'); {LEAVE_OUT}",
        ),
        (growing(init="random", tau="frozen"), f"growth: init 'random' with tau 'frozen' {JUMPS}"),
        (
            growing(init="copy", tau="recompute", copy_noise=0.5),
            f"growth: init 'copy' with tau 'recompute' and copy_noise 0.5 {JUMPS}",
        ),
        (
            growing(init="zero-key"),
            "growth: init 'zero-key' cannot be combined with tau 'ramp' (the default), which raises random keys from "
            "zero; use tau 'frozen' or 'anneal'",
        ),
        (
            growing(init="zero-key", tau="per-generation", allow_jump=True),
            "growth: init 'zero-key' cannot be combined with tau 'per-generation': the norm of a row of zero "
            "scores is zero, and the scores are divided by it",
        ),
        (growing(copy_noise=0.5, allow_jump=True), "growth: copy_noise 0.5 needs init 'copy', not 'matched'"),
        (
            growing(init="copy", tau="recompute") | {"stages.1.ffn_tokens": 16},
            "stages.1: growth by copies adds 2 tokens; it must add a whole multiple of the 4 tokens that the "
            "Pattention has",
        ),
        (
            growing(init="zero-key", tau="frozen", allow_jump=True) | {"model.score_function": "softmax"},
            f"growth: score_function 'softmax' cannot grow with zero keys: {SOFTMAX}",
        ),
        (
            growing(allow_jump=True) | {"model.score_function": "softmax"},
            f"growth: score_function 'softmax' cannot grow with a ramp from zero keys: {SOFTMAX}",
        ),
        # when
        (
            growing(when="slope"),
            "growth.slope: is missing; growth.when = 'slope' needs the nats per FLOP below which a stage ends",
        ),
        (growing(slope=1e-9), "growth.slope = 1e-09: goes with growth.when = 'slope', not 'fixed'"),
        (growing(when="slope", slope=1e-9) | {"learning_rate.shape": "cosine"}, NO_DECAY_CUT),
        (growing(when="slope", slope=1e-9) | {"learning_rate.span": "stage"}, NO_DECAY_CUT),
        (growing(when="slope", slope=1e-9, preset="official"), NO_DECAY_CUT),
        (
            growing(when="slope", slope=1e-9) | {"learning_rate.decay": 0.9},
            "learning_rate.decay = 0.9: with growth.when = 'slope' the decay must fit into the last stage, so 0.555 at "
            "most",
        ),
        # layers
        ({"stages.1.layers": [2]} | NO_COMPARISON, f"stages.1.layers = [2]: {LAYERS}"),
        ({"stages.1.layers": [1, 1]} | NO_COMPARISON, f"stages.1.layers = [1, 1]: {LAYERS}"),
        ({"stages.1.layers": []} | NO_COMPARISON, f"stages.1.layers = []: {LAYERS}"),
        ({"stages.1.layers": [-1]} | NO_COMPARISON, "stages.1.layers.0 = -1: must be 0 or more"),
        (
            {"stages.1.layers": 1} | NO_COMPARISON,
            "stages.1.layers = 1: must be a list, such as [0, 1]; the number of layers is num_layers",
        ),
        (
            {"stages.0.layers": [0]} | NO_COMPARISON,
            "stages.0.layers = [0]: is for a growth; the first stage always has all layers",
        ),
        (
            {"stages.1.layers": [0]},
            "controls.0.kind = 'tokenformer-scratch': needs layers of equal size; this ladder grows only some layers",
        ),
        (
            {"stages.1.layers": [0], "stages.1.attention_tokens": 4} | NO_COMPARISON,
            "stages.1: has the size, batch, context and mixture of the stage before; change one of them, or merge the "
            "two stages",
        ),
        # families
        (
            growing(operator="stack"),
            "growth.operator = 'stack': is for a transformer; a tokenformer grows by growth.init",
        ),
        (
            {"stages.1.ffn_size": 64},
            "stages.1.ffn_size = 64: a tokenformer grows by tokens and layers only; set it for all stages under model",
        ),
        (
            STACK | {"stages.1.ffn_tokens": 8},
            "stages.1.ffn_tokens = 8: a transformer has no parameter tokens; leave it out",
        ),
        (
            STACK | {"stages.1.layers": [0]},
            "stages.1.layers = [0]: a transformer has no parameter tokens; leave it out",
        ),
        (
            TRANSFORMER | {"stages.1.num_layers": 4},
            "growth.operator: is missing; a transformer that grows needs one of net2net, hypercloning, stack, "
            "identity-blocks",
        ),
        (
            STACK | growing(operator="stack"),
            "growth.operator = 'stack': changes the function; that needs growth.allow_jump = true",
        ),
        (STACK | {"growth.old_tokens": "freeze"}, f"growth.old_tokens = 'freeze': {ONE_KIND}"),
        (STACK | {"growth.lr_scale": [1.0, 0.1]}, f"growth.lr_scale = [1.0, 0.1]: {ONE_KIND}"),
        (STACK | {"growth.weight_decay": [0.0]}, f"growth.weight_decay = [0.0]: {ONE_KIND}"),
        (STACK | {"growth.rewarmup": {"steps": 5, "of": "new"}}, f"growth.rewarmup.of = 'new': {ONE_KIND}"),
        (STACK | {"growth.preset": "official"}, f"growth.preset = 'official': {ONE_KIND}"),
        (
            STACK | {"growth.copy_noise": 0.3},
            "growth.copy_noise = 0.3: goes with hypercloning and net2net; stack copies whole blocks",
        ),
        # a transformer's sizes
        (
            TRANSFORMER | growing(operator="net2net"),
            "stages.1: has the size, batch, context and mixture of the stage before; change one of them, or merge the "
            "two stages",
        ),
        (
            TRANSFORMER | growing(operator="net2net") | {"stages.1.ffn_size": 64},
            f"stages.1: {NET2NET.format(32, 2, 64)}",
        ),
        (
            TRANSFORMER | growing(operator="net2net") | {"stages.1.hidden_size": 48},
            f"stages.1: {NET2NET.format(48, 3, 192)}",
        ),
        (
            TRANSFORMER | growing(operator="net2net") | {"stages.1.hidden_size": 40},
            "stages.1: hidden_size 40 must be a multiple of the heads' width, 16",
        ),
        (
            TRANSFORMER | growing(operator="hypercloning") | {"stages.1.hidden_size": 64, "stages.1.ffn_size": 300},
            "stages.1: hypercloning cannot grow to hidden_size 64, num_heads 4, ffn_size 300; it can grow to "
            "hidden_size 32, num_heads 2 and ffn_size 128 times one integer, 2 or more",
        ),
        (
            STACK | {"stages.1.num_layers": 3},
            "stages.1: stack cannot grow to num_layers 3; it can grow to num_layers 2 times an integer, 2 or more",
        ),
        (
            STACK | {"stages.1.hidden_size": 64},
            "stages.1: hidden_size is 64; it must stay 32, because stack only grows num_layers",
        ),
        (
            TRANSFORMER | growing(operator="identity-blocks") | {"stages.1.num_layers": 5},
            "stages.1: identity-blocks cannot grow to num_layers 5; it can grow to num_layers from 3 to 4",
        ),
        (
            STACK | {"stages.0.hidden_size": 40},
            "stages.0: hidden_size 40 must be a multiple of the heads' width, 16",
        ),
        (
            ONE_TRANSFORMER | {"stages.0.hidden_size": 40},
            "stages.0: hidden_size 40 must be a multiple of the heads' width, 16",
        ),
    ],
)
def test_a_mistake_in_a_growth_gives_one_line(changes: dict[str, Any], problem: str) -> None:
    assert message_of(parse, changed(copy.deepcopy(changes))) == f"s.yaml: {problem}"


def test_several_mistakes_in_a_growth_are_reported_together() -> None:
    data = changed(growing(init="copy", copy_noise=0.1, operator="stack", slope=1.0))
    assert message_of(parse, data).splitlines() == [
        "s.yaml: 3 problems",
        "  growth.slope = 1.0: goes with growth.when = 'slope', not 'fixed'",
        "  growth.operator = 'stack': is for a transformer; a tokenformer grows by growth.init",
        "  growth: init 'copy' cannot be combined with tau 'ramp' (the default), which raises random keys from "
        "zero; use tau 'recompute'",
    ]


def test_an_error_names_the_stage_whose_copies_are_not_whole() -> None:
    growth = {"init": "copy", "tau": "recompute"}
    sizes = (4, 8), (8, 8), (16, 24), (32, 40)
    with pytest.raises(ScheduleError, match=r"stages\.3: growth by copies adds .* a whole multiple of the 24 tokens"):
        ladder(*sizes, growth=growth)
    model = last_model(ladder(*sizes[:3], growth=growth))
    assert model.blocks[0].query.value_shares == (1 / 4, 1 / 2, 1.0)
    assert model.blocks[0].ffn.value_shares == (1 / 3, 1.0)
    with pytest.raises(ScheduleError, match=r"stages\.2\.attention_tokens = 6: is less than the 8 of the stage before"):
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
            with pytest.raises(ScheduleError, match=r"^s\.yaml: growth: "):
                ladder((4, 8), (8, 16), (24, 48), growth=growth, model=model)


def test_messages_of_parse_schedule_begin_with_the_file() -> None:
    with pytest.raises(ScheduleError, match=r"^mine\.yaml: growth\.ramp = 2: must be 1 or less$"):
        parse_schedule(changed({"growth.ramp": 2}), label="mine.yaml", default_name="s")
