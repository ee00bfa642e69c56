"""The examples and the recipe of docs/formats.md match the code."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from growctl.text.document_schema import document_schema
from growctl.text.documents import COMMANDS, FILES
from stages.metrics import parse_line
from tests.stages.test_metrics import START, TRAIN, with_crc, written
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


def test_the_recipe_for_pandas_reads_what_counts_of_a_resumed_stage(tmp_path: Path, monkeypatch: Any) -> None:
    stage = tmp_path / "runs/quickstart/stages/2-262k"
    stage.mkdir(parents=True)
    written(stage / "metrics.jsonl")
    start: dict[str, Any] = {"event": "start", "step": 0, **START}
    again = [start, {"event": "train", "step": 1, **TRAIN, "loss": 2.0}]
    with (stage / "metrics.jsonl").open("ab") as file:
        for record in again:
            file.write(with_crc(json.dumps(record | {"attempt": 2, "seconds": 1.0}).encode()))
        file.write(b'{"event": "train", "step": 2, "att')  # a kill cut it off
    [recipe] = re.findall(r"^```python\n(.*?)^```", sections()["metrics.jsonl"], re.DOTALL | re.MULTILINE)
    assert len(recipe.strip().splitlines()) <= 8
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(recipe, str(PAGE), "exec"), names)
    assert names["train"]["loss"].tolist() == [2.0]
