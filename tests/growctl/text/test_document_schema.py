"""Every JSON document that growctl writes has a JSON Schema that allows no other key."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from growctl.cli.app import app
from growctl.schedule.json_schema import schedule_schema
from growctl.text.document_schema import document_schema
from growctl.text.documents import COMMANDS, FILES, document_text
from tests.growctl.runs import run_here
from tests.growctl.text.schemas import assert_follows_schema
from tests.stages.test_metrics import EVENTS, line
from tests.workers import REPOSITORY


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command of the application, with - for spaces in its name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield "-".join((*path, name)), command


def test_every_command_that_prints_json_has_a_schema_and_no_other_has():
    group = typer.main.get_group(app)
    with_json = {name for name, command in commands(group) if any("--json" in each.opts for each in command.params)}
    assert with_json == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, *COMMANDS])
def test_every_object_of_a_schema_is_closed_and_explained(name: str):
    def check(schema: Any, where: str) -> None:
        if isinstance(schema, dict) and "properties" in schema:
            assert schema["additionalProperties"] is False, where
            assert set(schema["required"]) <= set(schema["properties"]), where
            assert schema.get("description"), where
        if isinstance(schema, dict | list):
            items = schema.items() if isinstance(schema, dict) else enumerate(schema)
            for key, part in items:
                check(part, f"{where}/{key}")

    check(document_schema(name), name)


@pytest.mark.parametrize("event", sorted(EVENTS))
def test_a_line_of_every_kind_follows_the_schema_of_metrics(event: str):
    record = json.loads(line(event))
    assert_follows_schema(record, "metrics")
    with pytest.raises(AssertionError):
        assert_follows_schema(record | {"another": 1}, "metrics")


def test_infinite_numbers_are_null_and_paths_are_text():
    document = {"loss": float("inf"), "path": REPOSITORY, "runs": (float("nan"), 2)}
    assert json.loads(document_text(document)) == {"loss": None, "path": str(REPOSITORY), "runs": [None, 2]}


@pytest.mark.slow
def test_the_command_prints_the_schema_of_a_schedule_by_default_and_any_document_by_name():
    assert run_here("schema")[0] == run_here("schema", "schedule")[0]
    assert json.loads(run_here("schema")[0]) == schedule_schema()
    for words in (["import-official"], ["import", "official"]):
        assert json.loads(run_here("schema", *words)[0]) == document_schema("import-official")
