"""Puts the texts that a mixture names by corpus in place: the source and reading keys of a choice for `data`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from growctl.schedule.errors import ScheduleError, shown
from growctl.schedule.files import SHIPPED, choices, find_file
from growctl.schedule.reading import read_file
from growctl.text.suggestion import did_you_mean
from stages.corpus.location import local_path
from stages.data.spec import SourceSpec

_GROUP = "data"
_TOKENIZER = ("tokenizer", "vocab_size")
"""The keys that a number of tokens depends on."""


def with_corpora(data: Any, folder: Path) -> Any:
    """A schedule's plain data in which no entry of `data.mixture` needs its `corpus` any more.

    Corpora are choices for `data`: of the schedule's own `folder`, or shipped ones. What the entry sets itself stays.
    Raises ScheduleError for one that does not exist; leaves what is no text for the schema to report.
    """
    block = data.get("data") if isinstance(data, dict) else None
    mixture = block.get("mixture") if isinstance(block, dict) else None
    if not isinstance(mixture, list):
        return data
    assert isinstance(block, dict)
    entries = [
        _in_place(entry, block, f"data.mixture.{index}.corpus", (folder, SHIPPED))
        if isinstance(entry, dict) and isinstance(entry.get("corpus"), str)
        else entry
        for index, entry in enumerate(mixture)
    ]
    return data | {"data": block | {"mixture": entries}}


def _in_place(entry: dict[str, Any], block: dict[str, Any], path: str, folders: Sequence[Path]) -> dict[str, Any]:
    """The entry of a mixture with what its corpus sets and it does not."""
    name = entry["corpus"]
    here = f"{path} = {shown(name)}"
    file = find_file(f"{_GROUP}/{name}", folders)
    if file is None:
        known = choices(_GROUP, folders)
        raise ScheduleError(f"{here}: no such corpus; there are {', '.join(known)}{did_you_mean(name, known)}")
    choice = read_file(file, str(file)) or {}
    source = choice.get("source")
    if not isinstance(source, str) or "defaults" in choice or any("${" in str(value) for value in choice.values()):
        raise ScheduleError(f"{here}: {file} has no plain source to take over; set name and source here instead")
    taken = {key: value for key, value in choice.items() if key in SourceSpec.model_fields}
    is_relative = "://" not in source and not source.startswith(("/", "~")) and local_path(source) is not None
    if is_relative and not file.is_relative_to(SHIPPED):
        taken["source"] = os.path.normpath(file.parent / source)
    if "source" in entry:
        taken = {}
    elif "approximate_tokens" in choice and all(choice.get(key) == block.get(key) for key in _TOKENIZER):
        taken["approximate_tokens"] = choice["approximate_tokens"]
    return {"name": name} | taken | {key: value for key, value in entry.items() if key != "corpus"}
