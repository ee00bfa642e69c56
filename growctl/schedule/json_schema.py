"""Builds the JSON Schema of a schedule's file (draft 2020-12), for completion and checks in editors.

growctl derives it from the models in growctl/schedule/blocks.py. An editor sees one file alone, so the schema allows
everything that composition can still fill in: keys from the files of a defaults list, and references as any value.
"""

from typing import Any

from growctl.schedule.blocks import Schedule
from growctl.schedule.files import GROUPS, shipped_schedules

_ANNOTATIONS = ("description", "default", "examples", "unit")
_NOT_JSON_SCHEMA = ("title", "gt", "ge", "lt", "le")
"""Keywords from pydantic to drop: titles repeat the key's name, and the limits are not JSON Schema."""

_REFERENCE = {"$ref": "#/$defs/Reference"}


def schedule_schema() -> dict[str, Any]:
    """The JSON Schema of a schedule's file."""
    written = Schedule.model_json_schema()
    definitions = {name: _block(block) for name, block in sorted(written["$defs"].items())}
    top = _block({key: value for key, value in written.items() if key != "$defs"})
    required = top.pop("required")
    for name in required:
        if block := definitions.get(written["properties"][name].get("$ref", "").removeprefix("#/$defs/")):
            block.pop("required", None)  # the keys may come from other files; entries of lists keep theirs
    definitions["Reference"] = {
        "description": "The value of another key, ${training.batch_size}, or of the environment, ${oc.env:NAME}.",
        "type": "string",
        "pattern": r"\$\{.+\}",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "growctl schedule",
        "description": "How growctl trains a model, stage after stage, and grows it in between.",
        "type": "object",
        "properties": {"defaults": _defaults(), **top["properties"]},
        "additionalProperties": False,
        "anyOf": [{"required": ["defaults"]}, {"required": required}],
        "$defs": definitions,
    }


def _block(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a block, with a reference allowed as any value."""
    kept = {key: value for key, value in schema.items() if key not in _NOT_JSON_SCHEMA}
    kept["description"] = " ".join(kept["description"].split())
    return kept | {"properties": {key: _value(value) for key, value in schema["properties"].items()}}


def _value(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value, with a reference allowed in its place."""
    annotations = {key: schema[key] for key in _ANNOTATIONS if key in schema and not isinstance(schema[key], dict)}
    unit = annotations.pop("unit", None)
    if "description" in annotations:
        meaning = " ".join(annotations["description"].split())
        # the unit is in the description, because editors show no keyword of our own
        annotations["description"] = f"{meaning} Unit: {unit}." if unit else meaning
    forms = _forms({key: value for key, value in schema.items() if key not in _ANNOTATIONS})
    if len(forms) == 1 and forms[0].get("type", "object") in ("array", "object"):
        # not an anyOf: editors would underline the whole block, not the wrong key in it
        return annotations | {"if": {"type": "string"}, "then": _REFERENCE, "else": forms[0]}
    if {"type": "string"} not in forms:
        forms.append(_REFERENCE)
    return annotations | (forms[0] if len(forms) == 1 else {"anyOf": forms})


def _forms(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives that a value's schema allows, without annotations."""
    if "anyOf" in schema:
        return [form for inner in schema["anyOf"] for form in _forms(inner)]
    form = {key: value for key, value in schema.items() if key not in _NOT_JSON_SCHEMA}
    if "items" in form:
        form["items"] = _value(form["items"])
    if "patternProperties" in form:
        form["patternProperties"] = {key: _value(value) for key, value in form["patternProperties"].items()}
        form["additionalProperties"] = False
    return [form]


def _defaults() -> dict[str, Any]:
    """The schema of a defaults list."""
    choice = {"type": ["string", "array", "null"]}
    block = {"type": "object", "patternProperties": {rf"^((override|optional) )?({'|'.join(GROUPS)})$": choice}}
    return {
        "description": "The files that make up this schedule; later entries win. Each is the name or path of a "
        "schedule, or a file for a block ({launch: slurm}, or {override launch: slurm} if an entry above already "
        "chooses one). `_self_` is this file, which comes last if the list leaves it out.",
        "type": "array",
        "items": {
            "anyOf": [
                {"type": "string", "examples": ["_self_", *shipped_schedules()]},
                block | {"additionalProperties": False, "minProperties": 1, "maxProperties": 1},
            ]
        },
    }
