"""Mistakes in the budgets of stages, in the shares of one budget, and slopes that can never end a stage."""

from typing import Any

import pytest

from growctl.ladder.stage_plans import plan_stages
from tests.growctl.schedules import changed, parse, paths_of

SHARED: dict[str, Any] = {
    "training.ladder_tokens": "20k",
    "stages.0.train_tokens": None,
    "stages.1.train_steps": None,
    "stages.0.until": 0.8,
    "controls": [],
}


SMALL, MEDIUM, LARGE = (
    {"name": name, "attention_tokens": 4 * size, "ffn_tokens": 8 * size} for size, name in enumerate(("s", "m", "l"), 1)
)


def test_each_stage_but_the_last_ends_at_a_share_of_the_ladders_budget() -> None:
    assert [plan.num_steps for plan in plan_stages(parse(changed(SHARED)))] == [125, 31]
    explicit = parse(changed(SHARED | {"stages.1.until": 1.0}))
    assert [plan.num_steps for plan in plan_stages(explicit)] == [125, 31]


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"training.ladder_flops": 1e12}, "training.ladder_flops"),
        ({"stages.0.until": 0}, "stages.0.until"),
        ({"stages.0.until": 80}, "stages.0.until"),
        ({"stages.0.until": "80%"}, "stages.0.until"),
        ({"stages.0.until": 800}, "stages.0.until"),
        ({"stages.0.until": 1}, "stages.0.until stages.1.until"),
        ({"stages.0.until": None}, "stages.0.until"),
        ({"stages.1.until": 0.9}, "stages.1.until"),
        (
            {"stages": [SMALL | {"until": 0.8}, MEDIUM | {"until": 0.5}, LARGE], "training.ladder_tokens": "20k"},
            "stages.1.until",
        ),
        ({"training.ladder_tokens": None, "stages.1.train_steps": 20}, "stages.0.until"),
        ({"training.ladder_tokens": None, "stages.1.train_steps": 20, "stages.0.train_steps": 20}, "stages.0.until"),
        ({"stages.0.train_tokens": "2k", "stages.1.train_steps": 20}, "stages.0.train_tokens stages.1.train_steps"),
        ({"training.ladder_tokens": 600}, "training.ladder_tokens"),
        ({"training.ladder_tokens": None, "training.ladder_flops": 1e7}, "training.ladder_flops"),
        ({"training.ladder_tokens": 0}, "training.ladder_tokens"),
        ({"training.ladder_flops": "lots"}, "training.ladder_flops"),
    ],
)
def test_a_mistake_in_the_shares_of_a_budget_gives_one_line(changes: dict[str, Any], paths: str) -> None:
    data = changed(changes | {"controls": []}) if "stages" in changes else changed(SHARED | changes)
    assert paths_of(parse, data) == paths
