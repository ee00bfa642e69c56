"""Which growths of a ladder are accepted, and the stage or the keys that a message names otherwise."""

import itertools
from typing import Any

import pytest

from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.errors import ScheduleError
from tests.growctl.grown_ladders import ONE_TRANSFORMER, ladder, last_model
from tests.growctl.schedules import changed, parse
from tests.model.growths import EXACT, INITS, POSSIBLE, SCORE_FUNCTIONS, TAUS


def test_an_error_names_the_stage_whose_copies_are_not_whole() -> None:
    growth = {"init": "copy", "tau": "recompute"}
    sizes = (4, 8), (8, 8), (16, 24), (32, 40)
    with pytest.raises(ScheduleError, match=r"stages\.3: growth by copies adds .* a whole multiple of the 24 tokens"):
        ladder(*sizes, growth=growth)
    block = last_model(ladder(*sizes[:3], growth=growth)).blocks[0]
    assert (block.query.value_shares, block.ffn.value_shares) == ((1 / 4, 1 / 2, 1.0), (1 / 3, 1.0))
    with pytest.raises(ScheduleError, match=r"stages\.2\.attention_tokens = 6: must be 8 or more"):
        ladder((4, 8), (8, 16, [1]), (6, 16))


JUMPS: dict[str, Any] = {"init": "copy", "tau": "recompute", "copy_noise": 0.1, "allow_jump": True}
OF_TOKENFORMERS = {"old_tokens": "freeze", "lr_scale": [1.0, 0.5], "rewarmup": {"steps": 3, "of": "new"}}


def test_a_policy_that_jumps_is_accepted_if_nothing_grows() -> None:
    for growth in ({"tau": "recompute"}, {"init": "copy", "tau": "frozen"}, {"preset": "official"}):
        assert plan_stages(ladder((4, 8), (8, 16), growth=growth | {"allow_jump": True}))
        assert ladder((4, 8), growth=growth)
    assert ladder((4, 8), growth={"init": "zero-value", "tau": "recompute"})
    with pytest.raises(ScheduleError, match="cannot be combined with tau 'ramp'"):
        ladder((4, 8), growth={"init": "zero-value"})
    assert parse(changed(ONE_TRANSFORMER | {"growth": OF_TOKENFORMERS | JUMPS})), "as a ladder's transformer control"


def test_a_ladder_is_accepted_if_its_policy_is_exact_for_its_scores_or_may_jump() -> None:
    exact = {(init, tau, score_function) for init, tau, score_function in POSSIBLE if (init, tau) in EXACT}
    for init, tau, score_function, jump in itertools.product(INITS, TAUS, SCORE_FUNCTIONS, (False, True)):
        model = {"num_layers": 3, "hidden_size": 32, "num_heads": 2, "score_function": score_function}
        blocks: dict[str, Any] = {"growth": {"init": init, "tau": tau, "allow_jump": jump}, "model": model}
        if (init, tau, score_function) in (POSSIBLE if jump else exact):
            schedule = ladder((4, 8), (8, 16), (24, 48), **blocks)
            assert [g.number for g in last_model(schedule).blocks[0].query.generations] == [0, 1, 2]
        else:
            with pytest.raises(ScheduleError, match=r"^s\.yaml: (growth|stages\.1): "):
                ladder((4, 8), (8, 16), (24, 48), **blocks)
