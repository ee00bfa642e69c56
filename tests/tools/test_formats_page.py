"""The examples of docs/formats.md match the code."""

import json
import re
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from growctl.text.document_schema import document_schema
from growctl.text.documents import COMMANDS, FILES
from stages.metrics import parse_line
from tests.workers import REPOSITORY

PAGE = REPOSITORY / "docs/formats.md"


@cache
def sections() -> dict[str, str]:
    """The page's sections by heading, without code marks: `growctl status`, `metrics.jsonl`."""
    parts = re.split(r"^#{2,4} (.*)\n", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {heading.replace("`", ""): body for heading, body in zip(parts[::2], parts[1::2], strict=True)}


def heading_of(name: str) -> str:
    """The heading of a document's section."""
    return FILES[name][0].rpartition(" ")[2] if name in FILES else f"growctl {name.replace('-', ' ')}"


def examples(name: str) -> list[str]:
    return re.findall(r"^```json\n(.*?)^```", sections()[heading_of(name)], re.DOTALL | re.MULTILINE)


def without_required(schema: Any) -> Any:
    """`schema` with all keys optional: an example may leave some out."""
    if isinstance(schema, list):
        return [without_required(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_required(value) for key, value in schema.items() if key != "required" or isinstance(value, dict)
    }


@pytest.mark.parametrize("name", [*FILES, *COMMANDS])
@pytest.mark.slow
def test_every_document_has_a_section_with_an_example_that_follows_its_schema(name: str) -> None:
    assert examples(name)
    schema = without_required(document_schema(name))
    for example in examples(name):
        for text in example.splitlines() if name in ("metrics", "scores") else [example]:
            errors = [error.message for error in Draft202012Validator(schema).iter_errors(json.loads(text))]
            assert not errors, f"{text[:80]}: {errors}"


def test_the_example_lines_of_metrics_have_a_correct_crc() -> None:
    lines = [line for example in examples("metrics") for line in example.splitlines()]
    assert len({json.loads(line)["event"] for line in lines}) >= 4
    for line in lines:
        assert parse_line(line.encode()), line
