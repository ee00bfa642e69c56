"""Builds the JSON Schema (draft 2020-12) of a document from the type that describes it.

Every key is required, except those of a TypedDict that are NotRequired and those that are left out at their default
(`exclude_if`). No other key is allowed. The docstring below a field becomes the description of its key.
"""

import re
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter
from pydantic._internal._docs_extraction import extract_docstrings_from_cls
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from growctl.text.documents import COMMANDS, DOCUMENTS, FILES, left_out
from growctl.text.suggestion import did_you_mean
from model.errors import UserError


def document_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of the document `name`, which is not a schedule. Raises UserError for an unknown name."""
    if name not in DOCUMENTS:
        raise UserError(f"schema {name!r}: must be one of {', '.join(DOCUMENTS)}{did_you_mean(name, DOCUMENTS)}")
    what, path = FILES[name] if name in FILES else (f"growctl {name.replace('-', ' ')} --json", COMMANDS[name])
    module, _, attribute = path.partition(":")
    described = getattr(import_module(module), attribute)
    schema = TypeAdapter(described).json_schema(mode="serialization", schema_generator=_Generator)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": what}


class _Generator(GenerateJsonSchema):
    """pydantic's generator, with closed objects and with docstrings as descriptions."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """No key has a title: its name says as much."""
        return False

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema), schema.get("cls"))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema), schema["cls"], is_complete=True)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema), schema["cls"], is_complete=True)


def _closed(schema: JsonSchemaValue, described: type | None, is_complete: bool = False) -> JsonSchemaValue:
    """`schema` without further keys, and with the docstrings of the class that it is made from."""
    if described is None or schema.get("type") != "object":
        return schema
    properties = {key: dict(value) for key, value in schema.get("properties", {}).items()}
    properties = {key: value for key, value in properties.items() if key not in left_out(described)}
    for name, docstring in _docstrings(described).items():
        if name in properties:
            properties[name]["description"] = _in_words_of_json(docstring)
    closed: JsonSchemaValue = schema | {"properties": properties, "additionalProperties": False}
    if described.__doc__ and not described.__doc__.startswith(f"{described.__name__}("):
        closed["description"] = _in_words_of_json(described.__doc__)
    fields = getattr(described, "__pydantic_fields__", {})
    required = [name for name in properties if name not in fields or not fields[name].exclude_if]
    return closed | ({"required": required} if is_complete and properties else {})


def _docstrings(described: type) -> dict[str, str]:
    """The docstrings below the fields of a class and of the classes that it inherits from, by field."""
    bases = reversed(getattr(described, "__orig_bases__", described.__bases__))  # a TypedDict's only base is dict
    found: dict[str, str] = {}
    for base in (base for base in bases if isinstance(base, type)):
        found |= _docstrings(base)
    return found | extract_docstrings_from_cls(described, use_inspect=True)


def _in_words_of_json(text: str) -> str:
    """`text` about Python values on one line."""
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))
