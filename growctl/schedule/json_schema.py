"""The JSON Schema of a schedule's file (draft 2020-12), for editors: what they complete, explain and underline.

Made from the models in growctl/schema/blocks.py. It judges a file by itself, so it allows what composition may yet
fill in: keys left to the files that a defaults list names, and references in the place of any value.
"""

import json
from typing import Any

from growctl.schedule.files import GROUPS, SHIPPED, choices, shipped_schedules
from growctl.schema.blocks import Schedule

_ANNOTATIONS = ("description", "default")
_NOT_JSON_SCHEMA = ("title", "gt", "ge", "lt", "le")
"""What pydantic writes beside: names that say nothing new, and limits it found no word for."""

_REFERENCE = {"$ref": "#/$defs/Reference"}


def schema_text() -> str:
    """The JSON Schema as it is shipped (schedules/schedule.schema.json) and printed."""
    return json.dumps(schedule_schema(), indent=1, ensure_ascii=False) + "\n"


def schedule_schema() -> dict[str, Any]:
    """The JSON Schema of a schedule's file."""
    written = Schedule.model_json_schema()
    definitions = {name: _block(block) for name, block in sorted(written["$defs"].items())}
    top = _block({key: value for key, value in written.items() if key != "$defs"})
    complete: dict[str, Any] = {"required": top.pop("required"), "properties": {}}
    for name in complete["required"]:
        block = definitions.get(written["properties"][name].get("$ref", "").removeprefix("#/$defs/"))
        if block and "required" in block:  # of a list's entries it stays: lists are not put together from several files
            complete["properties"][name] = _required(name, block.pop("required"))
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
        "if": {"required": ["defaults"]},
        "else": complete,
        "$defs": definitions,
    }


def _required(name: str, keys: list[str]) -> dict[str, Any]:
    """What a block must have; the batch in sequences or in tokens."""
    if name != "training":
        return {"required": keys}
    either = [{"required": ["batch_size"]}, {"required": ["batch_tokens"]}]
    return {"required": [key for key in keys if key != "batch_size"], "anyOf": either}


def _block(schema: dict[str, Any]) -> dict[str, Any]:
    """A block of keys, each of which may be a reference instead."""
    kept = {key: value for key, value in schema.items() if key not in _NOT_JSON_SCHEMA}
    kept["description"] = " ".join(kept["description"].split())
    return kept | {"properties": {key: _value(value) for key, value in schema["properties"].items()}}


def _value(schema: dict[str, Any]) -> dict[str, Any]:
    """A value, or a reference to one."""
    told = {key: schema[key] for key in _ANNOTATIONS if key in schema and not isinstance(schema[key], dict)}
    if "description" in told:
        told["description"] = " ".join(told["description"].split())
    forms = _forms({key: value for key, value in schema.items() if key not in _ANNOTATIONS})
    if len(forms) == 1 and forms[0].get("type", "object") in ("array", "object"):
        # not one form of two, which would be underlined as a whole: what is inside is judged by itself
        return told | {"if": {"type": "string"}, "then": _REFERENCE, "else": forms[0]}
    if {"type": "string"} not in forms:
        forms.append(_REFERENCE)
    return told | (forms[0] if len(forms) == 1 else {"anyOf": forms})


def _forms(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """What a value may be, one after the other."""
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
    """The list of what a schedule starts from."""
    choice = {"type": ["string", "array", "null"]}
    blocks = {group: choice | {"examples": choices(group, (SHIPPED,))} for group in GROUPS}
    keyword = rf"^(override|optional) ({'|'.join(GROUPS)})$"
    return {
        "description": "What this schedule starts from, the later over the earlier: schedules by name or path, choices "
        "for blocks ({launch: slurm}; {override launch: slurm} where a schedule above has chosen), and where among "
        "them this file itself comes: _self_, by default last.",
        "type": "array",
        "items": {
            "anyOf": [
                {"type": "string", "examples": ["_self_", *shipped_schedules()]},
                {
                    "type": "object",
                    "properties": blocks,
                    "patternProperties": {keyword: choice},
                    "additionalProperties": False,
                    "minProperties": 1,
                    "maxProperties": 1,
                },
            ]
        },
    }
