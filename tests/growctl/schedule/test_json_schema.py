"""The JSON Schema of schedules, for editors: it accepts valid schedules and places mistakes."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf

from growctl.schedule.files import GROUPS, SHIPPED, choices, shipped_schedules
from growctl.schedule.json_schema import schedule_schema
from tests.growctl.schedules import BASE, DELETE, changed

SCHEMA = schedule_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def plain(path: Path) -> Any:
    """The plain data in a YAML file, without composition: what an editor checks."""
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


def problems(data: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(data)]


def test_the_schema_is_valid_and_every_shipped_schedule_and_choice_conforms() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    for name, path in shipped_schedules().items():
        assert not problems(plain(path)), name
    for group in GROUPS:
        block = Draft202012Validator(SCHEMA["properties"][group] | {"$defs": SCHEMA["$defs"]})
        assert list(block.iter_errors({"no such key": 1}))
        for choice in choices(group, [SHIPPED]):
            assert not list(block.iter_errors(plain(SHIPPED / group / f"{choice}.yaml"))), choice


@pytest.mark.parametrize(
    "data",
    [
        BASE,
        changed({"seed": "${oc.env:SEED}", "model": "${data}", "stages.1.train_steps": "${training.batch_size}"}),
        changed({"launch.slurm": {"options": {"exclusive": True, "reservation": "x"}, "setup": ["module load x"]}}),
        changed({"launch.nodes": [1, 2], "launch.slurm": {"time_limit": "1d 12h", "memory": "40 GiB"}}),
        changed({"growth.old_tokens": {"freeze_for": "1k"}, "launch.activation_checkpointing": {"every": 2}}),
        {"defaults": ["s", {"override data": "wikitext"}, {"launch": "slurm"}, "_self_"], "model": {"num_layers": 3}},
    ],
)
def test_valid_user_files_conform(data: dict[str, Any]) -> None:
    assert not problems(data)


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (changed({"stages.0.train_token": "2k"}), "$.stages[0]"),
        (changed({"stages.0.train_tokens": "15X"}), "$.stages[0].train_tokens"),
        (changed({"learning_rate.shape": "linear"}), "$.learning_rate"),
        (changed({"stages.0.name": DELETE}), "$.stages[0]"),
        ({"defaults": [{"lunch": "slurm"}]}, "$.defaults[0]"),
        ({"defaults": ["quickstart"], "sed": 3}, "$"),
        ({"defaults": ["quickstart"], "stages": [{"train_tokens": 3}]}, "$.stages[0]"),
    ],
)
def test_editors_underline_each_mistake_at_its_place(data: Any, where: str) -> None:
    found = problems(data)
    assert found
    assert all(problem.startswith(where) for problem in found)
