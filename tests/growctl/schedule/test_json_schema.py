"""The JSON Schema of schedules, for editors: it accepts valid schedules and places mistakes."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf

from growctl.schedule.errors import ScheduleError
from growctl.schedule.files import GROUPS, SHIPPED, choices, shipped_schedules
from growctl.schedule.json_schema import schedule_schema, schema_text
from tests.growctl.runs import run_here
from tests.growctl.schedules import BASE, DELETE, changed, parse

SCHEMA = schedule_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
BLOCKS = {"Schedule": SCHEMA, **SCHEMA["$defs"]}


def plain(path: Path) -> Any:
    """The plain data in a YAML file, without composition: what an editor checks."""
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


def problems(data: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(data)]


def test_the_command_prints_the_schema_which_is_valid() -> None:
    out, _ = run_here("schema")
    assert out == schema_text()
    assert json.loads(out) == SCHEMA
    Draft202012Validator.check_schema(SCHEMA)


def test_every_shipped_schedule_and_choice_conforms() -> None:
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


ANY_VALUE = st.one_of(
    *(st.none(), st.booleans(), st.integers(-2, 2**40), st.floats(allow_nan=False, allow_infinity=False)),
    st.text(max_size=5),
    st.sampled_from(["15B", " 1.5 k ", "auto", "softmax", "transformer", "freeze", "bf16", "90m", "1d 2h ", "40GiB"]),
    st.lists(st.integers(1, 3), max_size=3),
    st.dictionaries(st.sampled_from(["name", "kind", "freeze_for"]), st.integers(), max_size=2),
)
OPTIONAL = {
    "launch": "LaunchBlock",
    "launch.slurm": "SlurmBlock",
    "launch.hardware": "HardwareBlock",
    "growth": "GrowthBlock",
    "data": "DataBlock",
    "stages.1": "StageBlock",
}
ANY_PATH = ["seed", *(f"{path}.{key}" for path, name in OPTIONAL.items() for key in BLOCKS[name]["properties"])]


@settings(max_examples=200)
@given(st.sampled_from(ANY_PATH), ANY_VALUE)
def test_editors_accept_every_value_that_growctl_accepts(path: str, value: Any) -> None:
    data = changed({path: value})
    with contextlib.suppress(ScheduleError):
        parse(data)
        assert not problems(data)
