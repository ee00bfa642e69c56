"""Checks documents against their JSON Schemas."""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from growctl.text.document_schema import document_schema


@cache
def validator(name: str) -> Draft202012Validator:
    """What checks the document `name`."""
    schema = document_schema(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def assert_follows_schema(document: Any, name: str) -> None:
    """Fails, naming the keys, unless `document` has exactly what the schema `name` says."""
    errors = [f"{error.json_path}: {error.message[:500]}" for error in validator(name).iter_errors(document)]
    assert not errors, f"{name}: " + "\n".join(errors)


def assert_printed_as_documented(command: list[str], out: str) -> None:
    """Checks what a command printed with --json: valid JSON, without NaN, that follows the command's schema."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    words = command[:2] if command[0] in ("data", "import", "law", "ledger") else command[:1]
    assert_follows_schema(json.loads(out, parse_constant=refuse), "-".join(words))
