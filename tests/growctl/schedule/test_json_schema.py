"""The shipped JSON Schema is current, accepts valid schedules and rejects mistakes."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf

from growctl.ladder.load import load_schedule
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
from growctl.schedule.files import GROUPS, SHIPPED, choices, shipped_schedules
from growctl.schedule.json_schema import schedule_schema, schema_text
from tests.growctl.schedules import BASE, DELETE, changed, parse

ROOT = Path(__file__).resolve().parent.parent.parent.parent
SCHEMA = schedule_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
CHOICES = [(group, choice) for group in GROUPS for choice in choices(group, [SHIPPED])]


def plain(path: Path) -> Any:
    """The plain data in a YAML file, without composition: what an editor checks."""
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


def problems(data: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(data)]


def test_the_schema_is_a_valid_json_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_the_command_prints_the_schema() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "growctl.cli.app", "schema"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert printed.stdout == schema_text()
    assert json.loads(printed.stdout) == SCHEMA


@pytest.mark.parametrize("name", shipped_schedules())
def test_every_shipped_schedule_conforms_and_so_does_its_dump(name: str) -> None:
    assert not problems(plain(shipped_schedules()[name]))
    assert not problems(load_schedule(name).model_dump(mode="json"))


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_shipped_choice_conforms_to_its_block(group: str, choice: str) -> None:
    block = Draft202012Validator(SCHEMA["properties"][group] | {"$defs": SCHEMA["$defs"]})
    assert list(block.iter_errors({"no such key": 1}))
    assert not list(block.iter_errors(plain(SHIPPED / group / f"{choice}.yaml")))


@pytest.mark.parametrize(
    "data",
    [
        BASE,
        changed({"seed": "${oc.env:SEED}", "model": "${data}", "stages.1.train_steps": "${training.batch_size}"}),
        changed(
            {"launch": {"cluster": "slurm", "nodes": [1, 2], "slurm": {"time_limit": "1d 12h", "memory": "40 GiB"}}}
        ),
        changed(
            {"launch": {"slurm": {"options": {"exclusive": True, "reservation": "x"}, "setup": ["module load x"]}}}
        ),
        changed({"growth": {"old_tokens": {"freeze_for": "1k"}}}),
        changed({"launch": {"activation_checkpointing": {"every": 2}}}),
        {"defaults": ["quickstart"]},
        {
            "defaults": ["pile_1.4b", {"override data": "wikitext"}, {"launch": "slurm"}, "_self_"],
            "model": {"num_layers": 3},
        },
    ],
)
def test_valid_user_files_conform(data: dict[str, Any]) -> None:
    assert not problems(data)


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (changed({"stages.0.train_token": "2k"}), "$.stages[0]"),
        (changed({"model._target_": "os.system"}), "$.model"),
        (changed({"training.batch_sise": 4}), "$.training"),
        (changed({"seed": -1}), "$.seed"),
        (changed({"seed": "five"}), "$.seed"),
        (changed({"stages.0.train_tokens": "15X"}), "$.stages[0].train_tokens"),
        (changed({"stages.0.train_tokens": 0}), "$.stages[0]"),
        (changed({"launch": {"slurm": {"time_limit": "24"}}}), "$.launch.slurm.time_limit"),
        (changed({"launch": {"hardware": {"memory": "80 gigs"}}}), "$.launch.hardware.memory"),
        (changed({"launch": {"hardware": {"mfu": 40}}}), "$.launch"),
        (changed({"launch": {"environment": {"1A": "x"}}}), "$.launch"),
        (changed({"learning_rate.shape": "linear"}), "$.learning_rate"),
        (changed({"stages": []}), "$.stages"),
        (changed({"stages.0.name": DELETE}), "$.stages[0]"),
        (changed({"data": DELETE}), "$"),
        (changed({"training": [1]}), "$.training"),
        ({"defaults": "quickstart"}, "$.defaults"),
        ({"defaults": [{"lunch": "slurm"}]}, "$.defaults[0]"),
        ({"defaults": ["quickstart"], "sed": 3}, "$"),
        ({"defaults": ["quickstart"], "stages": [{"train_tokens": 3}]}, "$.stages[0]"),
        ({}, "$"),
        ([], "$"),
    ],
)
def test_editors_underline_each_mistake_at_its_place(data: Any, where: str) -> None:
    found = problems(data)
    assert found
    assert all(problem.startswith(where) for problem in found)


def test_every_block_and_every_key_has_a_description() -> None:
    blocks = {"Schedule": SCHEMA, **SCHEMA["$defs"]}
    assert [name for name, block in blocks.items() if not block.get("description")] == []
    keys = {
        f"{name}.{key}": value for name, block in blocks.items() for key, value in block.get("properties", {}).items()
    }
    undescribed = {key: json.dumps(value) for key, value in keys.items() if not value.get("description")}
    assert [key for key, value in undescribed.items() if "#/$defs/" not in value] == []


def test_every_block_rejects_unknown_keys() -> None:
    blocks = [SCHEMA, *(block for block in SCHEMA["$defs"].values() if "properties" in block)]
    assert {key for block in blocks for key in block["properties"]} >= set(Schedule.model_fields)
    assert all(block["additionalProperties"] is False for block in blocks)


ANY_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(
        ["15B", " 1.5 k ", "auto", "softmax", "transformer", "freeze", "bf16", "90m", "1d 2h ", "40GiB", "64b"]
    ),
    st.lists(st.integers(1, 3), max_size=3),
    st.dictionaries(st.sampled_from(["name", "kind", "freeze_for"]), st.integers(), max_size=2),
)
OPTIONAL = [
    f"{block}.{key}"
    for block, model in (("launch", "LaunchBlock"), ("growth", "GrowthBlock"), ("data", "DataBlock"))
    for key in SCHEMA["$defs"][model]["properties"]
]
SLURM = [f"launch.slurm.{key}" for key in SCHEMA["$defs"]["SlurmBlock"]["properties"]]
HARDWARE = [f"launch.hardware.{key}" for key in SCHEMA["$defs"]["HardwareBlock"]["properties"]]
STAGE = [f"stages.1.{key}" for key in SCHEMA["$defs"]["StageBlock"]["properties"]]


@settings(max_examples=300)
@given(st.sampled_from([*OPTIONAL, *SLURM, *HARDWARE, *STAGE, "seed"]), ANY_VALUE)
def test_editors_accept_every_value_that_growctl_accepts(path: str, value: Any) -> None:
    data = changed({path: value})
    with contextlib.suppress(ScheduleError):
        parse(data)
        assert not problems(data)
