"""Makes the tables of keys in docs/formats.md."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from growctl.text.document_schema import document_schema

_WORDS = {"string": "text", "boolean": "true or false"}
_COMMON = ("event", "attempt", "step", "seconds", "crc32")
"""The keys that all lines of metrics.jsonl have."""


def metrics_tables() -> str:
    """A table of the keys that all lines of metrics.jsonl have, then one for each kind of line."""
    schema = document_schema("metrics")
    objects = schema["$defs"]
    kinds = {name: kind for name, kind in objects.items() if "event" in kind["properties"]}
    names = sorted(kind["properties"]["event"]["const"] for kind in kinds.values())
    common = {key: kinds["StartLine"]["properties"][key] for key in _COMMON}
    common["event"] = {"enum": names, "description": "The kind of the line."}
    parts = ["Every line has:\n", _table(common, objects)]
    for reference in schema["oneOf"]:
        kind = kinds[reference["$ref"].rpartition("/")[2]]
        parts.append(f"**`{kind['properties']['event']['const']}`**: {kind['description']}\n")
        if own := {key: value for key, value in kind["properties"].items() if key not in _COMMON}:
            parts.append(_table(own, objects))
    inner = {name: value for name, value in objects.items() if name not in kinds}
    return "\n".join([*parts, *_object_tables(inner, objects)])


def nested_tables(name: str) -> str:
    """A table of the keys of a document, then one for each kind of object in it."""
    schema = document_schema(name)
    objects = schema.get("$defs", {})
    return "\n".join([_table(schema["properties"], objects), *_object_tables(objects, objects)])


def _object_tables(shown: Mapping[str, Any], objects: Mapping[str, Any]) -> Iterator[str]:
    for title, schema in shown.items():
        if "properties" in schema:
            yield f"`{title}`: {schema.get('description', '')}\n"
            yield _table(schema["properties"], objects)


def _table(properties: Mapping[str, Any], objects: Mapping[str, Any]) -> str:
    lines = ["| key | value | meaning |", "| --- | --- | --- |"]
    for key, value in properties.items():
        meaning = value.get("description", "").replace("|", "\\|")
        lines.append(f"| `{key}` | {' or '.join(_values(value, objects))} | {meaning} |")
    return "\n".join(lines) + "\n"


def _values(schema: Mapping[str, Any], objects: Mapping[str, Any]) -> Iterator[str]:
    """What a value may be, in words."""
    if "anyOf" in schema:
        for inner in schema["anyOf"]:
            yield from _values(inner, objects)
    elif "$ref" in schema:
        yield f"`{schema['$ref'].rpartition('/')[2]}`"
    elif "enum" in schema:
        yield from (f"`{value}`" for value in schema["enum"])
    elif "const" in schema:
        yield f"`{json.dumps(schema['const'])}`"
    elif schema.get("type") == "array":
        yield f"list of {' or '.join(_values(schema.get('items', {}), objects)) or 'values'}"
    else:
        yield _WORDS.get(schema.get("type", ""), schema.get("type", "any value"))
