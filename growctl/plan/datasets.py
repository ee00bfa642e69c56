"""Looks up the sizes of a schedule's prepared dataset, reading manifests only."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from growctl.runs_dir import RunsPaths
from growctl.schema.blocks import DataBlock
from stages.data.corpus import DataSpec


class DatasetSizes(NamedTuple):
    """What `plan` must know of a prepared dataset."""

    training_tokens: int
    validation_documents: int
    validation_tokens: int


def prepared_sizes(data: DataBlock, runs_dir: Path | None) -> DatasetSizes | None:
    """The sizes of the newest prepared dataset for `data`; None if there is none."""
    for _, document in _prepared(data, runs_dir) if runs_dir else ():
        try:
            train, validation = document["splits"]["train"], document["splits"]["validation"]
            counts = (train["num_tokens"], validation["num_documents"], validation["num_tokens"])
            return DatasetSizes(*map(int, counts))
        except (ValueError, LookupError, TypeError, OverflowError):
            continue  # damaged: `prepare` sets it aside with a message
    return None


def prepared_datasets(data: DataBlock, runs_dir: Path) -> list[Path]:
    """The datasets that were prepared for `data`, newest first: several if the source has changed in between."""
    return [dataset for dataset, _ in _prepared(data, runs_dir)]


def _prepared(data: DataBlock, runs_dir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The datasets that were prepared for `data`, newest first, each with its manifest's content."""
    wanted = _determining(data.in_one_spelling().model_dump(mode="json"))
    for manifest in sorted(RunsPaths(runs_dir).dataset_manifests(), key=_age):
        try:
            document = json.loads(manifest.read_bytes())
            if _determining(document["spec"]) == wanted:
                yield manifest.parent, document
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue


def _determining(spec: dict[str, Any]) -> dict[str, Any]:
    """The keys of a data block that determine the content of its dataset."""
    return {name: spec[name] for name in DataSpec.model_fields if name != "workers"}


def _age(manifest: Path) -> float:
    return -manifest.stat().st_mtime
