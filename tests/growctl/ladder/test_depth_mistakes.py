"""Mistakes in the depth of stages, each with its one message, and schedules that only look mistaken."""

from typing import Any

import pytest

from growctl.ladder.stage_plans import plan_stages
from tests.growctl.grown_ladders import ONE_TRANSFORMER, TRANSFORMER
from tests.growctl.schedules import DELETE, changed, message_of, parse

ALONE: dict[str, Any] = {"controls": []}
NO_SIZES: dict[str, Any] = {f"stages.{i}.{key}": DELETE for i in (0, 1) for key in ("attention_tokens", "ffn_tokens")}
FROM_NOTHING = NO_SIZES | {"model.num_layers": 0, "stages.1.num_layers": 2} | ALONE
OFFICIAL = {"kind": "official-growth"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"stages.1.num_layers": 1},
            "stages.1.num_layers = 1: is less than the 2 of the stage before; a growth only adds",
        ),
        (
            {"stages.1.num_layers": 1, "controls": [OFFICIAL]},
            "stages.1.num_layers = 1: is less than the 2 of the stage before; a growth only adds",
        ),
        ({"stages.1.num_layers": -1}, "stages.1.num_layers = -1: must be 0 or more"),
        ({"stages.1.num_layers": 1001}, "stages.1.num_layers = 1001: must be 1000 or less"),
        (
            {"stages.1.num_layers": 3, "stages.1.layers": [0]} | ALONE,
            "stages.1.layers = [0]: goes without num_layers, which grows all layers; grow some of them in a stage of "
            "its own",
        ),
        (
            {"stages.1.layers": [0], "stages.1.attention_tokens": DELETE, "stages.1.ffn_tokens": DELETE} | ALONE,
            "stages.1.layers = [0]: says which layers grow, but not to what; add attention_tokens or ffn_tokens",
        ),
        (
            {"stages.1.attention_tokens": DELETE, "stages.1.ffn_tokens": DELETE},
            "stages.1: has the size, batch, context and mixture of the stage before; change one of them, or merge the "
            "two stages",
        ),
        (
            FROM_NOTHING | {"stages.1.ffn_tokens": 8},
            "stages.1.attention_tokens: is missing; the first stage of a tokenformer with layers needs a number of "
            "parameter tokens",
        ),
        (
            NO_SIZES | {"model.num_layers": 0, "stages.1.layers": [0], "stages.1.ffn_tokens": 8} | ALONE,
            "stages.1.layers = [0]: the model has no layers",
        ),
        (
            {"stages.1.num_layers": 4, "stages.1.attention_tokens": 4, "growth.depth": "copy-stack"},
            "growth.depth = 'copy-stack': changes the function; that needs growth.allow_jump = true",
        ),
        (
            {"stages.1.num_layers": 3, "stages.1.attention_tokens": 4, "growth.depth": "copy-stack",
             "growth.allow_jump": True},
            "stages.1.num_layers = 3: must be a multiple of the 2 of the stage before with growth.depth = "
            "'copy-stack'; use 4",
        ),
        (
            FROM_NOTHING | {"stages.1.attention_tokens": 4, "stages.1.ffn_tokens": 8, "growth.depth": "copy-stack",
                            "growth.allow_jump": True},
            "stages.1.num_layers = 2: growth.depth = 'copy-stack' needs layers to copy; the stage before has none",
        ),
        (
            {"stages.1.layers": 3},
            "stages.1.layers = 3: must be a list, such as [0, 1]; the number of layers is num_layers",
        ),
        (
            {"stages.1.num_layers": 4, "growth.depth": "copy-stack", "growth.allow_jump": True},
            "stages.1: depth 'copy-stack' cannot add tokens to layers in the same growth; add layers in one growth and "
            "tokens in another, or use depth 'append' or 'interleave'",
        ),
        (
            {"stages.1.num_layers": 4, "growth.preset": "official"},
            "growth.preset = 'official': the official code cannot add layers; set preset to custom",
        ),
        (
            {"growth.depth": "stack"},
            "growth.depth = 'stack': must be 'append', 'interleave' or 'copy-stack'",
        ),
        (
            {"stages.1.num_layers": 4, "controls": [OFFICIAL]},
            "controls.0.kind = 'official-growth': the official code cannot add layers, and this ladder does",
        ),
        (
            {"model.num_layers": 0, "stages.1.attention_tokens": DELETE, "stages.1.num_layers": 0,
             "controls": [{"kind": "transformer-scratch"}], "stages": [{"name": "a", "train_steps": 9}]},
            "controls.0.kind = 'transformer-scratch': needs a ladder that ends with layers; a transformer has at least "
            "one",
        ),
        (
            {"stages.1.num_layers": 4, "stages.1.attention_tokens": 4, "stages.1.ramp_steps": 3},
            "stages.1.ramp_steps = 3: is for a stage that adds parameter tokens; leave it out",
        ),
        (
            TRANSFORMER | {"stages.1.num_layers": 4, "growth.depth": "interleave",
                           "growth.operator": "identity-blocks"},
            "growth.depth = 'interleave': is for a tokenformer; a transformer grows by growth.operator",
        ),
        (
            ONE_TRANSFORMER | {"model.num_layers": 0},
            "model.num_layers = 0: must be 1 or more for a transformer; only a tokenformer can have no layers",
        ),
        (
            TRANSFORMER | {"stages.0.num_layers": 0, "stages.1.num_layers": 4, "growth.operator": "identity-blocks"},
            "stages.0.num_layers = 0: must be 1 or more for a transformer; only a tokenformer can have no layers",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_depth_gives_one_line(changes: dict[str, Any], problem: str) -> None:
    assert message_of(parse, changed(changes)) == f"s.yaml: {problem}"


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
