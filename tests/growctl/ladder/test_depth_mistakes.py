"""Mistakes in the depth of stages, each with its one message, and schedules that only look mistaken."""

from typing import Any

import pytest

from growctl.ladder.stage_plans import plan_stages
from tests.growctl.grown_ladders import ONE_TRANSFORMER, TRANSFORMER
from tests.growctl.schedules import DELETE, changed, parse, paths_of

ALONE: dict[str, Any] = {"controls": []}
NO_SIZES: dict[str, Any] = {f"stages.{i}.{key}": DELETE for i in (0, 1) for key in ("attention_tokens", "ffn_tokens")}
FROM_NOTHING = NO_SIZES | {"model.num_layers": 0, "stages.1.num_layers": 2} | ALONE
OFFICIAL = {"kind": "official-growth"}


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"stages.1.num_layers": 1}, "stages.1.num_layers"),
        ({"stages.1.num_layers": 1, "controls": [OFFICIAL]}, "stages.1.num_layers"),
        ({"stages.1.num_layers": -1}, "stages.1.num_layers"),
        ({"stages.1.num_layers": 1001}, "stages.1.num_layers"),
        ({"stages.1.num_layers": 3, "stages.1.layers": [0]} | ALONE, "stages.1.layers"),
        (
            {"stages.1.layers": [0], "stages.1.attention_tokens": DELETE, "stages.1.ffn_tokens": DELETE} | ALONE,
            "stages.1.layers",
        ),
        ({"stages.1.attention_tokens": DELETE, "stages.1.ffn_tokens": DELETE}, "stages.1"),
        (FROM_NOTHING | {"stages.1.ffn_tokens": 8}, "stages.1.attention_tokens"),
        (
            NO_SIZES | {"model.num_layers": 0, "stages.1.layers": [0], "stages.1.ffn_tokens": 8} | ALONE,
            "stages.1.layers",
        ),
        ({"stages.1.num_layers": 4, "stages.1.attention_tokens": 4, "growth.depth": "copy-stack"}, "stages.1"),
        (
            {
                "stages.1.num_layers": 3,
                "stages.1.attention_tokens": 4,
                "growth.depth": "copy-stack",
                "growth.allow_jump": True,
            },
            "stages.1",
        ),
        (
            FROM_NOTHING
            | {
                "stages.1.attention_tokens": 4,
                "stages.1.ffn_tokens": 8,
                "growth.depth": "copy-stack",
                "growth.allow_jump": True,
            },
            "stages.1",
        ),
        ({"stages.1.layers": 3}, "stages.1.layers"),
        ({"stages.1.num_layers": 4, "growth.depth": "copy-stack", "growth.allow_jump": True}, "stages.1"),
        ({"stages.1.num_layers": 4, "growth.preset": "official"}, "growth.preset"),
        ({"growth.depth": "stack"}, "growth.depth"),
        ({"stages.1.num_layers": 4, "controls": [OFFICIAL]}, "controls.0.kind"),
        (
            {
                "model.num_layers": 0,
                "stages.1.attention_tokens": DELETE,
                "stages.1.num_layers": 0,
                "controls": [{"kind": "transformer-scratch"}],
                "stages": [{"name": "a", "train_steps": 9}],
            },
            "controls.0.kind",
        ),
        ({"stages.1.num_layers": 4, "stages.1.attention_tokens": 4, "stages.1.ramp_steps": 3}, "stages.1.ramp_steps"),
        (TRANSFORMER | {"stages.1.num_layers": 4, "growth.depth": "copy-stack"}, "growth.depth"),
        (ONE_TRANSFORMER | {"model.num_layers": 0}, "model.num_layers"),
        (TRANSFORMER | {"stages.0.num_layers": 0, "stages.1.num_layers": 4}, "stages.0.num_layers"),
    ],
)
def test_a_mistake_in_depth_gives_one_line(changes: dict[str, Any], paths: str) -> None:
    assert paths_of(parse, changed(changes)) == paths


@pytest.mark.parametrize(
    ("changes", "depths"),
    [
        (ALONE | NO_SIZES | {"model.num_layers": 0, "stages": [{"name": "a", "train_steps": 9}]}, [0]),
        (FROM_NOTHING | {"stages.0.attention_tokens": 4, "stages.0.ffn_tokens": 8}, [0, 2]),
        (
            FROM_NOTHING
            | {"stages.1.attention_tokens": 4, "stages.1.ffn_tokens": 8, "model.score_function": "softmax"},
            [0, 2],
        ),
        ({"stages.1.num_layers": 4, "growth.init": "zero-key", "growth.tau": "frozen"}, [2, 4]),
        ({"growth.depth": "copy-stack"}, [2, 2]),
    ],
)
def test_what_only_looks_mistaken_is_accepted_and_has_the_depths_that_it_says(
    changes: dict[str, Any], depths: list[int]
) -> None:
    plans = plan_stages(parse(changed(changes)))
    assert [plan.model.num_layers for plan in plans] == depths
