"""Looks up the training tokens of a schedule's prepared dataset, reading manifests only."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from growctl.runs_dir import RunsPaths
from growctl.schema.blocks import DataBlock
from stages.data.corpus import DataSpec


def training_tokens(data: DataBlock, runs_dir: Path | None) -> int | None:
    """Training tokens in the newest prepared dataset for `data`, else `data.approximate_tokens`, else None."""
    if runs_dir is None:
        return data.approximate_tokens
    for _, document in _prepared(data, runs_dir):
        try:
            return int(document["splits"]["train"]["num_tokens"])
        except (ValueError, LookupError, TypeError, OverflowError):
            continue  # damaged: `prepare` sets it aside with a message
    return data.approximate_tokens


def prepared_datasets(data: DataBlock, runs_dir: Path) -> list[Path]:
    """The datasets that were prepared for `data`, newest first: several if the source has changed in between."""
    return [dataset for dataset, _ in _prepared(data, runs_dir)]


def _prepared(data: DataBlock, runs_dir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The datasets that were prepared for `data`, newest first, each with its manifest's content."""
    wanted = _determining(data.model_dump(mode="json"))
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
